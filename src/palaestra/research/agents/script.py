"""Plays the actions of a file in order, regardless of the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Message, ToolCall
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.agents.base import Agent, AgentContext, Halt, absolute_path, count_turns

MARK = "%%"
"""The line between two actions."""
ALONE = ("validate", "submit")
"""Commands that always fill a whole line."""


class ScriptAgent(Agent):
    """Plays a file of actions and gives up after the last one.

    An action is a command as it would be typed. A line `%%` separates two actions:

        cat strategy.py
        %%
        create strategy.py
        ...
        end_of_file
        %%
        submit

    A `.jsonl` file has one JSON value per line: a text, or a tool call such as `{"name": "bash", "arguments":
    {"command": "ls"}}`. `{task}` in the file's name is replaced by the name of the task.

    Raises:
        SettingsError: the file does not exist or cannot be read.
    """

    takes = "FILE"
    parser = "identity"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not argument:
            raise SettingsError("the agent 'script' plays a file; name it as script:FILE")
        self.messages = read_script(Path(argument.replace("{task}", context.task.name)).expanduser())
        self._calls = any(message.tool_calls for message in self.messages)
        if self._calls and not all(message.tool_calls for message in self.messages):
            raise SettingsError(f"the script {argument} has texts and calls of tools; it can have the one or the other")
        if len(self.messages) == 1 and (line := _find_separate(self.messages[0].text)):
            self.note = (
                f"the script {argument} is one action, with '{line}' in a line of its own; actions are separated by "
                f"a line {MARK}"
            )

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        return absolute_path(argument)

    def environment(self) -> dict[str, Any]:
        return {"tools": True} if self._calls else {"parser": self.parser, "tools": False}

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = count_turns(conversation)
        if turn >= len(self.messages):
            return Halt(TurnStopReason.GAVE_UP, f"the script has {len(self.messages)} actions, none of which submitted")
        return self.messages[turn]


def read_script(path: Path) -> list[Message]:
    """Read the actions of a file as messages.

    Raises:
        SettingsError: the file does not exist, holds no action, or has an invalid JSON line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the script {path} cannot be read: {error}") from error
    if path.suffix == ".jsonl":
        messages = [_parse_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    else:
        messages = [Message("assistant", action) for action in _split_actions(text)]
    if not messages:
        raise SettingsError(f"the script {path} holds no action; a line {MARK} stands between two of them")
    return messages


def _split_actions(text: str) -> list[str]:
    pieces: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == MARK:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [action for piece in pieces if (action := "\n".join(piece).strip("\n")).strip()]


def _find_separate(action: str) -> str:
    """Return a line of an action that looks like another action, as written by a user who does not know the separator."""
    lines = [line.strip() for line in action.splitlines() if line.strip()]
    return next((line for line in lines if len(lines) > 1 and line in ALONE), "")


def _parse_line(path: Path, number: int, line: str) -> Message:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{path}, line {number}, is not JSON: {error}") from error
    if isinstance(value, str):
        return Message("assistant", value)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        call = ToolCall(value["name"], json.dumps(value.get("arguments", {})), f"call_{number}")
        return Message("assistant", str(value.get("thought", "")), (call,))
    raise SettingsError(
        f"{path}, line {number}: expected a text, or an object with name and arguments; got {line[:80]}"
    )
