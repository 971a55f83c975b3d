"""Check what a task returns. Users write tasks too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from palaestra.core.checks import short_repr
from palaestra.core.errors import TaskError, TooFewProblemsError
from palaestra.core.plugins import describe_location
from palaestra.core.records import Example, ImagePart, Message, Problem, Role, Split, TextPart
from palaestra.tasks.base import GenerativeTask, Task

_TEXTS = ("id", "reference", "skill", "subskill")


def draw_problems(task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
    """Call `task.problems` and check the result.

    Raises:
        TaskError: the result is not a list of valid problems with unique ids. The message names file and line of the method.
        TooFewProblemsError: the list is empty.
    """
    problems: Any = task.problems(split, per_skill, seed, skills)
    if not isinstance(problems, list | tuple):
        raise _wrong(task, problems, "a list of Problem")
    if not problems:
        raise TooFewProblemsError(f"task '{task.name}' has no {split} problems; ask for another split")
    seen: set[str] = set()
    for problem in problems:
        if not isinstance(problem, Problem):
            raise _wrong(task, problem, "a list of Problem", " in a list")
        for name in _TEXTS:
            if not isinstance(getattr(problem, name), str):
                raise _wrong(task, getattr(problem, name), "a text", f" as the {name} of a problem")
        if not isinstance(problem.messages, tuple) or not all(isinstance(m, Message) for m in problem.messages):
            raise _wrong(task, problem.messages, "a tuple of Message", " as the messages of a problem")
        for message in problem.messages:
            _check_message(task, message)
        if not isinstance(problem.metadata, Mapping):
            raise _wrong(task, problem.metadata, "a mapping", " as the metadata of a problem")
        if problem.id in seen:
            raise _wrong(task, problem.id, "ids that differ", " as the id of two problems")
        seen.add(problem.id)
    return list(problems)


def write_examples(
    task: GenerativeTask, skill: str, subskill: str, count: int, generator: np.random.Generator
) -> tuple[Example, ...]:
    """Call `task.write_examples` and check the result.

    Raises:
        TaskError: the result is not a list of at most `count` examples. The message names file and line of the method.
    """
    returned: Any = task.write_examples(skill, subskill, count, generator)
    what = short_repr(returned)
    if isinstance(returned, Iterable) and not isinstance(returned, str | Mapping):
        examples = tuple(returned)
        if all(isinstance(example, Example) for example in examples):
            if len(examples) <= count:
                return examples
            what = f"{len(examples)} examples"
    raise TaskError(
        f"{type(task).__name__}.write_examples returned {what}{describe_location(task.write_examples)}; "
        f"expected a list of {count} Example"
    )


def _check_message(task: Task, message: Message) -> None:
    if message.role not in get_args(Role):
        raise _wrong(task, message.role, f"one of {', '.join(get_args(Role))}", " as the role of a message")
    parts = (message.content,) if isinstance(message.content, str) else message.content
    if not isinstance(parts, tuple) or not all(isinstance(part, str | TextPart | ImagePart) for part in parts):
        raise _wrong(task, message.content, "a text, or a tuple of TextPart and ImagePart", " as a message's content")


def _wrong(task: Task, value: Any, expected: str, where: str = "") -> TaskError:
    return TaskError(
        f"{type(task).__name__}.problems returned {short_repr(value)}{where}{describe_location(task.problems)}; expected {expected}"
    )
