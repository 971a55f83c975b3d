"""Encode a conversation that grows turn by turn, for training, and decode the model's messages and calls.

Tokens are only appended. The opening is encoded as an engine would encode it. The ids that the model sampled stay as
they are. After them comes the text that the chat template adds to a message of the assistant: its end, the reply, and the start of the next message. To
find this text, the template renders the conversation with a mark instead of the assistant's message, and the text after
the mark is encoded. Earlier turns are never encoded again, so a template that changes them can be used too: Qwen3 and
DeepSeek-R1 remove earlier reasoning.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from palaestra.chat.rendering import find_shared_prefix, offers_tools, prompt_ids
from palaestra.chat.template import ChatTemplate, is_marked
from palaestra.chat.tool_formats import (
    ToolFormat,
    detect_format,
    find_call_start,
    is_malformed,
    read_schemas,
    remove_tokens,
)
from palaestra.chat.tool_parsers import HERMES
from palaestra.core.errors import EnvError
from palaestra.core.records import Completion, Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_CACHED = 4096
"""Maximum number of cached replies. Environments often repeat the same ones."""
_PREFIXES = ("x", "7", ".", "\u00e9")
"""Candidate prefixes for encoding a text that is not at the start. The first that stays a separate token is used."""


class ChatEncoder:
    """Encodes the opening of a conversation, and the replies to the assistant's messages. Decodes these messages.

    Tools are offered by the template. They are described in the system message if the template does not support them, or
    renders calls in a format that no parser reads.

    Arguments:
        tokenizer, name, tools: as for `ChatTemplate`.

    Raises:
        EnvError: the chat template omits messages of the user or the assistant.

    Example:
        >>> encoder = ChatEncoder(tokenizer)                                                   # doctest: +SKIP
        >>> ids = encoder.encode_opening([Message("user", "Guess.")])                          # doctest: +SKIP
        >>> ids += sampled                                                                     # doctest: +SKIP
        >>> ids += encoder.encode_reply(messages, message, [Message("user", "Higher.")], sampled[-1])  # doctest: +SKIP
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the model", tools: str = "") -> None:
        self.tokenizer, self.name, self.tools = tokenizer, name, tools
        self.template = ChatTemplate(tokenizer, name, tools)
        self.tool_format = detect_format(self.template)
        if tools and self.tool_format is None:
            self.template = ChatTemplate(tokenizer, name, tools, describe_tools=True)
            self.tool_format = HERMES
        self._schemas = read_schemas(tools)
        self._special_tokens = {key: token.content for key, token in tokenizer.added_tokens_decoder.items()}
        self._replies: dict[tuple[tuple[Message, ...], str], tuple[int, ...]] = {}
        self._probe()

    @property
    def preserves_prefix(self) -> bool:
        """Whether the template renders a longer conversation as an extension of the shorter one.

        If it does not, the context differs from a fresh rendering: the model sees all of its earlier tokens.
        """
        return self.template.preserves_prefix

    def encode_opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of the opening messages, up to the start of the model's first message.

        Raises:
            EnvError: there is no message, one has an image, or the template rejects or omits one.
        """
        if not messages:
            raise EnvError("expected at least one message before the model's first; got none")
        adapted = self.template.adapt(messages)
        # The errors of the template are clearer than those of `prompt_ids`.
        self._check_rendered(adapted, self.template.render(adapted))
        return tuple(prompt_ids(self.tokenizer, adapted, self.template.offered_tools))

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
            EnvError: the template rejects or omits a message, or one has an image.
        """
        template = self.template
        # The assistant's words are not needed, and some templates reject some of them.
        adapted = template.adapt([*map(template.blank, before), template.mark(message), *reply])
        end = "" if last is None else self._special_tokens.get(last, "")
        ids = self._replies.get((adapted, end))
        if ids is None:
            place = next(k for k, adapted_message in enumerate(adapted) if is_marked(adapted_message))
            suffix = self._find_suffix(adapted[: place + 1], adapted[place + 1 :])
            self._check_rendered(adapted[place + 1 :], suffix)
            ids = self.encode_after(self._drop_end(suffix, end), end)
            if len(self._replies) < _MAX_CACHED:
                self._replies[adapted, end] = ids
        return ids

    def encode_call_start(self, name: str = "") -> tuple[int, ...]:
        """The ids that begin a message with a tool call, of the tool `name` if one is given.

        Raises:
            EnvError: the template does not put calls at the start of a message.
        """
        return self.encode_after(find_call_start(self.template, name))

    def encode_after(self, text: str, end: str = "") -> tuple[int, ...]:
        """The ids of a text in the middle of a conversation, after the token `end` or after other text.

        At the start of a text some tokenizers add a space (SentencePiece's `\u2581`), or keep one that they drop after
        a special token. So the text is encoded with a prefix, whose ids are then removed.
        """
        if not text:
            return ()
        for prefix in (end,) if end else _PREFIXES:
            first, whole = self._encode(prefix), self._encode(prefix + text)
            # Unknown characters of prefix and text may become one token.
            if whole[: len(first)] == first and self.tokenizer.unk_token_id not in first:
                return whole[len(first) :]
        return self._encode(text)

    def decode_message(self, ids: Sequence[int], number: int = 0) -> Message:
        """Decode a message that the model sampled. Calls are parsed if there are tools.

        A call that cannot be read stays a call, so that the environment can answer it (see `is_malformed`).

        Arguments:
            ids: without the token that ends the message.
            number: the number of calls before it in the conversation, for the ids of its own.
        """
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        if self.tool_format is None or not (self.tools or self.tool_format.has_channels):
            return Message("assistant", text)
        parsed = self.tool_format.parse(str(self.tokenizer.decode(ids, skip_special_tokens=False)), self._schemas)
        if not parsed.calls and not self.tool_format.has_channels:
            return Message("assistant", text)
        text = remove_tokens(parsed.text, self.tokenizer.all_special_tokens)
        if not self.tools:
            return Message("assistant", text)
        # Nine letters and digits: Mistral's templates accept no other ids.
        calls = (replace(call, id=f"call{k:05d}") for k, call in enumerate(parsed.calls, number + 1))
        return Message("assistant", text, tuple(calls))

    def _find_suffix(self, marked: tuple[Message, ...], reply: tuple[Message, ...]) -> str:
        """The text that the template adds to the last message of `marked`, from the token that ends it."""
        suffix = self.template.render_after_mark([*marked, *reply])
        if not marked[-1].tool_calls:
            return suffix
        # The mark is inside a call. The model wrote the rest of the call, which is the same if no reply follows.
        end_of_call = find_shared_prefix(suffix, self.template.render_after_mark(marked, generation_prompt=False))
        end = max((end_of_call.rfind(token) for token in self.template.end_tokens), default=-1)
        return suffix[end if end >= 0 else len(end_of_call) :]

    def _drop_end(self, suffix: str, end: str) -> str:
        """Remove the token that ends a message from the suffix if the model has sampled it, or another end token."""
        ends, closing = self.template.end_tokens, self.template.closing
        if end and end in closing and suffix.startswith(closing):  # Some messages end with several tokens.
            return suffix[closing.rfind(end) + len(end) :]
        for token in ends if end in ends else (end,):
            gap, separator, rest = suffix.partition(token) if token else ("", "", "")
            if separator and not gap.strip():
                return rest
        return suffix

    def _check_rendered(self, messages: Sequence[Message], text: str) -> None:
        """Raise if a user message is missing from the rendered text, apart from white space around it."""
        for message in messages:
            if message.role == "user" and message.text.strip() not in text:
                raise EnvError(
                    f"the chat template of {self.name} omits or changes a user message ({message.text[:40]!r} is not in "
                    "the rendered text); set the tokenizer's `chat_template` to another one"
                )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _probe(self) -> None:
        """Raise before anything is sampled if the template cannot be used."""
        before = [Message("user", "first")]
        self.encode_opening(before)
        for text, role in (("words", "user"), ("words", "tool")):
            message, reply = Message("assistant", text), Message(role, "answer")  # type: ignore[arg-type]
            self.encode_reply(before, message, [reply])
            before += [message, reply]


class CallReader:
    """Splits completions into their text and their tool calls.

    Arguments:
        tokenizer: the tokenizer of the model; `None` if it is not known.
        name: the name of the model, for errors.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        self._format: ToolFormat | None = None

    def split(self, answer: Completion, tools: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Split a completion. If a call cannot be read, the text is the whole answer and there are no calls.

        Arguments:
            tools: the offered tools as JSON text.
        """
        if self._format is None:
            self._format = HERMES
            if self.tokenizer is not None and offers_tools(self.tokenizer, tools):
                self._format = detect_format(ChatTemplate(self.tokenizer, self.name, tools)) or HERMES
        parsed = self._format.parse(answer.text, read_schemas(tools))
        text = parsed.text
        if not parsed.calls and answer.token_ids and self.tokenizer is not None:
            # The marks of some formats are special tokens, which are not part of the text.
            written = str(self.tokenizer.decode(answer.token_ids, skip_special_tokens=False))
            parsed = self._format.parse(written, read_schemas(tools))
            text = remove_tokens(parsed.text, self.tokenizer.all_special_tokens)
        if not parsed.calls or any(map(is_malformed, parsed.calls)):
            return answer.text, ()
        return text.strip(), tuple(replace(call, id=f"call_{uuid.uuid4().hex[:24]}") for call in parsed.calls)
