"""Encode a growing conversation as token ids. Tokens are only appended; nothing is tokenised again.

The opening is encoded as an engine would encode it. The model's own ids stay as they were sampled. After them comes the
text that the chat template adds: the end of the assistant's message, the reply, and the start of the next message. This
text exists only if the template renders a longer conversation as an extension of the shorter one. The encoder checks this
once with a probe and again at every turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palaestra.core.errors import EnvError
from palaestra.core.records import ImagePart, Message
from palaestra.engines.chat import prompt_ids, without_system

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\u241eMARK\u241e"
"""Placeholder for an assistant's message, to find the text that the template adds after it."""
CACHE_SIZE = 4096
"""Cached texts. Environments often repeat the same replies."""
PREFIXES = ("x", "7", ".", "\u00e9")
"""A text is encoded after the first of these that stays a token of its own, and is then not at the start of a text."""


class ChatEncoder:
    """Encodes the opening of a conversation, and the replies to the assistant's messages.

    If the template rejects or omits tool messages, they are rendered as user messages. If it rejects, omits or moves
    system messages, they are rendered as the start of the following user message.

    Arguments:
        tokenizer: with a chat template. Without one, every message is a line.
        name: of the model, for error messages.

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
        self._encoded: dict[tuple[str, str], tuple[int, ...]] = {}
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
                    "the rendered text); set another `chat_template` of the tokenizer"
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
        ids = self._encoded.get((text, end))
        if ids is None:
            ids = self._encode_with_prefix(text, (end,) if end else PREFIXES) if text else ()
            if len(self._encoded) < CACHE_SIZE:
                self._encoded[text, end] = ids
        return ids

    def _encode_with_prefix(self, text: str, prefixes: Sequence[str]) -> tuple[int, ...]:
        for prefix in prefixes:
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
                f"the chat template of {self.name} rejects messages of the roles {roles}: {reason}"
            ) from error
        if len(self._rendered) >= CACHE_SIZE:
            self._rendered.clear()
        self._rendered[messages] = text
        return text

    def _adapt_roles(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        for message in messages:
            if not isinstance(message.content, str) and any(isinstance(part, ImagePart) for part in message.content):
                raise EnvError(f"expected messages of text; a message of the {message.role} has an image")
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
