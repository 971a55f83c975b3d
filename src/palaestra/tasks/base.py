"""The task protocol: problems, how they are asked, and how answers are scored."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from palaestra.core.checks import short_repr
from palaestra.core.errors import SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, Example, Failure, Problem, Score, Split
from palaestra.core.registry import Registry
from palaestra.core.user_code import describe_location

TASKS = Registry("task", "palaestra.tasks")
TASKS.register(
    "math-skills",
    "palaestra.tasks.math.task:MathSkills",
    "procedural mathematics: 18 skills from sums to common divisors, with worked reasoning",
)
TASKS.register(
    "gsm8k",
    "palaestra.tasks.math.gsm8k:GSM8K",
    "grade-school word problems with worked solutions, by path or hub id; slices by number of steps",
)
TASKS.register(
    "math",
    "palaestra.tasks.math.math_dataset:MATH",
    "competition mathematics with worked solutions, by path or hub id; slices by type and level",
)
TASKS.register(
    "code-skills",
    "palaestra.tasks.code.task:CodeSkills",
    "procedural programming: functions and programs put together from parts, run against tests",
)
TASKS.register(
    "humaneval",
    "palaestra.tasks.code.task:HumanEval",
    "HumanEval: functions to complete; evaluate asks all 164, teach divides them by hash; hub or folder",
)
TASKS.register("mbpp", "palaestra.tasks.code.task:MBPP", "MBPP: short functions, the sanitised part; hub or folder")
TASKS.register(
    "code-contests",
    "palaestra.tasks.code.task:CodeContests",
    "CodeContests: programs that read and print; hub or folder",
)
TASKS.register(
    "livecodebench",
    "palaestra.tasks.code.task:LiveCodeBench",
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


EVERY = 0
"""As a number of problems: all that there are."""
LONGEST_ANSWER = 512
"""Tokens that an answer may take, where its task does not say."""

T = TypeVar("T")


@runtime_checkable
class Task(Protocol):
    """Named problem sets with splits, a prompt and a scorer.

    A task never sees a model. It hands out problems, and judges what came back. It may also have

    - `max_tokens`: how long an answer may be, where the user does not say;
    - `drawn = True`: its problems are drawn, so that `EVERY` of them cannot be asked for, only a number;
    - `metrics(attempts)`: figures beside the accuracy, each a `palaestra.core.statistics.Mean`, by name;
    - `check_scoring()`: raises if answers cannot be scored on this machine, for example without a sandbox;
    - `concurrent_scoring = True`: `score` may be called by several threads at once;
    - `shown(skill, count)`: worked examples to show before a problem of `skill` (see `palaestra.tasks.shots`).

    In a problem's metadata `level` and `type` cut the reports, problems with one `group` are never separated, and problems with
    one `content` differ only in wording: they count as one in every interval. `choices` are the possible answers, if closed.
    """

    name: str

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        """Every skill of the task with its subskills."""
        ...

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` different problems of each skill (of `skills`, if given) from `split`; or `EVERY` problem.

        The same arguments give the same problems. Raises `TooFewProblemsError` if there are not that many.
        """
        ...

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Judge an answer. A wrong answer is a `Score` of 0; a broken scorer is a `Failure`."""
        ...


@runtime_checkable
class GenerativeTask(Task, Protocol):
    """A task that can write training examples of any of its skills by itself."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """`count` examples with worked reasoning, all from the train split.

        An empty `subskill` means all of them in turn.
        """
        ...


def make_task(name: str, *, shots: int = 0, **options: Any) -> Task:
    """Build the task that is registered under `name`.

    Arguments:
        shots: worked problems of the train split that come before each question, as earlier turns.

    Raises:
        SettingsError: the task does not take one of the options, or needs one more; names those that it takes.
        TaskError: what is registered is no task.
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
    if not shots:
        return task
    from palaestra.tasks.shots import few_shot

    return few_shot(task, shots)


def task_signature(name: str) -> inspect.Signature:
    """The options that a registered task takes; raises `TaskError` if what is registered is no class."""
    kind = TASKS.get(name)
    if not callable(kind):
        raise TaskError(f"task '{name}' is registered as {short_repr(kind)}; register its class")
    return inspect.signature(kind)


def _check_task(task: Any, name: str) -> None:
    """Raise if a task lacks a part of the protocol, or has no skills."""
    kind = type(task).__name__
    for part in ("name", "skills", "problems", "score"):
        if not hasattr(task, part):
            raise TaskError(f"task '{name}' is no task: {kind} has no '{part}'")
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


def is_drawn(task: Task) -> bool:
    """Whether a task draws its problems, so that a number of them must be asked for."""
    return bool(getattr(task, "drawn", False))


def longest_answer(task: Task) -> int:
    """How many tokens an answer to `task` may take, where the user does not say."""
    return int(getattr(task, "max_tokens", LONGEST_ANSWER))


def take(problems: Sequence[T], per_skill: int, task: Task, split: Split, skill: str) -> Sequence[T]:
    """The first `per_skill` of a skill's problems, or every one; raises `TooFewProblemsError` where there are fewer."""
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


def split_of(canonical: str) -> Split:
    """The one split that a problem belongs to, decided by the hash of its canonical form.

    Seventy in a hundred are for training, fifteen each for validation and test. Whoever draws
    problems keeps those of the split that was asked for, so no seed can make the splits overlap.
    """
    bucket = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest()) % 100
    return Split.TRAIN if bucket < 70 else Split.VALIDATION if bucket < 85 else Split.TEST
