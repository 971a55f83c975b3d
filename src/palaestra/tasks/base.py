"""The task protocol, the registry of tasks, and few-shot prompts.

A task provides problems and scores answers (`Task`). It may generate examples (`GenerativeTask`), describe the data that
a language model writes for it (`WritableTask`), and override optional hooks (`TaskHooks`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from pydantic import BaseModel

from palaestra.core.errors import SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Attempt, Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.registry import Registry, check_signature, describe_location
from palaestra.core.settings import check_options, short_repr
from palaestra.core.statistics import Mean
from palaestra.core.tables import load_table
from palaestra.tasks.sources import is_data

EVERY = 0
"""Number of problems that stands for all problems of a data set."""
_DEFAULT_MAX_TOKENS = 512
"""Maximum length of an answer, for tasks that do not set their own."""
T = TypeVar("T")
TASKS = Registry("task", "palaestra.tasks")
for _name, (_target, _description) in load_table(__file__, "tasks").items():
    TASKS.register(_name, f"palaestra.tasks.{_target}", _description)
TASKS.register_matching(
    is_data,
    "FILE, FOLDER or hf:NAME",
    "palaestra.tasks.data:name_data",
    "your own data: jsonl, json, csv, tsv, parquet, or the hub",
)


def make_task(name: str, *, shots: int = 0, **options: Any) -> Task:
    """Build a task by its name, or from a file of data (`palaestra.tasks.data`).

    Arguments:
        name: a registered name, `questions.jsonl`, a folder, `hf:owner/name`, or `FILE.py:Class`.
        shots: worked problems of the train split that precede each question as earlier turns.

    Raises:
        SettingsError: an option is unknown or missing. The message lists the options of the task.
        TaskError: the registered object does not implement `Task`.
    """
    kind, signature = TASKS.get(name), task_signature(name)
    check_options(f"task '{name}'", options, (*signature.parameters, "shots"))
    try:
        signature.bind(**options)
    except TypeError as error:
        raise SettingsError(f"task '{name}' lacks a required option: {error}") from None
    task: Task = kind(**options)
    _check_task(task, name)
    return few_shot(task, shots) if shots else task


def task_signature(name: str) -> inspect.Signature:
    """The options of a task; raises `TaskError` if the registered object is not a class."""
    kind = TASKS.get(name)
    if not callable(kind):
        raise TaskError(f"task '{name}' is registered as {short_repr(kind)}; register its class")
    return inspect.signature(kind)


def _check_task(task: Task, name: str) -> None:
    """Raise if a task does not implement the protocol, or has no skills."""
    kind = type(task).__name__
    for part in ("name", "skills", "problems", "score"):
        if not hasattr(task, part):
            raise TaskError(f"task '{name}' does not implement Task: {kind} has no '{part}'")
    check_signature(task.problems, f"{kind}.problems", "split", "per_skill", "seed", "skills", error=TaskError)
    check_signature(task.score, f"{kind}.score", "problem", "completion", error=TaskError)
    skills = task.skills()
    if not isinstance(skills, Mapping) or not skills or any(isinstance(parts, str) for parts in skills.values()):
        raise TaskError(
            f"{kind}.skills returned {short_repr(skills)}{describe_location(task.skills)}; "
            "expected a mapping of each skill to a tuple of its subskills"
        )


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

    max_tokens: int = _DEFAULT_MAX_TOKENS
    """Maximum length of an answer, unless the user sets one."""
    lesson_size: int = 160
    """Examples in one lesson of the task's own generators, unless the user sets a number."""
    epochs: int = 4
    """Epochs of each training on them, unless the user sets a number."""
    learning_rate: float = 0.0
    """Peak learning rate of these trainings if they train all weights, unless the user sets one; 0: the student's own."""
    is_procedural: bool = False
    """Whether the problems are generated. A procedural task cannot provide `EVERY` problem, only a given number."""
    concurrent_scoring: bool = False
    """Whether several threads may call `score` at once."""
    student: str = "nano"
    """The embedded model that fits the task, unless the user names a model."""
    main: str = ""
    """The name of the main task, for a group of tasks."""
    answer_lengths: Mapping[str, int] = MappingProxyType({})
    """`max_tokens` of each task by name, for a group of tasks."""

    def check_scoring(self) -> None:
        """Raise if answers cannot be scored on this machine, for example because no sandbox is installed."""

    def metrics(self, attempts: Sequence[Attempt]) -> Mapping[str, Mean]:
        """Metrics in addition to accuracy, by name."""
        return {}

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """Worked examples of `skill` for few-shot prompts (see `FewShot`), the same on every call."""
        return []

    def prepare(self, data: Sequence[Any]) -> None:
        """Prepare data that a language model wrote, before the first datum becomes an example.

        Use it for work that is faster in a batch, such as image generation. An invalid datum must not raise here.
        """

    def to_problem(self, example: Example) -> Problem | None:
        """The problem that an example poses, for the quality checks; None if its answer cannot be scored."""
        return None

    def solve(self, example: Example) -> str | None:
        """The answer to an example's question, computed from the question; None if the task cannot solve it.

        The quality check `scorer` scores the response of a written example against it. It must not depend on the
        response and the reference, which a language model wrote.
        """
        return None

    def recognize_skill(self, example: Example) -> tuple[str, str] | None:
        """The skill and subskill of an example's question; None if unknown. The subskill may be empty.

        An example that a language model wrote for another skill is taught, and counted, under this one.
        """
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


class _AdaptedHooks(TaskHooks):
    """The hooks of a task that does not inherit from `TaskHooks`."""

    def __init__(self, task: object) -> None:
        for hook in HOOKS:
            value = getattr(task, hook, None)
            if value is not None and getattr(value, "__func__", value) is not getattr(TaskHooks, hook):
                setattr(self, hook, value)


def get_hooks(task: object) -> TaskHooks:
    """The optional hooks of any task, with the defaults of `TaskHooks` where it defines none."""
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
        """`per_skill` different problems of each skill (of `skills`, if given) from `split`; all problems if it is `EVERY`.

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
    """The first `per_skill` problems of a skill, or all for `EVERY`; raises `TooFewProblemsError` if it has fewer."""
    if len(problems) < per_skill:
        raise TooFewProblemsError(
            f"skill '{skill}' of {task.name} has {len(problems)} {split} problems, fewer than {per_skill}; "
            "request fewer, or omit the skill",
            len(problems),
        )
    return problems if per_skill == EVERY else problems[:per_skill]


def check_skills(task: Task, names: Sequence[str], subskill: str = "") -> None:
    """Raise for the first of `names` that is not a skill of `task`, or is given twice; and for a `subskill` that one lacks."""
    known = task.skills()
    for name in names:
        if names.count(name) > 1:
            raise TaskError(f"skill '{name}' is given twice; give each skill once")
        if name not in known:
            raise UnknownNameError(f"skill of task {task.name}", name, known)
        if subskill and subskill not in known[name]:
            raise UnknownNameError(f"subskill of {name}", subskill, known[name])


def check_choice(task: str, option: str, value: object, choices: Sequence[object]) -> None:
    """Raise `SettingsError` if the value of a task's option is not one of `choices`."""
    if value not in choices:
        expected = " or ".join(map(str, choices))
        raise SettingsError(f"option '{option}' of {task}: expected {expected}; got {value!r}")


def get_split(canonical: str, train: int = 70, validation: int = 15) -> Split:
    """The split of a problem, by the hash of its canonical form: 70 % train, 15 % validation, 15 % test.

    A problem generator keeps the problems of the requested split. So the splits do not overlap for any seed.
    """
    bucket = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest()) % 100
    return Split.TRAIN if bucket < train else Split.VALIDATION if bucket < train + validation else Split.TEST


def part_by_hash(identity: str) -> Split:
    """The part of a problem of a data set without published parts: 20 % train, 20 % validation, 60 % test.

    It depends on the id of the problem alone, not on a seed or on other problems.

    >>> str(part_by_hash("HumanEval/0")), str(part_by_hash("HumanEval/3"))
    ('test', 'train')
    """
    return get_split(f"part|{identity}", train=20, validation=20)


def part_by_date(day: date, validation_from: date, test_from: date) -> Split:
    """The part of a problem by its date: the oldest are train, the newest test.

    >>> str(part_by_date(date(2024, 1, 1), date(2023, 9, 1), date(2024, 1, 1)))
    'test'
    """
    if day >= test_from:
        return Split.TEST
    return Split.VALIDATION if day >= validation_from else Split.TRAIN


class FewShot:
    """A task with `count` worked problems before each question. All other attributes are those of `task`.

    Raises:
        SettingsError: the count is not a positive integer.
        TaskError: the task has no worked problems.
    """

    def __init__(self, task: Task, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SettingsError(f"option 'shots' of {task.name}: expected an integer of at least 0; got {count!r}")
        if not get_hooks(task).overrides("get_shots"):
            raise TaskError(f"task '{task.name}' has no worked problems; set shots to 0")
        self.task, self.count, self.name = task, count, task.name
        self._shown = cache(self._find)

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # Not set yet while the object is copied.
            raise AttributeError(name)
        return getattr(self.task, name)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return self.task.skills()

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [
            replace(problem, messages=(*self._turns(problem.skill), *problem.messages))
            for problem in self.task.problems(split, per_skill, seed, skills)
        ]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return self.task.score(problem, completion)

    def _turns(self, skill: str) -> tuple[Message, ...]:
        shown = [(*example.messages, Message("assistant", example.response)) for example in self._shown(skill)]
        return sum(shown, ())

    def _find(self, skill: str) -> list[Example]:
        shots = get_hooks(self.task).get_shots(skill, self.count)
        if len(shots) < self.count:
            raise TaskError(f"task '{self.name}' has only {len(shots)} worked problems; got shots={self.count}")
        return shots


class GenerativeFewShot(FewShot):
    """Few-shot prompts for a task that generates examples."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """Examples of the task with few-shot prompts, without the worked problems themselves."""
        assert isinstance(self.task, GenerativeTask)
        seen = {example.messages for example in self._shown(skill)}
        examples: list[Example] = []
        for _ in range(10):
            written = self.task.write_examples(skill, subskill, count + len(seen), generator)
            examples += [example for example in written if example.messages not in seen]
            if len(examples) >= count:
                break
        else:
            raise TaskError(
                f"{self.name} has no train problems of {skill} besides the {self.count} worked problems in the prompt"
            )
        turns = self._turns(skill)
        return [replace(example, messages=(*turns, *example.messages)) for example in examples[:count]]


def few_shot(task: Task, count: int) -> Task:
    """`task` with `count` worked problems before each question."""
    kind = GenerativeFewShot if isinstance(task, GenerativeTask) else FewShot
    return kind(task, count)


class UnusableError(ValueError):
    """A valid datum cannot become an example. The message tells the writer why."""


@runtime_checkable
class WritableTask(Task, Protocol):
    """A task for which a language model can write data."""

    datum: type[BaseModel]
    """The schema of a datum. The writer reads its descriptions."""

    def brief(self) -> str:
        """A description of the task's problems and of a good datum, for the writer."""
        ...

    def make_example(self, datum: Any, skill: str, subskill: str) -> Example:
        """The training example of a datum: with the prompt of an evaluation and a response in the scored form.

        Raises:
            UnusableError: the datum cannot become an example.
        """
        ...
