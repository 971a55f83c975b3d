"""Texts of an agent as actions of OpenEnv, and observations of OpenEnv as texts, by their JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.records import Json, Message, Values
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.base import Options
from palaestra.envs.factory import make_single_turn_env
from palaestra.envs.turn.base import Action
from palaestra.envs.turn.foreign import find_last

Schema: TypeAlias = Values
"""A JSON schema, or the values of its fields."""
_JSON = "json"
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
    fields: Mapping[str, Schema]

    def parse(self, text: str) -> Json | None:
        """Return the action in a text, or `None` if there is none.

        A whole text is the value of a field of texts. The last of its choices, or the last number, is the value of
        other fields. A JSON object may stand inside a text.
        """
        if not self.field:
            return _find_object(text)
        if self.choices:
            choice = find_last(text, self.choices)
            return {self.field: int(choice) if self.kind == "integer" else choice} if choice else None
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


def read_action_format(schema: Schema, action: str = "") -> ActionFormat:
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
    properties = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
    fields = {name: _resolve(schema, field) for name, field in properties.items()}
    if action and action != _JSON and action not in fields:
        raise UnknownNameError("field of the action", action, [*fields, _JSON])
    required = [name for name in schema.get("required", ()) if name in fields]
    names = [action] if action else required if len(required) == 1 else list(fields) if len(fields) == 1 else [_JSON]
    field = fields.get(names[0], {})  # The name `json` may be a field as well.
    kind = str(field.get("type", ""))
    if kind not in _TYPES:
        return ActionFormat("", "", (), fields)
    return ActionFormat(names[0], kind, tuple(str(value) for value in field.get("enum", ())), fields)


def _resolve(schema: Schema, field: Schema) -> Schema:
    """Follow a reference of a field to a definition of its schema."""
    name = str(field.get("$ref", "")).removeprefix("#/$defs/")
    return {**schema.get("$defs", {}).get(name, {}), **{k: v for k, v in field.items() if k != "$ref"}}


def _find_object(text: str) -> Json | None:
    """Return the last JSON object of a text, or `None`.

    >>> _find_object('I call {"a": {"b": 1}} now')
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


def make_sample(fields: Mapping[str, Schema]) -> Json:
    """Make simple values of fields by their schemas."""
    values: Json = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    samples = {}
    for name, field in fields.items():
        choices = field.get("enum", ())
        if "const" in field or choices or field.get("type") in values:
            samples[name] = field["const"] if "const" in field else choices[0] if choices else values[field["type"]]
    return samples


def write_observation(observation: Schema, names: Sequence[str] = ()) -> str:
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


class ServedEpisodes:
    """Plays a turn environment, one episode after the other. A server has one for each session.

    Arguments:
        env_id, env_kwargs: the environment, as for `palaestra train`.

    Example:
        >>> episodes = ServedEpisodes("palaestra/Guess-v0", {})
        >>> episodes.reset(seed=1)["text"]
        'Guess a number from 1 to 8.'
        >>> fields = episodes.step("8")
        >>> fields["text"], fields["reward"], fields["done"]
        ('Lower.', 0.0, False)
    """

    def __init__(self, env_id: str, env_kwargs: Options) -> None:
        self._env = make_single_turn_env(env_id, env_kwargs)
        self._length = 0

    def reset(self, seed: int | None = None, options: Options | None = None) -> Json:
        """Start an episode. Returns the fields of its first observation."""
        conversation, _ = self._env.reset(seed=seed, options=dict(options or {}) or None)
        self._length = 0
        return {**self._describe(conversation.messages), "reward": None, "done": False, "tools": list(self._env.tools)}

    def step(self, message: str, tool_calls: Sequence[Json] = ()) -> Json:
        """Play one turn. Returns the fields of the observation.

        Arguments:
            tool_calls: calls of tools in OpenAI's format.

        Raises:
            EnvError: the episode failed outside the agent. It has no reward.
        """
        action: Action = message
        if tool_calls:
            action = {"role": "assistant", "content": message, "tool_calls": [dict(call) for call in tool_calls]}
        conversation, reward, terminated, truncated, info = self._env.step(action)
        if (failure := info.get("failure")) is not None:
            raise EnvError(f"the episode failed ({failure.cause.value}): {failure.message}")
        return {
            **self._describe(conversation.messages),
            "reward": float(reward),
            "done": terminated or truncated,
            "truncated": truncated,
            "stop_reason": str(info.get("stop_reason", "")),
        }

    def close(self) -> None:
        self._env.close()

    def _describe(self, messages: Sequence[Message]) -> Json:
        """The new messages of the environment, in OpenAI's format and as one text."""
        fresh = [message for message in messages[self._length :] if message.role != "assistant"]
        self._length = len(messages)
        return {"text": "\n".join(message.text for message in fresh), "messages": to_chat_messages(fresh)}
