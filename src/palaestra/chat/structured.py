"""Structured output: JSON answers that a pydantic model validates, with retries, and schemas in the strict form of services."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from palaestra.core.records import (
    Completion,
    Engine,
    Failure,
    FailureCause,
    Json,
    Message,
    Request,
    StopReason,
    TextPart,
    reads_schema,
)
from palaestra.core.seeding import Seeds

T = TypeVar("T", bound=BaseModel)
Check = Callable[[int, T], str]

_FENCE = re.compile(r"```[^\S\n]*[\w-]*[^\S\n]*\n(.*?)```", re.DOTALL)
_MAX_SEARCHED = 1_000_000
"""Number of characters at the end of an answer that are searched for JSON."""
_MAX_STARTS = 2_000
"""Maximum number of positions at which JSON is parsed. It bounds the time for an answer full of brackets."""
_MAX_QUOTE = 8_000
"""Maximum number of characters of a wrong answer in the retry prompt."""


def ask(
    engine: Engine, questions: Sequence[Request], schema: type[T], *, tries: int = 3, check: Check[T] | None = None
) -> list[T | Failure]:
    """Ask every question until `schema` validates the answer.

    Arguments:
        engine: any engine. If it enforces schemas (`reads_schema`), it receives the schema; otherwise the prompt
            describes it.
        questions: requests for one completion each.
        schema: the pydantic model of an answer.
        tries: maximum number of calls per question. After an invalid answer, the model sees it again with the error.
            Questions without a valid answer are sent in one batch.
        check: further conditions, by the index of the question; returns the error, or an empty string.

    Returns:
        For each question the answer, or a `Failure`: the engine's own, or `MALFORMED` with the last error.

    Example:
        >>> from palaestra.engines.mock import MockEngine
        >>> class Sum(BaseModel):
        ...     value: int
        >>> answers = iter(["four", 'I see: {"value": 4}'])
        >>> ask(MockEngine(lambda request, index: next(answers)), [Request((Message("user", "2+2?"),))], Sum)
        [Sum(value=4)]
    """
    shape = json.dumps(schema.model_json_schema(), ensure_ascii=False)
    enforced = reads_schema(engine)
    requests = [
        replace(question, schema=shape) if enforced else replace(question, messages=instruct(question.messages, shape))
        for question in questions
    ]
    answers: list[T | Failure | None] = [None] * len(questions)
    for attempt in range(1, tries + 1):
        pending = [index for index, answer in enumerate(answers) if answer is None]
        if not pending:
            break
        for index, (reply,) in zip(pending, engine.generate([requests[index] for index in pending]), strict=True):
            if isinstance(reply, Failure):
                answers[index] = reply
                continue
            value = parse_answer(reply, schema)
            problem = value if isinstance(value, str) else check(index, value) if check is not None else ""
            if not problem and not isinstance(value, str):
                answers[index] = value
            elif attempt == tries:
                start = " ".join(reply.text.split())[:80]
                answers[index] = Failure(
                    FailureCause.MALFORMED,
                    f"no valid {schema.__name__} after {tries} call(s); the last answer, {start!r}: {problem}",
                )
            else:
                seed = Seeds(questions[index].seed).derive("try", attempt).integer()
                messages = _add_retry(requests[index].messages, reply, problem)
                requests[index] = replace(requests[index], messages=messages, seed=seed)
    return [answer for answer in answers if answer is not None]


def _add_retry(messages: tuple[Message, ...], reply: Completion, problem: str) -> tuple[Message, ...]:
    """Append the invalid answer and its error to the conversation."""
    retry = Message("user", f"That answer cannot be used: {problem}\nAnswer again: the whole JSON and nothing else.")
    text = reply.text.strip()
    if not text:
        return (*messages, retry)  # Some servers reject a message without text.
    text = text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + " [...]"
    return (*messages, Message("assistant", text), retry)


def parse_answer(reply: Completion, schema: type[T]) -> T | str:
    """Return the validated answer in a completion, or the error as text.

    The JSON may be the whole text, a fenced block, or part of prose. The last valid value is used.
    """
    if not reply.text.strip():
        return "it is empty"
    errors: list[tuple[int, str]] = []
    for text in find_candidates(reply.text):
        try:
            return schema.model_validate_json(text)
        except ValidationError as error:
            errors.append((len(text), _explain(error)))
    cut = (
        f"it was cut off after {reply.usage.completion_tokens} tokens; be shorter. "
        if reply.stop_reason is StopReason.LENGTH
        else ""
    )
    # The longest JSON value is most likely the intended answer.
    return cut + max(errors, key=lambda pair: pair[0])[1] if errors else f"{cut}there is no JSON in it"


def find_candidates(text: str) -> Iterator[str]:
    """Yield the parts of a text that may be the JSON answer, the most likely first."""
    stripped = text[-_MAX_SEARCHED:].strip()
    if stripped[:1] in ("{", "["):
        yield stripped
    for block in reversed(_FENCE.findall(stripped)):
        yield block.strip()
    decoder, spans, position = json.JSONDecoder(), [], 0
    for _ in range(_MAX_STARTS):
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
    """Describe the first errors of a validation for the model."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, detail['loc'])) or 'the answer'}: {detail['msg']}" for detail in details[:5]]
    if len(details) > 5:
        lines.append(f"and {len(details) - 5} more")
    return "; ".join(lines)


def response_format(schema: str) -> Json:
    """Return the `response_format` of a chat completion for `schema`."""
    data = json.loads(schema)
    strict = strict_schema(data)
    named = {"name": _name(data), "schema": strict if strict is not None else data, "strict": strict is not None}
    return {"type": "json_schema", "json_schema": named}


def instruct(messages: Sequence[Message], schema: str) -> tuple[Message, ...]:
    """Add the schema to the last message, for models whose engine does not enforce it."""
    instruction = f"\n\nAnswer with one JSON value and nothing else. It must follow this JSON schema:\n{schema}"
    last = messages[-1]
    if isinstance(last.content, str):
        return (*messages[:-1], Message(last.role, last.content + instruction))
    return (*messages[:-1], Message(last.role, (*last.content, TextPart(instruction))))


def strict_schema(schema: Json) -> Json | None:
    """Convert a schema to the strict form that services enforce during decoding; `None` if that is not possible.

    In the strict form every property of an object is required, and no others are allowed. Objects with free keys have
    no strict form. Conditions that the form does not have are validated by pydantic afterwards.

    >>> strict_schema({"type": "object", "properties": {"a": {"type": "integer", "default": 1}}})
    {'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'required': ['a'], 'additionalProperties': False}
    >>> strict_schema({"type": "object", "additionalProperties": {"type": "integer"}}) is None
    True
    """
    if schema.get("type") != "object":
        return None  # The outermost value must be an object.
    try:
        strict = _strict(schema)
    except _NotStrictError:
        return None
    assert isinstance(strict, dict)
    return strict


class _NotStrictError(Exception):
    """The schema allows keys that it does not name."""


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}  # A reference may have no siblings.
    strict: Json = {}
    for name, value in node.items():
        if name in ("properties", "$defs"):
            strict[name] = {key: _strict(part) for key, part in value.items()}
        elif name == "oneOf":
            strict["anyOf"] = _strict(value)
        elif name not in ("default", "title", "discriminator", "examples"):
            strict[name] = _strict(value) if name in ("items", "anyOf", "allOf") else value
    if node.get("type") == "object":
        if node.get("additionalProperties") not in (None, False) or not node.get("properties"):
            raise _NotStrictError
        strict["required"] = list(node["properties"])
        strict["additionalProperties"] = False
    elif "prefixItems" in node or ("type" not in node and not {"anyOf", "oneOf", "allOf", "enum", "const"} & set(node)):
        raise _NotStrictError
    return strict


def _name(schema: Json) -> str:
    """Return a name with only the characters that services accept."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title", "answer")))[:64] or "answer"
