"""Output parsers: convert an assistant's message to an action or a format error.

To add one, write a class with the two members of `Parser` and register it like the ones at the end of this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from palaestra.core.records import Json, Message, ToolCall
from palaestra.core.registry import Registry
from palaestra.core.tables import load_table

PARSERS = Registry("output parser", "palaestra.output_parsers")
_TEXTS = load_table(__file__, "parsers")
_INSTRUCTIONS: dict[str, str] = _TEXTS["instructions"]
_PROBLEMS: dict[str, str] = _TEXTS["problems"]

_MAX_STARTS = 32
"""The maximum number of places where JSON is tried, so that the work stays linear."""
_DECODER = json.JSONDecoder(strict=False)
_FENCE = re.compile(r"(\s*+)(`{3,}+|~{3,}+)([^`]*+)\Z")
_HEREDOC = re.compile(r"<<-?[ \t]*+(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][A-Za-z0-9_]*+))")
_ENDS = {"edit": "end_of_edit", "insert": "end_of_insert", "create": "end_of_file"}
_FUNCTION = re.compile(r"<function=([^<>\s]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]{1,200})>")
_CALL_MARKS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")


@dataclass(frozen=True, slots=True)
class Action:
    """The action in an assistant's message: text for `Session.run` or calls for `Session.call`; and the reasoning."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""


@dataclass(frozen=True, slots=True)
class FormatError:
    """A message without a readable action. The text tells the model what is wrong and what to do."""

    message: str
    thought: str = ""


class Parser(Protocol):
    """Reads an assistant's messages; `instructions` describe the format for the prompt.

    A parser must not raise and must run in time linear in the length of the text.
    """

    instructions: str

    def __call__(self, message: Message) -> Action | FormatError: ...


def make_parser(name: str) -> Parser:
    """Make the output parser that is registered under `name`.

    Raises:
        UnknownNameError: there is none; suggests the nearest one.
    """
    parser: Parser = PARSERS.get(name)()
    return parser


def _split_thinking(message: Message) -> tuple[str, str]:
    """Split a message into the reasoning before `</think>` and the answer. The opening tag may be part of the prompt."""
    text = message.text.replace("\r\n", "\n")
    thinking, closed, answer = text.partition("</think>")
    if thinking.lstrip().startswith("<think>"):
        return thinking.lstrip().removeprefix("<think>").strip(), answer
    if closed and "<think>" not in thinking:
        return thinking.strip(), answer
    return "", text


def _join(*parts: str) -> str:
    return "\n\n".join(part.strip() for part in parts if part.strip())


# Fenced blocks


class LastBlock:
    """The last fenced block is the action; the text around it is thought."""

    instructions = _INSTRUCTIONS["last_block"]
    only = False

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = _split_thinking(message)
        blocks, is_closed = _find_blocks(text)
        problem = ""
        if not is_closed:
            problem = _PROBLEMS["open_block"]
        elif not blocks or (self.only and len(blocks) > 1):
            expected = "Exactly one" if self.only else "A"
            problem = _PROBLEMS["number_of_blocks"].format(expected=expected, count=len(blocks) or "none")
        elif not blocks[-1][0].strip():
            problem = _PROBLEMS["empty_block"]
        if problem:
            return FormatError(problem, thinking)
        command, start, end = blocks[-1]
        return Action(command, thought=_join(thinking, text[:start], text[end:]))


class OneBlock(LastBlock):
    """The only fenced block is the action."""

    instructions = _INSTRUCTIONS["one_block"]
    only = True


def _find_blocks(text: str) -> tuple[list[tuple[str, int, int]], bool]:
    """Return the outermost fenced blocks of a text, each with the places of its fences, and whether all are closed.

    A fence within a here-document or the text of an edit is text. Otherwise a fence with a language opens a nested
    block, which the next bare fence closes.
    """
    lines = text.split("\n")
    last_line = {line.strip(): number for number, line in enumerate(lines)}
    blocks: list[tuple[str, int, int]] = []
    opening: re.Match[str] | None = None
    level, first, start, at, until = 0, 0, 0, 0, ""
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if opening is None:
            if fence:
                opening, level, first, start = fence, 1, number + 1, at
        elif until:
            until = "" if line.strip() == until else until
        elif fence is None or not fence[2].startswith(opening[2]) or len(fence[1]) > len(opening[1]) + 3:
            end = _find_end(line, is_first=number == first)
            until = end if last_line.get(end, -1) > number else ""
        else:
            level += 1 if fence[3].strip() else -1
            if level == 0:
                blocks.append(("\n".join(lines[first:number]), start, at + len(line)))
                opening = None
        at += len(line) + 1
    return blocks, opening is None


def _find_end(line: str, is_first: bool) -> str:
    """Return the line that ends the here-document or the edit that begins with this line; empty if none begins."""
    words = line.split(None, 1)
    end = _ENDS.get(words[0], "") if is_first and words else ""
    if not end and "<<" in line and (heredoc := _HEREDOC.search(line)):
        end = (heredoc[1] or heredoc[2] or heredoc[3]).strip()
    return end


# Tags, JSON, the whole message


class Xml:
    """The action is between `<command>` and `</command>`."""

    instructions = _INSTRUCTIONS["xml"]

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = _split_thinking(message)
        spans: list[tuple[int, int]] = []
        depth = start = 0
        for tag in re.finditer(r"</?command>", text):
            if tag[0] == "<command>":
                start = tag.start() if depth == 0 else start
                depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    spans.append((start, tag.end()))
        start, end = spans[-1] if spans else (0, 0)
        command = text[start:end].removeprefix("<command>").removesuffix("</command>").strip("\n")
        problem = ""
        if depth:
            problem = _PROBLEMS["open_tag"]
        elif len(spans) != 1:
            problem = _PROBLEMS["number_of_tags"].format(count=len(spans) or "none")
        elif not command.strip():
            problem = _PROBLEMS["empty_tag"]
        if problem:
            return FormatError(problem, thinking)
        return Action(command, thought=_join(thinking, text[:start], text[end:]))


class JsonObject:
    """The action is a JSON object with a `thought` and a `command`: a text, or a call with name and arguments."""

    instructions = _INSTRUCTIONS["json"]

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = _split_thinking(message)
        value = next((item for item, _ in _find_objects(text) if "command" in item), None)
        if value is None:
            return FormatError(_PROBLEMS["no_json"], thinking)
        thought, command = value.get("thought", ""), value["command"]
        thought = _join(thinking, thought if isinstance(thought, str) else _dump(thought))
        if isinstance(command, dict) and (call := _to_call(command)):
            return Action(calls=(call,), thought=thought)
        if not isinstance(command, str) or not command.strip():
            return FormatError(
                f'"command" is a text that is not empty; got {_dump(command)[:80]}. Nothing was run.', thought
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


# Tool calls


class ToolCalls:
    """The action is one tool call or several: those of the message, or written in its text by models served without
    tools, as JSON (with or without marks such as `<tool_call>`) or as `<function=NAME>`.
    """

    instructions = "Think first, then call one of your tools."

    def __call__(self, message: Message) -> Action | FormatError:
        if message.tool_calls:
            return Action(calls=message.tool_calls, thought=message.text.strip())
        thinking, text = _split_thinking(message)
        marks = [place for mark in _CALL_MARKS if (place := text.find(mark)) >= 0]
        start = min(marks, default=text.find("{"))
        calls = _read_functions(text) if "<function=" in text else _read_json(text)
        if calls:
            numbered = [ToolCall(call.name, call.arguments, f"call_{k}") for k, call in enumerate(calls, 1)]
            return Action(calls=tuple(numbered), thought=_join(thinking, text[:start]))
        problem = _PROBLEMS["broken_call"].format(text=text[start:][:120]) if marks else _PROBLEMS["no_call"]
        return FormatError(problem, thinking)


def _read_json(text: str) -> list[ToolCall]:
    """Read the calls that are JSON objects; none if one of several `<tool_call>` cannot be read."""
    calls, rest = [], text.count("<tool_call>")
    for value, inner in _find_objects(text):
        if call := _to_call(value):
            calls.append(call)
            rest -= inner.count("<tool_call>")
    return calls if rest <= len(calls) else []


def _read_functions(text: str) -> list[ToolCall]:
    """Read `<function=NAME>{...}</function>`, or with `<parameter=NAME>VALUE</parameter>` in it; none if one is broken."""
    calls = []
    for name, inner in _split_at(_FUNCTION, text, "</function>"):
        parameters = _split_at(_PARAMETER, inner, "</parameter>")
        values: object = {key: value.removeprefix("\n").removesuffix("\n") for key, value in parameters}
        if not parameters:
            values = next((value for value, _ in _find_objects(inner)), None)
            if values is None and inner.strip():
                return []
        calls.append(ToolCall(name, _dump(values or {})))
    return calls


def _split_at(tag: re.Pattern[str], text: str, closing: str) -> list[tuple[str, str]]:
    """Return the name in each tag, and the text from there to the closing tag, if any, before the next one."""
    _, *parts = tag.split(text)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [(name, inner[: inner.rfind(closing)] if closing in inner else inner) for name, inner in pairs]


def _find_objects(text: str) -> Iterator[tuple[Json, str]]:
    """Yield the JSON objects in a text, including those in lists, and the text of each. After an unreadable one the
    next brace is tried.
    """
    at = 0
    for _ in range(_MAX_STARTS):
        start = text.find("{", at)
        if start < 0:
            return
        try:
            value, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        yield value, text[start:at]


def _to_call(value: Json) -> ToolCall | None:
    """Return the tool call in a JSON object, in any of the common formats."""
    inner = value.get("function", value)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(name, str) or not name:
        return None
    arguments = inner.get("arguments", inner.get("parameters", {}))
    return ToolCall(name, arguments if isinstance(arguments, str) else _dump(arguments))


def _dump(value: object) -> str:
    """Dump a parsed value as JSON; a value that is nested too deep becomes an empty object."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "{}"


PARSERS.register("last_block", LastBlock, "the last fenced block")
PARSERS.register("one_block", OneBlock, "exactly one fenced block")
PARSERS.register("xml", Xml, "<command>...</command>")
PARSERS.register("json", JsonObject, '{"thought": ..., "command": ...}')
PARSERS.register("tool_call", ToolCalls, "tool calls, including those that local models write as text")
PARSERS.register("identity", Identity, "the whole message")
