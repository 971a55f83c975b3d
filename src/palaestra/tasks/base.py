"""The task protocol, the registry of tasks, and few-shot prompts.

A task provides problems and scores answers (`Task`). It may generate examples (`GenerativeTask`), describe the data that
a language model writes for it (`WritableTask`), and override optional hooks (`TaskHooks`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from pydantic import BaseModel

from palaestra.core.checks import short_repr
from palaestra.core.errors import SettingsError, TaskError, TooFewProblemsError, UnknownNameError
from palaestra.core.plugins import describe_location
from palaestra.core.records import Attempt, Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.registry import Registry
from palaestra.core.statistics import Mean

EVERY = 0
"""Number of problems that stands for all problems of a data set."""
DEFAULT_MAX_TOKENS = 512
"""Maximum length of an answer, for tasks that do not set their own."""
T = TypeVar("T")
TASKS = Registry("task", "palaestra.tasks")
_TASKS = {
    "math-skills": (
        "math.task:MathSkills",
        "procedural mathematics: 18 skills from sums to common divisors, with worked reasoning",
    ),
    "gsm8k": (
        "math.published:GSM8K",
        "grade-school word problems with worked solutions, by path or hub id; slices by number of steps",
    ),
    "math": (
        "math.published:MATH",
        "competition mathematics with worked solutions, by path or hub id; slices by type and level",
    ),
    "code-skills": (
        "code.task:CodeSkills",
        "procedural programming: functions and programs composed of parts, run against tests",
    ),
    "humaneval": (
        "code.published:HumanEval",
        "HumanEval: functions to complete; evaluate uses all 164, teach splits them by hash; hub or folder",
    ),
    "mbpp": ("code.published:MBPP", "MBPP: short functions, the sanitised part; hub or folder"),
    "code-contests": ("code.published:CodeContests", "CodeContests: programs that read and print; hub or folder"),
    "livecodebench": (
        "code.published:LiveCodeBench",
        "LiveCodeBench: programs and methods, in parts by date; hub or folder",
    ),
    "vision-skills": (
        "vision.task:VisionSkills",
        "procedural pictures of shapes and charts: 18 skills from colours to patterns, with worked reasoning",
    ),
    "tools-skills": (
        "tools.task:ToolsSkills",
        "procedural tool use: 12 skills, plans of one to four calls to 55 typed tools, which are executed",
    ),
    "mnms": (
        "tools.mnms.task:Mnms",
        "m&m's: plans of calls to 33 tools, as JSON nodes or as code, scored by the tools in order; hub or folder",
    ),
    "gqa": ("vision.sets:GQA", "GQA: questions about photographs; hub or folder"),
    "naturalbench": ("vision.sets:NaturalBench", "NaturalBench: pairs of questions and images; hub or folder"),
    "easy-vqa": ("vision.sets:EasyVQA", "easy-VQA: one shape per picture; folder or hub"),
    "nlvr": ("vision.sets:NLVR", "NLVR: is a sentence true of three boxes? folder or hub"),
}
for _name, (_target, _description) in _TASKS.items():
    TASKS.register(_name, f"palaestra.tasks.{_target}", _description)
TASKS.register_prefix(
    "reasoning_gym",
    "palaestra.integrations.reasoning_gym:make_source",
    "procedural data sets of reasoning-gym, one or several joined by +: skills, with curriculum levels as subskills",
)
TASKS.register_prefix(
    "inspect",
    "palaestra.integrations.inspect_ai.source:make_source",
    "tasks of Inspect AI whose solver calls the model once: package/task, file.py or file.py@task",
)


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
        raise SettingsError(f"task '{name}' lacks a required option: {error}") from None
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
            raise TaskError(f"task '{name}' does not implement Task: {kind} has no '{part}'")
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

    max_tokens: int = DEFAULT_MAX_TOKENS
    """Maximum length of an answer, unless the user sets one."""
    is_procedural: bool = False
    """Whether the problems are generated. A procedural task cannot provide `EVERY` problem, only a given number."""
    concurrent_scoring: bool = False
    """Whether several threads may call `score` at once."""
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

    def __init__(self, task: Any) -> None:
        for hook in HOOKS:
            value = getattr(task, hook, None)
            if value is not None and getattr(value, "__func__", value) is not getattr(TaskHooks, hook):
                setattr(self, hook, value)


def get_hooks(task: Any) -> TaskHooks:
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


def check_skills(task: Task, names: Sequence[str]) -> None:
    """Raise for the first of `names` that is not a skill of `task`, or is given twice."""
    known = task.skills()
    for name in names:
        if names.count(name) > 1:
            raise TaskError(f"skill '{name}' is given twice; give each skill once")
        if name not in known:
            raise UnknownNameError(f"skill of task {task.name}", name, known)


def check_choice(task: str, option: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise `SettingsError` if the value of a task's option is not one of `choices`."""
    if value not in choices:
        expected = " or ".join(map(str, choices))
        raise SettingsError(f"option '{option}' of {task}: expected {expected}; got {value!r}")


def get_split(canonical: str) -> Split:
    """The split of a problem, by the hash of its canonical form: 70 % train, 15 % validation, 15 % test.

    A problem generator keeps the problems of the requested split. So the splits do not overlap for any seed.
    """
    bucket = int.from_bytes(hashlib.blake2b(canonical.encode(), digest_size=8).digest()) % 100
    return Split.TRAIN if bucket < 70 else Split.VALIDATION if bucket < 85 else Split.TEST


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
        shown = ((*example.messages, Message("assistant", example.response)) for example in self._shown(skill))
        return tuple(message for turn in shown for message in turn)

    def _find(self, skill: str) -> list[Example]:
        shots: list[Example] = list(get_hooks(self.task).get_shots(skill, self.count))
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
