"""The registry of tasks and `make_task`. The protocol of a task is re-exported from `palaestra.tasks.protocol`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.plugins import describe_location
from palaestra.core.registry import Registry
from palaestra.tasks.protocol import (
    EVERY,
    HOOKS,
    RENAMED_HOOKS,
    GenerativeTask,
    Task,
    TaskHooks,
    check_skills,
    get_hooks,
    get_split,
    take,
)
from palaestra.tasks.shots import few_shot

__all__ = [
    "EVERY",
    "HOOKS",
    "RENAMED_HOOKS",
    "TASKS",
    "GenerativeTask",
    "Task",
    "TaskHooks",
    "check_skills",
    "get_hooks",
    "get_split",
    "make_task",
    "take",
    "task_signature",
]

TASKS = Registry("task", "palaestra.tasks")
TASKS.register(
    "math-skills",
    "palaestra.tasks.math.task:MathSkills",
    "procedural mathematics: 18 skills from sums to common divisors, with worked reasoning",
)
TASKS.register(
    "gsm8k",
    "palaestra.tasks.math.published:GSM8K",
    "grade-school word problems with worked solutions, by path or hub id; slices by number of steps",
)
TASKS.register(
    "math",
    "palaestra.tasks.math.published:MATH",
    "competition mathematics with worked solutions, by path or hub id; slices by type and level",
)
TASKS.register(
    "code-skills",
    "palaestra.tasks.code.task:CodeSkills",
    "procedural programming: functions and programs put together from parts, run against tests",
)
TASKS.register(
    "humaneval",
    "palaestra.tasks.code.published:HumanEval",
    "HumanEval: functions to complete; evaluate asks all 164, teach divides them by hash; hub or folder",
)
TASKS.register(
    "mbpp", "palaestra.tasks.code.published:MBPP", "MBPP: short functions, the sanitised part; hub or folder"
)
TASKS.register(
    "code-contests",
    "palaestra.tasks.code.published:CodeContests",
    "CodeContests: programs that read and print; hub or folder",
)
TASKS.register(
    "livecodebench",
    "palaestra.tasks.code.published:LiveCodeBench",
    "LiveCodeBench: programs and methods, in parts by date; hub or folder",
)
TASKS.register(
    "vision-skills",
    "palaestra.tasks.vision.task:VisionSkills",
    "procedural pictures of shapes and charts: 18 skills from colours to patterns, with worked reasoning",
)
TASKS.register(
    "tools-skills",
    "palaestra.tasks.tools.task:ToolsSkills",
    "procedural tool use: 12 skills, plans of one to four calls of 55 typed tools, really executed",
)
TASKS.register(
    "mnms",
    "palaestra.tasks.tools.mnms.task:Mnms",
    "m&m's: plans of calls of 33 tools, as JSON nodes or as code, scored by the tools in order; hub or folder",
)
TASKS.register("gqa", "palaestra.tasks.vision.sets:GQA", "GQA: questions about photographs; hub or folder")
TASKS.register(
    "naturalbench",
    "palaestra.tasks.vision.sets:NaturalBench",
    "NaturalBench: pairs of questions and images; hub or folder",
)
TASKS.register("easy-vqa", "palaestra.tasks.vision.sets:EasyVQA", "easy-VQA: one shape a picture; folder or hub")
TASKS.register("nlvr", "palaestra.tasks.vision.sets:NLVR", "NLVR: is a sentence true of three boxes? folder or hub")


def make_task(name: str, *, shots: int = 0, **options: Any) -> Task:
    """Build the task that is registered under `name`.

    Arguments:
        shots: worked problems of the train split that precede each question as earlier turns.

    Raises:
        SettingsError: an option is unknown or missing. The message lists the options of the task.
        TaskError: the registered object does not implement `Task`.
    """
    kind, signature = TASKS.get(name), task_signature(name)
    for option in options:
        if option not in signature.parameters:
            raise SettingsError(
                f"task '{name}' has no option '{option}'; it takes {', '.join((*signature.parameters, 'shots'))}"
            )
    try:
        signature.bind(**options)
    except TypeError as error:
        raise SettingsError(f"task '{name}' needs another option: {error}") from None
    task: Task = kind(**options)
    _check_task(task, name)
    return few_shot(task, shots) if shots else task


def task_signature(name: str) -> inspect.Signature:
    """The options of a registered task; raises `TaskError` if the registered object is not a class."""
    kind = TASKS.get(name)
    if not callable(kind):
        raise TaskError(f"task '{name}' is registered as {short_repr(kind)}; register its class")
    return inspect.signature(kind)


def _check_task(task: Any, name: str) -> None:
    """Raise if a task does not implement the protocol, or has no skills."""
    kind = type(task).__name__
    for part in ("name", "skills", "problems", "score"):
        if not hasattr(task, part):
            raise TaskError(f"task '{name}' is no task: {kind} has no '{part}'")
    get_hooks(task)
    skills = task.skills()
    if (
        not isinstance(skills, Mapping)
        or not skills
        or not all(
            isinstance(skill, str) and isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts)
            for skill, parts in skills.items()
        )
    ):
        raise TaskError(
            f"{kind}.skills returned {short_repr(skills)}{describe_location(task.skills)}; "
            "expected a mapping of each skill to a tuple of its subskills"
        )
