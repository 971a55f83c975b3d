"""Render conversations with a chat template and turn them into the token ids of a prompt.

`palaestra.chat.encoder` encodes conversations that grow turn by turn, for training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from palaestra.core.records import Json, Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_OFFER = """You can call these tools, each of them a JSON schema:
<tools>
{tools}
</tools>
A call is a JSON object with the name and the arguments, between tags:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>"""
"""The system prompt for tools if the chat template does not support them. The format is that of most templates."""
MARK = "\u241eMARK\u241e"
"""A text to search for in a rendered conversation."""


def end_ids(weights: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a response: the tokenizer's, and those of the model's generation config."""
    settings = getattr(weights, "generation_config", None)
    eos = settings.eos_token_id if settings is not None else None
    ids = eos if isinstance(eos, list) else [eos]
    return tuple(dict.fromkeys(int(i) for i in (*ids, tokenizer.eos_token_id) if i is not None))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: str = "") -> list[int]:
    """Return the ids of the prompt for the next assistant message.

    Without a chat template, every message is a line of the prompt. If the template does not support system
    messages, their text is put before the next user message.

    Arguments:
        tools: as in `Request.tools`. They go through the chat template if it supports tools, otherwise into the system
            message.
    """
    if tools and not offers_tools(tokenizer, tools):
        messages, tools = with_tools(messages, tools), ""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(render_conversation(tokenizer, messages)))
    if any(message.role == "system" for message in messages) and not _shows_system(tokenizer):
        messages = without_system(messages)
    text = render_conversation(tokenizer, messages, tools)
    return list(tokenizer.encode(text, add_special_tokens=False))


def offers_tools(tokenizer: PreTrainedTokenizerBase, tools: str) -> bool:
    """Whether the chat template supports tools."""
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        return False
    probe = [Message("user", "question")]
    try:
        return render_conversation(tokenizer, probe, tools) != render_conversation(tokenizer, probe)
    except (TemplateError, TypeError):
        return False


def without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Merge each system message into the next user message, for templates without system messages.

    >>> [message.text for message in without_system([Message("system", "Be brief."), Message("user", "Why?")])]
    ['Be brief.\\n\\nWhy?']
    """
    merged: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "system":
            pending.append(message.text)
            continue
        if pending and message.role == "user":
            message = Message("user", "\n\n".join((*pending, message.text)))
        elif pending:
            merged.append(Message("user", "\n\n".join(pending)))
        pending = []
        merged.append(message)
    return (*merged, Message("user", "\n\n".join(pending))) if pending else tuple(merged)


def _shows_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template includes system messages. Some reject the role, some omit the message."""
    from jinja2 import TemplateError

    try:
        return MARK in render_conversation(tokenizer, [Message("system", MARK), Message("user", "question")])
    except TemplateError:
        return False


def with_tools(messages: Sequence[Message], tools: str) -> tuple[Message, ...]:
    """Write tools, calls and tool responses as text in plain messages.

    >>> from palaestra.core.records import ToolCall
    >>> reply = Message("assistant", "Look.", (ToolCall("bash", '{"command": "ls"}', "a"),))
    >>> print(with_tools([reply, Message("tool", "main.py", tool_call_id="a")], "[]")[1].text)
    Look.
    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>
    """
    offer = describe_tools(tools)
    plain = [to_plain(message) for message in messages]
    if plain and plain[0].role == "system":
        return (Message("system", f"{plain[0].text}\n\n{offer}"), *plain[1:])
    return (Message("system", offer), *plain)


def describe_tools(tools: str) -> str:
    """The text that offers tools in a system message."""
    return _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in json.loads(tools)))


def to_plain(message: Message) -> Message:
    """Write the calls of a message, or the answer of a tool, as text in a plain message."""
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.text}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = [
        "<tool_call>\n"
        + json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)
        + "\n</tool_call>"
        for call in message.tool_calls
    ]
    return Message(message.role, "\n".join(part for part in (message.text, *calls) if part))


def render_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: str = "",
    *,
    generation_prompt: bool = True,
    text_arguments: bool = False,
) -> str:
    """Render a conversation with the chat template. Without a template, every message is a line.

    Arguments:
        tools: as in `Request.tools`, for a template that supports tools.
        generation_prompt: add the start of the assistant's next message.
        text_arguments: pass the arguments of calls as JSON text. Most templates expect objects, some only accept text.

    Raises:
        jinja2.TemplateError, TypeError: the template rejects the conversation.
    """
    if tokenizer.chat_template is None:
        return "".join(f"{message.text}\n" for message in messages)
    options: Json = {"tools": json.loads(tools)} if tools else {}
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    conversation = [to_chat_message(message, names, text_arguments=text_arguments) for message in messages]
    return str(
        tokenizer.apply_chat_template(conversation, add_generation_prompt=generation_prompt, tokenize=False, **options)
    )


def to_chat_message(message: Message, names: Mapping[str, str] = {}, *, text_arguments: bool = True) -> Json:
    """Convert a message to the chat format, without its images.

    Arguments:
        names: the name of the tool for each call. Some templates need it in the tool's answer.
        text_arguments: as for `render_conversation`.
    """
    data: Json = {"role": message.role, "content": message.text}
    if message.tool_calls:
        data["tool_calls"] = [
            to_chat_call(call, call.arguments if text_arguments else _arguments(call)) for call in message.tool_calls
        ]
    if message.tool_call_id:
        data["tool_call_id"] = message.tool_call_id
        if message.tool_call_id in names:
            data["name"] = names[message.tool_call_id]
    return data


def to_chat_call(call: ToolCall, arguments: Json | str | None = None) -> Json:
    """Convert a tool call to the chat format. `arguments` replace those of the call."""
    arguments = call.arguments if arguments is None else arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _arguments(call: ToolCall) -> Json | str:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def find_shared_prefix(first: str, second: str) -> str:
    """Return the text that both begin with.

    >>> find_shared_prefix("<user>Guess", "<user>Go on")
    '<user>G'
    """
    length = next((k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return first[:length] if length is not None else min(first, second, key=len)
