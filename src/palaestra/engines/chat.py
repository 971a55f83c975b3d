"""Turn conversations into token ids, for engines and for training alike.

`ChatEncoder` encodes a growing conversation. Tokens are only appended; nothing is tokenised again. The opening is encoded
as an engine would encode it. The model's own ids are kept as sampled. They are followed by the text that the chat template
adds: the end of the assistant's message, the reply, and the start of the next message. This requires a template that
renders a longer conversation as an extension of the shorter one. The encoder checks this once with a probe and again at
every turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EnvError
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
"""The system prompt for tools if the chat template does not support them. The format is that of most templates."""
MARK = "\u241eMARK\u241e"
"""A text to search for in a rendered conversation."""
CACHE_SIZE = 4096
"""Maximum number of cached texts. Environments often repeat the same replies."""
PREFIXES = ("x", "7", ".", "\u00e9")
"""Candidate prefixes for encoding a text that is not at the start. The first that stays a separate token is used."""


def end_ids(weights: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
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
        text = "".join(f"{message.text}\n" for message in messages)
        return list(tokenizer.encode(text))
    if any(message.role == "system" for message in messages) and not shows_system(tokenizer):
        messages = without_system(messages)
    text = _render(tokenizer, messages, tools)
    return list(tokenizer.encode(text, add_special_tokens=False))


def offers_tools(tokenizer: PreTrainedTokenizerBase, tools: str) -> bool:
    """Whether the chat template supports tools."""
    if tokenizer.chat_template is None:
        return False
    probe = [Message("user", "question")]
    return _render(tokenizer, probe, tools) != _render(tokenizer, probe, "")


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


def shows_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the chat template includes system messages. Some reject the role, some omit the message."""
    from jinja2 import TemplateError

    try:
        return MARK in _render(tokenizer, [Message("system", MARK), Message("user", "question")], "")
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
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in json.loads(tools))
    offer = OFFER.format(tools=lines)
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


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: str) -> str:
    options: dict[str, Any] = {"tools": json.loads(tools)} if tools else {}
    conversation = [_to_template_message(message) for message in messages]
    return str(tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False, **options))


def _to_template_message(message: Message) -> dict[str, Any]:
    """Convert a message for a chat template, which expects the arguments of calls as objects."""
    data: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        data["tool_call_id"] = message.tool_call_id
    return data


def _arguments(call: ToolCall) -> Mapping[str, Any] | str:
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


class ChatEncoder:
    """Encodes the opening of a conversation, and the replies to the assistant's messages.

    If the template rejects or omits tool messages, they are rendered as user messages. If it rejects, omits or moves
    system messages, they are rendered as the start of the following user message.

    Arguments:
        tokenizer: with a chat template. Without one, every message is a line.
        name: the model's name, for error messages.

    Raises:
        EnvError: the chat template changes earlier turns, or omits user messages.

    Example:
        >>> encoder = ChatEncoder(tokenizer)                                                   # doctest: +SKIP
        >>> ids = encoder.encode_opening([Message("user", "Guess.")])                          # doctest: +SKIP
        >>> ids += sampled                                                                     # doctest: +SKIP
        >>> ids += encoder.encode_reply(messages, message, [Message("user", "Higher.")], sampled[-1])  # doctest: +SKIP
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the model") -> None:
        self.tokenizer, self.name = tokenizer, name
        self._suffixes: dict[tuple[Message, ...], str] = {}
        self._rendered: dict[tuple[Message, ...], str] = {}
        self._special_tokens = {key: token.content for key, token in tokenizer.added_tokens_decoder.items()}
        self._has_tool_role = self._has_system_role = True
        self._has_system_role = self._supports_system()
        self._has_tool_role = self._supports_tools()
        self._probe()

    def encode_opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of the opening messages, up to the start of the model's first message.

        Raises:
            EnvError: there is no message, one has an image, or the template rejects or omits one.
        """
        if not messages:
            raise EnvError("expected at least one message before the model's first; got none")
        adapted = self._adapt_roles(messages)
        self._check_rendered(adapted, self._render(messages))  # Its errors are clearer than those of `prompt_ids`.
        return tuple(prompt_ids(self.tokenizer, adapted))

    def encode_reply(
        self, before: Sequence[Message], message: Message, reply: Sequence[Message], last: int | None = None
    ) -> tuple[int, ...]:
        """The ids after the assistant's own, up to the start of its next message.

        Arguments:
            before: the conversation before `message`.
            message: the assistant's message.
            reply: the messages after it.
            last: the last id that the model sampled. If it ends a message, the template's end token is not added again.

        Raises:
            EnvError: the template changes earlier turns, rejects or omits a message, or one has an image.
        """
        key = tuple(reply)
        suffix = self._suffixes.get(key)
        if suffix is None or not self._is_extension(before, message, reply, suffix):
            suffix = self._find_suffix(before, message, reply)
            self._check_rendered(self._adapt_roles(reply), suffix)
            if len(self._suffixes) < CACHE_SIZE:
                self._suffixes[key] = suffix
        end = "" if last is None else self._special_tokens.get(last, "")
        return self._encode_after(self._drop_end(suffix, end), end)

    def _find_suffix(self, before: Sequence[Message], message: Message, reply: Sequence[Message]) -> str:
        """The text that the template adds after the assistant's message."""
        self._rendered.clear()  # A template may contain the date, which may have changed.
        marked = self._render([*before, Message("assistant", MARK), *reply])
        _, mark, suffix = marked.partition(MARK)
        if not mark or not self._is_extension(before, message, reply, suffix):
            raise EnvError(
                f"the chat template of {self.name} changes earlier turns when a turn is added (some remove the "
                "reasoning of a message), so the model would not see the tokens that it sampled; set the tokenizer's "
                f"`chat_template` to one that keeps them. {self._describe_difference(before, message, reply)}"
            )
        return suffix

    def _is_extension(self, before: Sequence[Message], message: Message, reply: Sequence[Message], suffix: str) -> bool:
        """Whether the template renders the longer conversation as the shorter one, the message, and `suffix`.

        White space around the message is ignored: some templates trim it or add a space.
        """
        head, whole = self._render(before), self._render([*before, message, *reply])
        middle = whole.removeprefix(head).removesuffix(suffix)
        return len(head) + len(middle) + len(suffix) == len(whole) and middle.strip() == message.text.strip()

    def _describe_difference(self, before: Sequence[Message], message: Message, reply: Sequence[Message]) -> str:
        head, whole = self._render(before) + message.text.strip(), self._render([*before, message, *reply])
        place = next((k for k, pair in enumerate(zip(head, whole, strict=False)) if pair[0] != pair[1]), len(whole))
        return f"First difference: {head[place : place + 40]!r} became {whole[place : place + 40]!r}"

    def _check_rendered(self, messages: Sequence[Message], text: str) -> None:
        """Raise if a user message is missing from the rendered text, apart from white space around it."""
        for message in messages:
            if message.role == "user" and message.text.strip() not in text:
                raise EnvError(
                    f"the chat template of {self.name} omits or changes a user message ({message.text[:40]!r} is not in "
                    "the rendered text); set the tokenizer's `chat_template` to another one"
                )

    def _drop_end(self, suffix: str, end: str) -> str:
        """Remove the token that ends a message from the suffix if the model has sampled it."""
        gap, separator, rest = suffix.partition(end) if end else ("", "", "")
        return rest if separator and not gap.strip() else suffix

    def _encode_after(self, text: str, end: str) -> tuple[int, ...]:
        """The ids of a text in the middle of a conversation, after the token `end` or after other text.

        At the start of a text some tokenizers add a space (SentencePiece's `\u2581`), or keep one that they drop after
        a special token. So the text is encoded with a prefix, whose ids are then removed.
        """
        if not text:
            return ()
        for prefix in (end,) if end else PREFIXES:
            first, whole = self._encode(prefix), self._encode(prefix + text)
            # Unknown characters of prefix and text may become one token.
            if whole[: len(first)] == first and self.tokenizer.unk_token_id not in first:
                return whole[len(first) :]
        return self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: Sequence[Message]) -> str:
        """A conversation as text, up to the start of the assistant's next message."""
        from jinja2 import TemplateError

        messages = self._adapt_roles(messages)
        if self.tokenizer.chat_template is None:
            return "".join(f"{message.text}\n" for message in messages)
        if messages in self._rendered:
            return self._rendered[messages]
        plain = [{"role": message.role, "content": message.text} for message in messages]
        try:
            text = str(self.tokenizer.apply_chat_template(plain, add_generation_prompt=True, tokenize=False))
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message.role for message in messages)
            reason = " ".join(str(error).split())
            raise EnvError(
                f"the chat template of {self.name} rejects messages with the roles {roles}: {reason}"
            ) from error
        if len(self._rendered) >= CACHE_SIZE:
            self._rendered.clear()
        self._rendered[messages] = text
        return text

    def _adapt_roles(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        if any(message.has_image for message in messages):
            raise EnvError("expected text messages; got a message with an image")
        if not self._has_tool_role:
            messages = [Message("user", m.content) if m.role == "tool" else m for m in messages]
        return tuple(messages) if self._has_system_role else without_system(messages)

    def _supports_tools(self) -> bool:
        """Whether the template renders tool messages; some reject the role, some omit the message."""
        question = Message("user", "question")
        try:
            return MARK in self._render([question, Message("assistant", "call"), Message("tool", MARK)])
        except EnvError:
            return False

    def _supports_system(self) -> bool:
        """Whether the template renders a system message in its place; some move it before the last user message."""
        opening = [Message("system", MARK), Message("user", "question")]
        try:
            head = self._render(opening)
            whole = self._render([*opening, Message("assistant", "words"), Message("user", "answer")])
        except EnvError:
            return False
        return MARK in head and whole.startswith(head)

    def _probe(self) -> None:
        """Raise before anything is sampled if the template cannot be used. Most such templates remove reasoning."""
        before = [Message("user", "first")]
        self.encode_opening(before)
        for text, role in (("<think>thought</think>\n\nwords", "user"), ("words", "tool"), ("words", "user")):
            message, reply = Message("assistant", text), Message(role, "answer")  # type: ignore[arg-type]
            self.encode_reply(before, message, [reply])
            before += [message, reply]
