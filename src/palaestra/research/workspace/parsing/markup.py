"""Actions in XML tags or JSON, and messages that are an action as a whole."""

from __future__ import annotations

import re

from palaestra.core.records import Message
from palaestra.research.workspace.parsing.base import (
    Action,
    FormatError,
    call_in,
    dump_json,
    join_parts,
    objects,
    split_thinking,
)

_TAG = re.compile(r"</?command>")


class Xml:
    """The action is between `<command>` and `</command>`."""

    instructions = (
        "Think first, then give one command between tags, as it is to be run, with nothing in it escaped:\n"
        "<command>\nls -la\n</command>"
    )

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = split_thinking(message)
        spans: list[tuple[int, int, int, int]] = []
        depth, start = 0, (0, 0)
        for tag in _TAG.finditer(text):
            if tag[0] == "<command>":
                if depth == 0:
                    start = tag.span()
                depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    spans.append((*start, *tag.span()))
        if depth:
            return FormatError(
                "There is a <command> without its </command>, so nothing was run. Send the whole command again; shorter, if your "
                "message was cut off.",
                thinking,
            )
        if len(spans) != 1:
            return FormatError(
                f"Exactly one command between <command> and </command> is expected, and your message has {len(spans) or 'none'}. Nothing "
                "was run. For example:\n<command>\nls -la\n</command>",
                thinking,
            )
        before, first, last, behind = spans[0]
        command = text[first:last].strip("\n")
        if not command.strip():
            return FormatError("The command between the tags is empty. Give the one that is to be run.", thinking)
        return Action(command, thought=join_parts(thinking, text[:before], text[behind:]))


class Json:
    """The action is a JSON object with a `thought` and a `command`: a text, or a call with name and arguments."""

    instructions = (
        'Answer with one JSON object and nothing else:\n{"thought": "why", "command": "ls -la"}\n'
        'Line breaks within a text are written \\n, and quotes \\".'
    )

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = split_thinking(message)
        value = next((item for item in objects(text) if "command" in item), None)
        if value is None:
            return FormatError(
                'One JSON object with a "command" is expected, and your message holds none that can be read. Nothing was run. For '
                'example: {"thought": "I look around first.", "command": "ls -la"}',
                thinking,
            )
        thought, command = value.get("thought", ""), value["command"]
        thought = join_parts(thinking, thought if isinstance(thought, str) else dump_json(thought))
        if isinstance(command, dict) and (call := call_in(command)):
            return Action(calls=(call,), thought=thought)
        if not isinstance(command, str) or not command.strip():
            return FormatError(
                f'"command" is a text that is not empty; got {dump_json(command)[:80]}. Nothing was run.', thought
            )
        return Action(command.replace("\r\n", "\n").strip("\n"), thought=thought)


class Identity:
    """The whole message is the action."""

    instructions = "Answer with one command and nothing else."

    def __call__(self, message: Message) -> Action | FormatError:
        text = message.text.replace("\r\n", "\n").strip("\n")
        if not text.strip():
            return FormatError("Your message is empty. Answer with one command, for example: ls -la")
        return Action(text)
