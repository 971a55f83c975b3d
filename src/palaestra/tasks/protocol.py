"""The task protocol: problems, prompts, scoring, and the optional hooks of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from palaestra.core.errors import TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Attempt, Completion, Example, Failure, Problem, Score, Split
from palaestra.core.statistics import Mean

EVERY = 0
"""As a number of problems: all problems of a data set."""
DEFAULT_MAX_TOKENS = 512
"""Maximum length of an answer, for tasks that do not set their own."""

T = TypeVar("T")


class TaskHooks:
    """Optional hooks of a task, with their defaults.

    A task inherits from this class and overrides what it needs. A task that does not inherit may still define any of
    these names; callers read the hooks through `get_hooks(task)`, which fills in the defaults.

    Example:
        >>> class Remainders(TaskHooks):
        ...     name = "remainders"
        ...     max_tokens = 32
        >>> get_hooks(Remainders()).is_procedural
        False
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    """Maximum length of an answer, unless the user sets one."""
    is_procedural: bool = False
    """Whether the problems are generated. `EVERY` problem of a procedural task cannot be requested, only a number."""
    concurrent_scoring: bool = False
    """Whether several threads may call `score` at once."""
    main: str = ""
    """The name of the main task, for a group of tasks."""
    answer_lengths: Mapping[str, int] = MappingProxyType({})
    """`max_tokens` of each task by name, for a group of tasks."""

    def check_scoring(self) -> None:
        """Raise if answers cannot be scored on this machine, for example because no sandbox is installed."""

    def metrics(self, attempts: Sequence[Attempt]) -> Mapping[str, Mean]:
        """Metrics beside the accuracy, by name."""
        return {}

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """Worked examples of `skill` for few-shot prompts (see `palaestra.tasks.shots`). They are always the same."""
        return []

    def prepare(self, data: Sequence[Any]) -> None:
        """Prepare data that a language model wrote, before the first datum becomes an example.

        Use it for work that is faster in a batch, such as image generation. An invalid datum must not raise here.
        """

    def to_problem(self, example: Example) -> Problem | None:
        """The problem that an example poses, for the quality checks; None if its answer cannot be scored."""
        return None

    def execute_example(self, example: Example) -> Score | Failure | None:
        """Run the program or plan of an example, for the quality checks; None if it contains nothing to run."""
        return None

    def close(self) -> None:
        """Release resources, such as a sandbox that stays open."""

    def overrides(self, hook: str) -> bool:
        """Whether the task defines `hook` itself."""
        return hook in vars(self) or getattr(type(self), hook) is not getattr(TaskHooks, hook)


HOOKS = tuple(name for name in vars(TaskHooks) if not name.startswith("_") and name != "overrides")
RENAMED_HOOKS = {
    "drawn": "is_procedural",
    "shown": "get_shots",
    "example_of": "make_example",
    "problem_of": "to_problem",
    "executes": "execute_example",
    "split_of": "get_split",
}
"""Former names of hooks and methods. A task that still has one is rejected with an error that names the new one."""


class _AdaptedHooks(TaskHooks):
    """The hooks of a task that does not inherit from `TaskHooks`."""

    def __init__(self, task: Any) -> None:
        for hook in HOOKS:
            value = getattr(task, hook, None)
            if value is not None and getattr(value, "__func__", value) is not getattr(TaskHooks, hook):
                setattr(self, hook, value)


def get_hooks(task: Any) -> TaskHooks:
    """The optional hooks of any task, with the defaults of `TaskHooks` where it defines none.

    Raises:
        TaskError: the task has a hook under its former name.
    """
    for old, new in RENAMED_HOOKS.items():
        if hasattr(task, old):
            raise TaskError(f"{type(task).__name__}.{old} is now called '{new}'; rename it")
    return task if isinstance(task, TaskHooks) else _AdaptedHooks(task)


@runtime_checkable
class Task(Protocol):
    """Named problem sets with splits, a prompt and a scorer.

    A task never sees a model. It provides problems and scores answers. Its optional hooks are those of `TaskHooks`.

    Keys of a problem's metadata: `level` and `type` are slices of the report. Problems with the same `group` stay
    together. Problems with the same `content` differ only in wording and count as one in every confidence interval.
    `choices` are the possible answers of a closed question.
    """

    name: str

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        """Every skill of the task with its subskills."""
        ...

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` different problems of each skill (of `skills`, if given) from `split`; or `EVERY` problem.

        The same arguments give the same problems. Raises `TooFewProblemsError` if the split has fewer.
        """
        ...

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Score an answer. A wrong answer is a `Score` of 0; an error of the scorer is a `Failure`."""
        ...


@runtime_checkable
class GenerativeTask(Task, Protocol):
    """A task that can generate training examples of any of its skills."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """`count` examples with worked reasoning, all from the train split.

        With an empty `subskill` the subskills take turns.
        """
        ...


def take(problems: Sequence[T], per_skill: int, task: Task, split: Split, skill: str) -> Sequence[T]:
    """The first `per_skill` problems of a skill, or `EVERY` problem; raises `TooFewProblemsError` if it has fewer."""
    if len(problems) < per_skill:
        raise TooFewProblemsError(
            f"skill '{skill}' of {task.name} has {len(problems)} {split} problems, fewer than {per_skill}; "
            "ask for fewer, or leave the skill out",
            len(problems),
        )
    return problems if per_skill == EVERY else problems[:per_skill]


def check_skills(task: Task, names: Sequence[str]) -> None:
    """Raise for the first of `names` that is not a skill of `task`, or is given twice."""
    known = task.skills()
    for name in names:
        if names.count(name) > 1:
            raise TaskError(f"skill '{name}' is given twice; give each skill once")
        if name not in known:
            raise UnknownNameError(f"skill of task {task.name}", name, known)


def get_split(canonical: str) -> Split:
    """The split of a problem, by the hash of its canonical form: 70 % train, 15 % validation, 15 % test.

    A problem generator keeps the problems of the requested split. So the splits do not overlap, whatever the seed.
    """
    bucket = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest()) % 100
    return Split.TRAIN if bucket < 70 else Split.VALIDATION if bucket < 85 else Split.TEST
