"""Texts of an agent as actions of OpenEnv, and observations of OpenEnv as texts, by their JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.core.errors import EnvError, UnknownNameError

JSON = "json"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TYPES = {"string", "integer", "number", "boolean"}


@dataclass(frozen=True)
class ActionFormat:
    """How the text of an agent becomes an action.

    Arguments:
        field: the field that contains the text; empty if the text is a JSON object.
        kind: the type of the field in the schema.
        choices: the values that the field accepts; empty for any.
        fields: all fields with their schemas.
    """

    field: str
    kind: str
    choices: tuple[str, ...]
    fields: Mapping[str, Mapping[str, Any]]

    def parse(self, text: str) -> dict[str, Any] | None:
        """Return the action in a text, or `None` if there is none.

        A whole text is the value of a field of texts. The last of its choices, or the last number, is the value of
        other fields. A JSON object may stand inside a text.
        """
        if not self.field:
            return find_object(text)
        if self.choices:
            pattern = "|".join(re.escape(choice) for choice in sorted(self.choices, key=len, reverse=True))
            matches = re.findall(rf"(?<![\w-])(?:{pattern})(?!\w)", text, re.IGNORECASE)
            values = {choice.lower(): choice for choice in self.choices}
            choice = values[matches[-1].lower()] if matches else None
            return None if choice is None else {self.field: int(choice) if self.kind == "integer" else choice}
        if self.kind == "string":
            return {self.field: text}
        if self.kind == "boolean":
            words = re.findall(r"\b(?:true|false)\b", text.lower())
            return {self.field: words[-1] == "true"} if words else None
        numbers = _NUMBER.findall(text)
        if not numbers or (self.kind == "integer" and "." in numbers[-1]):
            return None
        return {self.field: int(numbers[-1]) if self.kind == "integer" else float(numbers[-1])}

    def describe(self) -> str:
        """Describe the expected text in one sentence; empty for any text."""
        if self.choices:
            return f"Actions: {', '.join(self.choices)}."
        if not self.field:
            return f"An action is a JSON object with {', '.join(self.fields)}."
        return {"string": "", "boolean": "An action is true or false."}.get(self.kind, "An action is a number.")

    def sample(self) -> str:
        """Write an action, for a comparison of episodes."""
        if self.field:
            return self.choices[0] if self.choices else "true" if self.kind == "boolean" else "1"
        return json.dumps(make_sample(self.fields))


def read_action_format(schema: Mapping[str, Any], action: str = "") -> ActionFormat:
    """Choose the format of actions by their schema.

    Arguments:
        schema: the JSON schema of an action of OpenEnv.
        action: the name of the field for the text, or `json`; by default the only required field, or the only field,
            if it has a simple type, and `json` otherwise.

    Raises:
        UnknownNameError: there is no such field.

    >>> schema = {"properties": {"move": {"enum": ["up", "down"], "type": "string"}, "metadata": {}}, "required": ["move"]}
    >>> read_action_format(schema).parse("I go up.")
    {'move': 'up'}
    """
    fields = {
        name: resolve(schema, field) for name, field in schema.get("properties", {}).items() if name != "metadata"
    }
    if action and action != JSON and action not in fields:
        raise UnknownNameError("field of the action", action, [*fields, JSON])
    required = [name for name in schema.get("required", ()) if name in fields]
    names = [action] if action else required if len(required) == 1 else list(fields) if len(fields) == 1 else [JSON]
    if names[0] == JSON and JSON not in fields:
        return ActionFormat("", "", (), fields)
    field = fields[names[0]]
    kind = str(field.get("type", ""))
    choices = tuple(str(value) for value in field.get("enum", ()))
    if kind not in _TYPES:
        return ActionFormat("", "", (), fields)
    return ActionFormat(names[0], kind, choices, fields)


def resolve(schema: Mapping[str, Any], field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a reference of a field to a definition of its schema."""
    name = str(field.get("$ref", "")).removeprefix("#/$defs/")
    return {**schema.get("$defs", {}).get(name, {}), **{k: v for k, v in field.items() if k != "$ref"}}


def find_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object of a text, or `None`.

    >>> find_object('I call {"a": {"b": 1}} now')
    {'a': {'b': 1}}
    """
    decoder, position, last = json.JSONDecoder(), 0, None
    while (position := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, position)
            last = value
        except (ValueError, RecursionError):
            position += 1
    return last


def make_sample(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Make simple values of fields by their schemas."""
    values: dict[str, Any] = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    samples = {}
    for name, field in fields.items():
        choices = field.get("enum", ())
        if "const" in field or choices or field.get("type") in values:
            samples[name] = field["const"] if "const" in field else choices[0] if choices else values[field["type"]]
    return samples


def write_observation(observation: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """Write an observation as text: its fields, or its metadata if it has no others.

    Arguments:
        names: the fields to write; by default all but the metadata, without empty ones.

    Raises:
        EnvError: a field of `names` is missing.

    >>> write_observation({"board": "x..", "score": 2, "metadata": {"step": 1}})
    'board: x..\\nscore: 2'
    >>> write_observation({"message": "Hello", "metadata": {}})
    'Hello'
    """
    missing = [name for name in names if name not in observation]
    if missing:
        raise EnvError(f"the observation has no field {missing[0]!r}; its fields are {', '.join(observation)}")
    fields = {name: observation[name] for name in names or observation if names or name != "metadata"}
    if not names:
        fields = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
        fields = fields or dict(observation.get("metadata") or {})
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return "\n".join(texts.values() if len(texts) == 1 else (f"{name}: {text}" for name, text in texts.items()))
