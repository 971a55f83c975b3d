"""The variables of prompt templates, and a check of user templates before the run.

Every template gets the variables of `SHARED` and its own in `OWN`, each listed with an example value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import PromptError, suggest
from palaestra.core.prompts import SUFFIX, Prompts
from palaestra.core.records import Json

if TYPE_CHECKING:
    from palaestra.research.tasks.task import ResearchTask

SHARED: Json = {
    "current_step": 1, "remaining_steps": 9, "open_file": "/workspace/train.py", "working_dir": "/workspace",
    "command_docs": "submit",
}  # fmt: skip
"""Variables of every template, besides `task`, which is the `ResearchTask`."""
_STATE = {
    "open_file": "/workspace/train.py", "working_dir": "/workspace", "window": "1-2 of 2", "ok": True, "current_step": 1,
    "remaining_steps": 9, "validations_left": 3,
}  # fmt: skip
_JUDGED = {"metric": "accuracy", "score": 0.75, "baseline": 0.5, "direction": "higher"}
_COUNTED = {"counted": True, "left": 3}
OWN: Mapping[str, Json] = {
    "system": {"tools": False, "bash": True, "data": "/data", "instructions": "Write one command.", "command_seconds": "60",
               "workspace": "/workspace"},
    "demonstration": {"demonstration": "[assistant]\nls"},
    "task": {"workspace": "/workspace", "baseline_validation": 0.5, "split": "test", "validations": 5, "steps": 10,
             "seconds": "600", "files": "- train.py"},
    "strategy": {"workspace": "/workspace", "steps": 10},
    "observation": {"observation": "train.py", "note": "exit code 1", "state": _STATE, "remaining": 9},
    "no_output": {"observation": "", "ok": True, "note": "", "state": _STATE, "remaining": 9},
    "format_error": {"error": "There is no block.", "remaining": 9},
    "validated": {**_JUDGED, "best": 0.75, "left": 3},
    "no_validations": {"limit": 5},
    "submitted": {**_JUDGED, "split": "test"},
    "unusable": {"reason": "there is no answer.txt", "what": "validated", "over": False, **_COUNTED},
    "failed": {"what": "validation", "cause": "scorer", "reason": "it broke", **_COUNTED},
    "closed_window": {"observation": "[file a, 1 line]\n1|a", "path": "/workspace/a", "lines": 1},
    "omitted": {"observation": "train.py", "lines": 1},
    "summarize": {"before": "", "transcript": "[assistant]\nls", "words": 100},
    "summary": {"summary": "Nothing helped."},
}  # fmt: skip
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
