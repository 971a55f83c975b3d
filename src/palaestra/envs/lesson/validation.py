"""Validate a lesson before it is tokenised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args

from pydantic_core import to_json

from palaestra.core.errors import LessonError, suggest
from palaestra.core.records import Decision, Example, ImagePart, Lesson, Message, Role, TextPart, ToolCall
from palaestra.envs.lesson.state import TEXT_LIMIT

ROLES: tuple[str, ...] = get_args(Role)


def check_lesson(lesson: Any, skills: Collection[str]) -> None:
    """Raise `LessonError` for an invalid lesson. The message is one line and names the first invalid example.

    Arguments:
        skills: the skills of the task; an example may also have an empty skill.
    """
    if not isinstance(lesson, Lesson):
        raise LessonError(f"expected a Lesson as the action; got {_kind(lesson)}")
    _check_tuple("the lesson's examples", lesson.examples, Example)
    _check_tuple("the lesson's decisions", lesson.decisions, Decision)
    if not lesson.examples:
        raise LessonError("a lesson needs at least one example; got none")
    for number, example in enumerate(lesson.examples, start=1):
        _check_example(f"example {number} of {len(lesson.examples)}", example, skills)
    for number, decision in enumerate(lesson.decisions, start=1):
        _check_decision(f"decision {number} of {len(lesson.decisions)}", decision)


def _check_example(where: str, example: Example, skills: Collection[str]) -> None:
    _check_tuple(f"{where}: its messages", example.messages, Message)
    if not example.messages:
        raise LessonError(f"{where} needs a question: it has no messages")
    for message in example.messages:
        if message.role not in ROLES:
            raise LessonError(f"{where}: unknown role {message.role!r}; expected one of {', '.join(ROLES)}")
        if isinstance(message.content, str):
            _check_text(f"{where}: the {message.role}'s message", message.content)
        else:
            _check_tuple(f"{where}: the content of the {message.role}'s message", message.content, TextPart, ImagePart)
            for part in message.content:
                _check_text(f"{where}: a part of a message", part.text if isinstance(part, TextPart) else part.url)
        _check_tuple(f"{where}: the tool_calls of the {message.role}'s message", message.tool_calls, ToolCall)
        for call in message.tool_calls:
            _check_texts(f"{where}: a tool call", call, "name", "arguments", "id")
        _check_texts(f"{where}: a message", message, "tool_call_id")
    if not any(message.has_image or message.text.strip() for message in example.messages):
        raise LessonError(f"{where} needs a question: its messages are empty")
    _check_texts(where, example, "response", "skill", "subskill", "reference")
    if not example.response.strip():
        raise LessonError(f"{where} needs a response that is not empty")
    if not isinstance(example.metadata, Mapping):
        raise LessonError(f"{where}: its metadata must be a mapping; got {_kind(example.metadata)}")
    for name, value in example.metadata.items():
        _check_text(f"{where}: a name in its metadata", name)
        try:
            to_json(value)
        except ValueError as error:
            raise LessonError(f"{where}: its metadata {name[:60]!r} cannot be stored as JSON: {error}") from error
    if example.skill and example.skill not in skills:
        raise LessonError(f"{where}: unknown skill {example.skill[:60]!r}; {suggest(example.skill[:60], skills)}")


def _check_decision(where: str, decision: Decision) -> None:
    _check_texts(where, decision, "skill", "action", "reason")
    if not isinstance(decision.allocation, Mapping):
        raise LessonError(f"{where}: its allocation must be a mapping; got {_kind(decision.allocation)}")
    for name, count in decision.allocation.items():
        _check_text(f"{where}: a name in its allocation", name)
        if type(count) is not int:
            raise LessonError(f"{where}: its allocation {name[:60]!r} must be a whole number; got {_kind(count)}")


def _check_tuple(name: str, value: Any, *kinds: type) -> None:
    expected = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(value, tuple):
        raise LessonError(f"{name} must be a tuple of {expected}; got {_kind(value)}")
    for part in value:
        if not isinstance(part, kinds):
            raise LessonError(f"{name} must be a tuple of {expected}; it holds {_kind(part)}")


def _check_texts(where: str, record: Any, *names: str) -> None:
    for name in names:
        _check_text(f"{where}: its {name}", getattr(record, name))


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise LessonError(f"{name} must be a text; got {_kind(value)}")
    if len(value) > TEXT_LIMIT:
        raise LessonError(f"{name} must have at most {TEXT_LIMIT} characters; got {len(value)}")


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
