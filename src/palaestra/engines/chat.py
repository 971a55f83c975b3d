"""How a conversation becomes token ids: in one place, for engines and for training alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.records import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OFFER = """You can call these tools, each of them a JSON schema:
<tools>
{tools}
</tools>
A call is a JSON object with the name and the arguments, between tags:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>"""
"""How tools are offered to a model whose chat template knows nothing of them; the form that most others use."""
MARK = "Seventeen grey herons."
"""What is looked for in a rendered conversation."""


def end_ids(weights: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's, and those of the model's generation settings."""
    settings = getattr(weights, "generation_config", None)
    own = settings.eos_token_id if settings is not None else None
    several = own if isinstance(own, list) else [own]
    return tuple(dict.fromkeys(int(i) for i in (*several, tokenizer.eos_token_id) if i is not None))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: str = "") -> list[int]:
    """The ids that ask the model for the next assistant message.

    A tokenizer without a chat template gets the texts of the messages, a line each. What a template without system
    messages would leave out, or refuse, begins the user's.

    Arguments:
        tools: what the model may call, as in `Request.tools`: by its chat template where that offers tools, and else in
            the system message.
    """
    if tools and not offers_tools(tokenizer, tools):
        messages, tools = with_tools(messages, tools), ""
    if tokenizer.chat_template is None:
        text = "".join(f"{message.text}\n" for message in messages)
        return list(tokenizer.encode(text))
    if any(message.role == "system" for message in messages) and not shows_system(tokenizer):
        messages = without_system(messages)
    text = _rendered(tokenizer, messages, tools)
    return list(tokenizer.encode(text, add_special_tokens=False))


def offers_tools(tokenizer: PreTrainedTokenizerBase, tools: str) -> bool:
    """Whether the chat template tells a model of its tools."""
    if tokenizer.chat_template is None:
        return False
    probe = [Message("user", "question")]
    return _rendered(tokenizer, probe, tools) != _rendered(tokenizer, probe, "")


def without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation for a template without system messages: each is the beginning of the user's behind it.

    >>> [message.text for message in without_system([Message("system", "Be brief."), Message("user", "Why?")])]
    ['Be brief.\\n\\nWhy?']
    """
    found: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting.append(message.text)
            continue
        if waiting and message.role == "user":
            message = Message("user", "\n\n".join((*waiting, message.text)))
        elif waiting:
            found.append(Message("user", "\n\n".join(waiting)))
        waiting = []
        found.append(message)
    return (*found, Message("user", "\n\n".join(waiting))) if waiting else tuple(found)


def shows_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template shows a system message; some refuse the role, some leave the message out."""
    from jinja2 import TemplateError

    try:
        return MARK in _rendered(tokenizer, [Message("system", MARK), Message("user", "question")], "")
    except TemplateError:
        return False


def with_tools(messages: Sequence[Message], tools: str) -> tuple[Message, ...]:
    """The same conversation in plain messages: tools are offered in the system message, calls and answers are text.

    >>> from palaestra.core.records import ToolCall
    >>> said = Message("assistant", "Look.", (ToolCall("bash", '{"command": "ls"}', "a"),))
    >>> print(with_tools([said, Message("tool", "main.py", tool_call_id="a")], "[]")[1].text)
    Look.
    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>
    """
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in json.loads(tools))
    offer = OFFER.format(tools=listed)
    plain = [_plain(message) for message in messages]
    if plain and plain[0].role == "system":
        return (Message("system", f"{plain[0].text}\n\n{offer}"), *plain[1:])
    return (Message("system", offer), *plain)


def _plain(message: Message) -> Message:
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


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: str) -> str:
    offered: dict[str, Any] = {"tools": json.loads(tools)} if tools else {}
    conversation = [_spoken(message) for message in messages]
    return str(tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False, **offered))


def _spoken(message: Message) -> dict[str, Any]:
    """A message as chat templates take it, whose calls have their arguments as an object."""
    said: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    return said


def _arguments(call: ToolCall) -> Mapping[str, Any] | str:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments
