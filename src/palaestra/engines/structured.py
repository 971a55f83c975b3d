"""Answers of a given shape: JSON that a pydantic model accepts, or a failure that says why not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from palaestra.core.errors import SettingsError
from palaestra.core.records import Completion, Failure, FailureCause, Message, StopReason
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine, Request
from palaestra.engines.schemas import instruct

T = TypeVar("T", bound=BaseModel)
Check = Callable[[int, T], str]

_FENCE = re.compile(r"```[^\S\n]*[\w-]*[^\S\n]*\n(.*?)```", re.DOTALL)
_LONGEST = 1_000_000
"""Characters of an answer that are searched for JSON: from its end, where answers stand."""
_STARTS = 2_000
"""Places in an answer at which JSON is looked for, so that a page of brackets costs no hour."""
_QUOTED = 8_000
"""Characters of a wrong answer that are shown to the model again."""


def ask(
    engine: Engine, questions: Sequence[Request], schema: type[T], *, tries: int = 3, check: Check[T] | None = None
) -> list[T | Failure]:
    """Ask every question, in order, for an answer of the given shape.

    Arguments:
        engine: any. One that can hold its model to a schema (`reads_schema`) is given it; to the others it is
            said in the prompt.
        questions: each for one completion.
        schema: the pydantic model of an answer.
        tries: how often a question is asked at most. After an answer that does not fit, the model is shown
            it again, with what is wrong. All questions that are still open are asked together.
        check: further conditions, by the index of the question; returns what is wrong, or an empty string.

    Returns:
        For each question the answer, or a `Failure`: the engine's own, or `MALFORMED` with the last error.

    Example:
        >>> from palaestra.engines.mock import MockEngine
        >>> class Sum(BaseModel):
        ...     value: int
        >>> said = iter(["four", 'I see: {"value": 4}'])
        >>> ask(MockEngine(lambda request, index: next(said)), [Request((Message("user", "2+2?"),))], Sum)
        [Sum(value=4)]
    """
    if tries < 1:
        raise SettingsError(f"a question is asked at least once; got tries={tries}")
    if any(question.sampling.count != 1 for question in questions):
        raise SettingsError("a question of a given shape has one answer; ask several questions with different seeds")
    shape = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    known = bool(getattr(engine, "reads_schema", False))
    answers: list[T | Failure | None] = [None] * len(questions)
    asked = [replace(q, schema=shape) if known else replace(q, messages=instruct(q.messages, shape)) for q in questions]
    for attempt in range(1, tries + 1):
        open_ = [index for index, answer in enumerate(answers) if answer is None]
        if not open_:
            break
        for index, (said,) in zip(open_, engine.generate([asked[index] for index in open_]), strict=True):
            if isinstance(said, Failure):
                answers[index] = said
                continue
            found = parse(said, schema)
            wrong = found if isinstance(found, str) else check(index, found) if check is not None else ""
            if not wrong and not isinstance(found, str):
                answers[index] = found
            elif attempt == tries:
                began = " ".join(said.text.split())[:80]
                answers[index] = Failure(
                    FailureCause.MALFORMED,
                    f"asked {tries} time(s) for {schema.__name__}; the last answer, {began!r}: {wrong}",
                )
            else:
                seed = Seeds(questions[index].seed).derive("try", attempt).integer()
                asked[index] = replace(asked[index], messages=_again(asked[index], said, wrong), seed=seed)
    return [answer for answer in answers if answer is not None]


def _again(question: Request, said: Completion, wrong: str) -> tuple[Message, ...]:
    """The conversation with the wrong answer and what is wrong with it."""
    told = Message("user", f"That answer cannot be used: {wrong}\nAnswer again: the whole JSON and nothing else.")
    if not said.text.strip():
        return (*question.messages, told)  # Some servers refuse a message without text.
    text = said.text.strip()
    text = text if len(text) <= _QUOTED else text[:_QUOTED] + " [...]"
    return (*question.messages, Message("assistant", text), told)


def parse(said: Completion, schema: type[T]) -> T | str:
    """What the completion says, or what is wrong with it.

    The JSON may be all of the text, stand in a fenced block, or anywhere in prose; where several values fit, the
    last one counts.
    """
    if not said.text.strip():
        return "it is empty"
    errors: list[tuple[int, str]] = []
    for text in candidates(said.text):
        try:
            return schema.model_validate_json(text)
        except ValidationError as error:
            errors.append((len(text), _explain(error)))
    cut = (
        f"it was cut off after {said.usage.completion_tokens} tokens; be shorter. "
        if said.stop_reason is StopReason.LENGTH
        else ""
    )
    # The longest piece of JSON is what was meant as the answer.
    return cut + max(errors, key=lambda pair: pair[0])[1] if errors else f"{cut}there is no JSON in it"


def candidates(text: str) -> Iterator[str]:
    """Pieces of a text that may be the JSON that was asked for, the likeliest first."""
    stripped = text[-_LONGEST:].strip()
    if stripped[:1] in ("{", "["):
        yield stripped
    for block in reversed(_FENCE.findall(stripped)):
        yield block.strip()
    decoder, spans, position = json.JSONDecoder(), [], 0
    for _ in range(_STARTS):
        start = min((at for sign in "{[" if (at := stripped.find(sign, position)) >= 0), default=-1)
        if start < 0:
            break
        try:
            _, position = decoder.raw_decode(stripped, start)
            spans.append((start, position))
        except (ValueError, RecursionError):
            position = start + 1
    for start, end in reversed(spans):
        yield stripped[start:end]


def _explain(error: ValidationError) -> str:
    """The first errors of a validation, in words that a model can act on."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, one['loc'])) or 'the answer'}: {one['msg']}" for one in found[:5]] + (
        [f"and {len(found) - 5} more"] if len(found) > 5 else []
    )
    return "; ".join(lines)
