"""The variables of prompt templates, and a check of user templates before the run.

Every template gets the variables of `SHARED` and its own in `OWN`, each listed with an example value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PromptError, suggest
from palaestra.core.prompts import SUFFIX, Prompts
from palaestra.core.records import Json
from palaestra.core.tables import load_table

if TYPE_CHECKING:
    from palaestra.research.tasks.task import ResearchTask

SHARED: Json = load_table(__file__, "variables")["shared"]
"""Variables of every template, besides `task`, which is the `ResearchTask`."""
OWN: dict[str, Json] = {name: row for name, row in load_table(__file__, "variables").items() if name != "shared"}
"""The templates with their own variables. In `summarize`, `task` renders as the text that the agent got."""


def check_prompts(prompts: Prompts, task: ResearchTask) -> None:
    """Raise for a user template that could not be rendered later.

    Raises:
        PromptError: it is not valid Jinja, or uses an unknown variable.
    """
    if prompts.folder is None:
        return
    for name, own in OWN.items():
        path = prompts.folder / f"{name}{SUFFIX}"
        if not path.exists():
            continue
        known = {"task": task, **SHARED, **own}
        for variable in sorted(prompts.variables(name) - known.keys()):
            raise PromptError(f"the prompt {path}: '{variable}' is undefined; {suggest(variable, known)}")
        prompts.render(name, **known)


class TaskText:
    """A task as a template variable: it renders as a text, and its attributes are the task's fields."""

    def __init__(self, text: str, task: ResearchTask | None = None) -> None:
        self._text, self._task = text, task

    def __str__(self) -> str:
        return self._text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)
