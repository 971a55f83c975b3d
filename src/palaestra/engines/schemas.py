"""JSON schemas in the forms that services and models expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.records import Message, TextPart


def response_format(schema: str) -> dict[str, Any]:
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


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
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
    strict: dict[str, Any] = {}
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


def _name(schema: Mapping[str, Any]) -> str:
    """Return a name of the characters that services accept."""
    title = str(schema.get("title", "answer"))
    return (
        "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_-") else "_" for sign in title)[:64] or "answer"
    )
