"""Formats of tool calls in the text of a model, one per family, and detection of a model's format.

A new format is a parser and one registration. The parsers are in `palaestra.chat.tool_parsers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

from palaestra.chat.rendering import find_shared_prefix
from palaestra.core.errors import EnvError
from palaestra.core.records import Message, ToolCall, Values
from palaestra.core.registry import Registry

if TYPE_CHECKING:
    from palaestra.chat.template import ChatTemplate

TOOL_FORMATS = Registry("tool format", "palaestra.tool_formats")
for _name, _description in {
    "hermes": "Hermes, Qwen2.5, Qwen3: JSON between <tool_call> tags",
    "qwen3_coder": "Qwen3-Coder, Qwen3.5, Nemotron 3: <function=NAME> with a tag for each parameter",
    "glm": "GLM-4.5: the name and <arg_key>, <arg_value> pairs between <tool_call> tags",
    "llama3": "Llama 3.1 and later: the message is JSON with a name and parameters",
    "mistral": "Mistral: JSON after [TOOL_CALLS]",
    "deepseek": "DeepSeek V3, V3.1, R1: JSON between special tokens",
    "harmony": "gpt-oss: messages in channels; a call has a recipient",
    "pythonic": "LFM2, Llama 4, ToolACE: a list of Python calls",
}.items():
    TOOL_FORMATS.register(_name, f"palaestra.chat.tool_parsers:{_name.upper()}", _description)

Schemas = Mapping[str, Values]
"""The JSON schemas of the parameters of each tool, by name."""
_QUESTION = Message("user", "question")
_CALL = ToolCall("probe", json.dumps({"value": "words"}), "call00000")


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A message of a model.

    Arguments:
        text: its text without calls. Reasoning stays in it, up to `</think>`.
        calls: its calls. A call that cannot be read has the text that the model wrote as its arguments, and no name if
            the name cannot be read either (see `is_malformed`).
    """

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls.

    Arguments:
        mark: a text that begins a call, or is part of it. The chat template of a model with this format contains it.
        parse: reads a message, with special tokens in it. A text without calls is returned unchanged. It never raises.
        has_channels: whether the text of a message is in channels, so that it must be parsed even without tools.
    """

    mark: str
    parse: Callable[[str, Schemas], ParsedMessage]
    has_channels: bool = False


def read_schemas(tools: str) -> dict[str, Values]:
    """Return the schemas of the parameters of each tool.

    Arguments:
        tools: JSON text of a list of tools in OpenAI's format.
    """
    functions = [tool.get("function", tool) for tool in json.loads(tools)] if tools else []
    return {function["name"]: function.get("parameters", {}).get("properties", {}) for function in functions}


def is_malformed(call: ToolCall) -> bool:
    """Whether a call cannot be executed because it has no name, or its arguments are not a JSON object.

    >>> is_malformed(ToolCall("add", '{"a": 1}')), is_malformed(ToolCall("add", '{"a": 1'))
    (False, True)
    """
    try:
        return not call.name or not isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return True


def remove_tokens(text: str, tokens: Iterable[str]) -> str:
    """Remove special tokens from a text.

    >>> remove_tokens("words<|end|>", ["<|end|>"])
    'words'
    """
    for token in tokens:
        text = text.replace(token, "")
    return text


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a message after its reasoning. Calls inside of the reasoning are not calls.

    >>> split_reasoning("<think>two</think>words")
    ('<think>two</think>', 'words')
    """
    reasoning, tag, rest = text.partition("</think>")
    if tag:
        return reasoning + tag, rest
    return (text, "") if text.lstrip().startswith("<think>") else ("", text)


def detect_format(template: ChatTemplate) -> ToolFormat | None:
    """Return the format whose parser reads back the call that the template renders; `None` if there is none.

    A template that offers tools and renders no calls is searched for the marks of each format.
    """
    formats = [cast(ToolFormat, TOOL_FORMATS.get(name)) for name in TOOL_FORMATS.names()]
    if written := _render_call(template):
        readable = (known for known in formats if _reads_call(known, written))
        return next(readable, None)
    source = str(template.tokenizer.chat_template or "") if template.offered_tools else ""
    return next((known for known in formats if known.mark in source), None)


def find_call_start(template: ChatTemplate, name: str = "") -> str:
    """The text that begins a message with a call in the model's format.

    Arguments:
        name: the tool to call. The text contains its name; without one, it ends before the name.

    Raises:
        EnvError: the template does not put calls at the start of a message.
    """
    calls = [
        ToolCall(tool, arguments, _CALL.id)
        for tool in ([name] if name else ["probe", "other"])
        for arguments in (_CALL.arguments, '{"other": 1}', "{}")
    ]
    start = template.render(template.adapt([_QUESTION]))
    conversations = (template.adapt([_QUESTION, Message("assistant", "", (call,))]) for call in calls)
    written = {template.render(messages, False) for messages in conversations}
    shared = reduce(find_shared_prefix, written)
    # The quotes and brackets are the model's, because its tokens often contain them and what follows.
    text = shared.removeprefix(start).rstrip(' {"<')
    if len(written) == 1 or not shared.startswith(start) or not text:
        raise EnvError(
            f"the chat template of {template.name} has no start of a message that only a tool call continues"
        )
    return text


def _render_call(template: ChatTemplate) -> str:
    """The text of a message with one call; empty if the template cannot render it."""
    if not template.max_calls:
        return ""
    try:
        start = template.render([_QUESTION])
        whole = template.render([_QUESTION, Message("assistant", "", (_CALL,))], generation_prompt=False)
    except EnvError:
        return ""
    return whole.removeprefix(find_shared_prefix(start, whole))


def _reads_call(known: ToolFormat, written: str) -> bool:
    calls = known.parse(written, {_CALL.name: {"value": {"type": "string"}}}).calls
    if len(calls) != 1 or is_malformed(calls[0]):
        return False
    return calls[0].name == _CALL.name and json.loads(calls[0].arguments) == json.loads(_CALL.arguments)
