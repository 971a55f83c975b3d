"""Actions that are tool calls: those of the message, or written in its text by models served without tools."""

from __future__ import annotations

import re

from palaestra.core.records import Message, ToolCall
from palaestra.research.workspace.parsing.base import (
    Action,
    FormatError,
    call_in,
    dump_json,
    join_parts,
    objects,
    split_thinking,
)

_TAG = re.compile(r"</?tool_call>")
_ENDED = re.compile(r"\s*+(?:<tool_call>|\Z)")
_FUNCTION = re.compile(r"<function=([^<>\s]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]{1,200})>")
MOST_PASSED = 4
"""The maximum number of closing tags within the text of a call."""
_MARKS = ("[TOOL_CALLS]", "<|python_tag|>")

CallMatch = tuple[int, list[ToolCall]] | FormatError | None
"""Where the first call begins and all calls; what is wrong with them; or `None` if this format is not used."""


class ToolCalls:
    """The action is one tool call or several."""

    instructions = "Think first, then call one of your tools."

    def __call__(self, message: Message) -> Action | FormatError:
        if message.tool_calls:
            return Action(calls=message.tool_calls, thought=message.text.strip())
        thinking, text = split_thinking(message)
        for read in (_read_tagged, _read_functions, _read_marked, _read_bare):
            match = read(text)
            if isinstance(match, FormatError):
                return FormatError(match.message, thinking)
            if match is not None:
                start, calls = match
                numbered = [ToolCall(call.name, call.arguments, f"call_{k}") for k, call in enumerate(calls, 1)]
                return Action(calls=tuple(numbered), thought=join_parts(thinking, text[:start]))
        return FormatError(
            "A call of a tool is expected, and your message has none. Nothing was run. Say what you want to do, and call the tool "
            'for it, for example bash with {"command": "ls -la"}.',
            thinking,
        )


def _read_tagged(text: str) -> CallMatch:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; the function form may stand in the tags too."""
    calls: list[ToolCall] = []
    first = start = -1
    passed = 0
    for tag in _TAG.finditer(text):
        if tag[0] == "<tool_call>" and start < 0:
            start = tag.end()
            first = tag.start() if first < 0 else first
        elif tag[0] == "</tool_call>" and start >= 0:
            read = _inner(text[start : tag.start()])
            if read:
                calls += read
                start = -1
            elif passed == MOST_PASSED or _ENDED.match(text, tag.end()):
                return _not_a_call(text[start : tag.start()])
            else:  # The tag may stand in a text within the call: read on to the next.
                passed += 1
    if start >= 0:  # models leave the last tag out
        read = _inner(text[start:])
        if not read:
            return _not_a_call(text[start:])
        calls += read
    return (first, calls) if calls else None


def _inner(text: str) -> list[ToolCall]:
    functions = _read_functions(text)
    if isinstance(functions, tuple):
        return functions[1]
    call = next((call for item in objects(text) if (call := call_in(item))), None)
    return [call] if call else []


def _read_functions(text: str) -> CallMatch:
    """`<function=NAME>{...}</function>`, or with `<parameter=NAME>VALUE</parameter>` in it."""
    tags = list(_FUNCTION.finditer(text))
    calls = []
    for tag, inner in _stretches(tags, text):
        inner = _before(inner, "</function>")
        parameters = list(_PARAMETER.finditer(inner))
        values = {}
        for parameter, value in _stretches(parameters, inner):
            values[parameter[1]] = _before(value, "</parameter>").removeprefix("\n").removesuffix("\n")
        if not parameters:
            read = next(objects(inner), None)
            if read is None and inner.strip():
                return _not_a_call(inner)
            values = read or {}
        calls.append(ToolCall(tag[1], dump_json(values)))
    return (tags[0].start(), calls) if tags else None


def _read_marked(text: str) -> CallMatch:
    """`[TOOL_CALLS][{...}]`, or `<|python_tag|>{...}`."""
    for mark in _MARKS:
        start = text.find(mark)
        if start >= 0:
            calls = [call for item in objects(text[start:]) if (call := call_in(item))]
            return (start, calls) if calls else _not_a_call(text[start:])
    return None


def _read_bare(text: str) -> CallMatch:
    """JSON with nothing around it that marks it as a call."""
    calls = [call for item in objects(text) if (call := call_in(item))]
    return (text.find("{"), calls) if calls else None


def _stretches(tags: list[re.Match[str]], text: str) -> list[tuple[re.Match[str], str]]:
    """Return each tag with the text up to the next one."""
    ends = [tag.start() for tag in tags[1:]] + [len(text)]
    return [(tag, text[tag.end() : end]) for tag, end in zip(tags, ends, strict=False)]


def _before(text: str, tag: str) -> str:
    end = text.rfind(tag)
    return text[:end] if end >= 0 else text


def _not_a_call(text: str) -> FormatError:
    return FormatError(
        f"A call of a tool is JSON with a name and arguments, and this is not: {text.strip()[:120]!r}. Nothing was run. For example: "
        '{"name": "bash", "arguments": {"command": "ls -la"}}'
    )
