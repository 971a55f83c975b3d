"""The prompts of the teachers, a folder each; see `palaestra.core.prompts`."""

from __future__ import annotations

from pathlib import Path

from palaestra.core import prompts

FOLDER = Path(__file__).parent


class TeacherPrompts(prompts.Prompts):
    """The templates, ours and the user's.

    Arguments:
        folder: templates that come before ours, under the same names; what it lacks is ours.
        base: where ours are.
    """

    def __init__(self, folder: Path | None = None, base: Path = FOLDER) -> None:
        super().__init__(base, folder)
