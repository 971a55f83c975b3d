"""JSON schemas as services and models want them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.records import Message, TextPart


def response_format(schema: str) -> dict[str, Any]:
    """The `response_format` of a chat completion that is to follow `schema`."""
    data = json.loads(schema)
    strict = strict_schema(data)
    named = {"name": _name(data), "schema": strict if strict is not None else data, "strict": strict is not None}
    return {"type": "json_schema", "json_schema": named}


def instruct(messages: Sequence[Message], schema: str) -> tuple[Message, ...]:
    """The conversation with the schema in its last message, for a model that nothing else holds to it."""
    said = f"\n\nAnswer with one JSON value and nothing else. It must follow this JSON schema:\n{schema}"
    last = messages[-1]
    if isinstance(last.content, str):
        return (*messages[:-1], Message(last.role, last.content + said))
    return (*messages[:-1], Message(last.role, (*last.content, TextPart(said))))


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in the form that a service can enforce token by token, or `None` where it has none.

    In that form every property of an object is required and there are no others. What had a default is
    then always said; pydantic checks the rest afterwards. An object with free keys has no such form.

    >>> strict_schema({"type": "object", "properties": {"a": {"type": "integer", "default": 1}}})
    {'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'required': ['a'], 'additionalProperties': False}
    >>> strict_schema({"type": "object", "additionalProperties": {"type": "integer"}}) is None
    True
    """
    if schema.get("type") != "object":
        return None  # The outermost value has to be an object.
    try:
        made = _strict(schema)
    except _NotStrict:
        return None
    assert isinstance(made, dict)
    return made


class _NotStrict(Exception):
    """The schema allows keys that it does not name."""


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}  # Nothing may stand beside a reference.
    made: dict[str, Any] = {}
    for name, value in node.items():
        if name in ("properties", "$defs"):
            made[name] = {key: _strict(part) for key, part in value.items()}
        elif name == "oneOf":
            made["anyOf"] = _strict(value)
        elif name not in ("default", "title", "discriminator", "examples"):
            made[name] = _strict(value) if name in ("items", "anyOf", "allOf") else value
    if node.get("type") == "object":
        if node.get("additionalProperties") not in (None, False) or not node.get("properties"):
            raise _NotStrict
        made["required"] = list(node["properties"])
        made["additionalProperties"] = False
    elif "prefixItems" in node or ("type" not in node and not {"anyOf", "oneOf", "allOf", "enum", "const"} & set(node)):
        raise _NotStrict
    return made


def _name(schema: Mapping[str, Any]) -> str:
    """A name of the letters that services accept."""
    title = str(schema.get("title", "answer"))
    return (
        "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_-") else "_" for sign in title)[:64] or "answer"
    )
