"""The prompts of the teachers: Jinja templates in this folder, which a user's folder may replace one by one.

    TEACHER/write               an order of examples, to a language model as the writer
    skill_tree/decide           the plan of a round, to the planner of the policy `model`
    skill_tree/propose          new subskills of a skill
    skills/name                 stage 1 of skill discovery: the skill of one problem
    skills/cluster, skills/sort stage 2: categories from names; further names into categories
    skills/assign               stage 3: the category of one problem

`NAME.system` is the system message of the prompt `NAME`, with the same variables. docs/prompts.md lists the
variables of each template. A template that uses any other variable raises `PromptError`. See `palaestra.core.prompts` for
files and errors.
"""

from __future__ import annotations

from pathlib import Path

from palaestra.core import prompts

FOLDER = Path(__file__).parent


class TeacherPrompts(prompts.Prompts):
    """The templates of the teachers.

    Arguments:
        folder: a user's templates, which replace the built-in ones of the same names.
        base: the folder of the built-in templates.
    """

    def __init__(self, folder: Path | None = None, base: Path = FOLDER) -> None:
        super().__init__(base, folder)
