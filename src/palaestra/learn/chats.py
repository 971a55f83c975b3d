"""A conversation as token ids that only ever grow: what was said is never rendered, or encoded, a second time.

The first messages are encoded as an engine would. After that the model's own ids stay as they were sampled, and what
comes behind them is the text that the chat template adds there: the end of the assistant's message, the answer of the
environment, and the beginning of the next message. That is a well-defined text only for templates under which a longer
conversation begins with the shorter one, so this is checked, once with a probe and then at every turn.
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
"""Stands for an assistant's words while it is found out what the template puts behind them."""
REMEMBERED = 4096
"""Texts and their ids that are kept: games say the same few things all the time."""
WORDS = ("x", "7", ".", "\u00e9")
"""Of these the first that a tokenizer keeps apart from a text stands before it, so that it is not taken for a beginning."""


class ChatEncoder:
    """Encodes openings, and what follows an assistant's message.

    Where the template does not know a role (it refuses such messages, or leaves them out), a tool's messages are
    rendered as a user's, and a system message as the beginning of the user's behind it. So it is, too, where the template
    would move it along as the conversation grows.

    Arguments:
        tokenizer: with a chat template, or without one: then every message is a line.
        name: of the model, for errors.

    Raises:
        EnvError: the chat template changes earlier turns when a later one comes, or leaves out what a user says.

    Example:
        >>> encoder = ChatEncoder(tokenizer)                                                   # doctest: +SKIP
        >>> ids = encoder.opening([Message("user", "Guess.")])                                 # doctest: +SKIP
        >>> ids += sampled                                                                     # doctest: +SKIP
        >>> ids += encoder.answer([Message("user", "Guess.")], said, [Message("user", "Higher.")], sampled[-1])  # doctest: +SKIP
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the model") -> None:
        self.tokenizer, self.name = tokenizer, name
        self._known: dict[tuple[Message, ...], str] = {}
        self._encoded: dict[tuple[str, str], tuple[int, ...]] = {}
        self._rendered: dict[tuple[Message, ...], str] = {}
        self._ends = {key: token.content for key, token in tokenizer.added_tokens_decoder.items()}
        self._tools = self._system = True
        self._system = self._knows_system()
        self._tools = self._knows_tools()
        self._probe()

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids that ask the model for its first message.

        Raises:
            EnvError: there is no message, one holds an image, or the template refuses them or leaves one out.
        """
        if not messages:
            raise EnvError("an episode needs at least one message before the model's first; got none")
        spoken = self._spoken(messages)
        # Refuses in words of ours what `prompt_ids` would refuse in the template's.
        self._check_shown(spoken, self._render(messages))
        return tuple(prompt_ids(self.tokenizer, spoken))

    def answer(
        self, before: Sequence[Message], said: Message, reply: Sequence[Message], last: int | None = None
    ) -> tuple[int, ...]:
        """The ids behind the assistant's own, up to where it speaks next.

        Arguments:
            before: the conversation that `said` continued.
            reply: what came behind it.
            last: the last id that the model sampled; where it is the one with which the template ends a message,
                it is there already.

        Raises:
            EnvError: the template changes earlier turns, refuses the messages or leaves one out, or one holds an image.
        """
        key = tuple(reply)
        suffix = self._known.get(key)
        if suffix is None or not self._follows(before, said, reply, suffix):
            suffix = self._suffix(before, said, reply)
            self._check_shown(self._spoken(reply), suffix)
            if len(self._known) < REMEMBERED:
                self._known[key] = suffix
        end = "" if last is None else self._ends.get(last, "")
        return self._ids(self._without_end(suffix, end), end)

    # Inside

    def _suffix(self, before: Sequence[Message], said: Message, reply: Sequence[Message]) -> str:
        """What the template puts behind the assistant's words."""
        self._rendered.clear()  # A template may name the day, which may have passed.
        marked = self._render([*before, Message("assistant", MARK), *reply])
        _, mark, suffix = marked.partition(MARK)
        if not mark or not self._follows(before, said, reply, suffix):
            raise EnvError(
                f"the chat template of {self.name} changes earlier turns when a later one comes (some remove a message's "
                "reasoning), so the ids that were sampled would not be those that the model reads; give the tokenizer a "
                f"template that keeps them, as its `chat_template`. {self._difference(before, said, reply)}"
            )
        return suffix

    def _follows(self, before: Sequence[Message], said: Message, reply: Sequence[Message], suffix: str) -> bool:
        """Whether the longer conversation is the shorter one, the words, and `suffix`.

        Templates trim a message, or put a space before it; the white space of the ids is what was sampled.
        """
        head, whole = self._render(before), self._render([*before, said, *reply])
        middle = whole.removeprefix(head).removesuffix(suffix)
        return len(head) + len(middle) + len(suffix) == len(whole) and middle.strip() == said.text.strip()

    def _difference(self, before: Sequence[Message], said: Message, reply: Sequence[Message]) -> str:
        head, whole = self._render(before) + said.text.strip(), self._render([*before, said, *reply])
        place = next((k for k, pair in enumerate(zip(head, whole, strict=False)) if pair[0] != pair[1]), len(whole))
        return f"It begins to differ here: {head[place : place + 40]!r} became {whole[place : place + 40]!r}"

    def _check_shown(self, messages: Sequence[Message], text: str) -> None:
        """Raise where a user's words are not in the text that a template made of them; white space may be trimmed."""
        for message in messages:
            if message.role == "user" and message.text.strip() not in text:
                raise EnvError(
                    f"the chat template of {self.name} leaves out, or changes, what a user says ({message.text[:40]!r} is "
                    "not in its text), so the model would not read it; give the tokenizer another `chat_template`"
                )

    def _without_end(self, suffix: str, end: str) -> str:
        """The suffix behind the token that ends a message, where the model has said that one itself."""
        gap, found, rest = suffix.partition(end) if end else ("", "", "")
        return rest if found and not gap.strip() else suffix

    def _ids(self, text: str, end: str) -> tuple[int, ...]:
        """The ids of a text in the middle of a conversation, behind the token `end` or behind words.

        At its beginning some tokenizers put a space before a text (SentencePiece's `\u2581`), or keep one that they drop behind
        a special token. So the text is encoded behind something, whose ids are taken off again.
        """
        found = self._encoded.get((text, end))
        if found is None:
            found = self._behind(text, (end,) if end else WORDS) if text else ()
            if len(self._encoded) < REMEMBERED:
                self._encoded[text, end] = found
        return found

    def _behind(self, text: str, starts: Sequence[str]) -> tuple[int, ...]:
        for start in starts:
            first, whole = self._encode(start), self._encode(start + text)
            # Unknown characters may become one token together with those of the text.
            if whole[: len(first)] == first and self.tokenizer.unk_token_id not in first:
                return whole[len(first) :]
        return self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _render(self, messages: Sequence[Message]) -> str:
        """A conversation as text, up to where the assistant speaks next."""
        from jinja2 import TemplateError

        messages = self._spoken(messages)
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
            raise EnvError(f"the chat template of {self.name} refuses messages of {roles}: {reason}") from error
        if len(self._rendered) >= REMEMBERED:
            self._rendered.clear()
        self._rendered[messages] = text
        return text

    def _spoken(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        for message in messages:
            if not isinstance(message.content, str) and any(isinstance(part, ImagePart) for part in message.content):
                raise EnvError(f"learning from turns reads text; a message of the {message.role} holds an image")
        if not self._tools:
            messages = [Message("user", m.content) if m.role == "tool" else m for m in messages]
        return tuple(messages) if self._system else without_system(messages)

    def _knows_tools(self) -> bool:
        """Whether the template shows what a tool said; some refuse the role, some leave the message out."""
        asked = Message("user", "question")
        try:
            return MARK in self._render([asked, Message("assistant", "call"), Message("tool", MARK)])
        except EnvError:
            return False

    def _knows_system(self) -> bool:
        """Whether the template shows a system message, and leaves it where it is; some put it before the last question."""
        opening = [Message("system", MARK), Message("user", "question")]
        try:
            head = self._render(opening)
            whole = self._render([*opening, Message("assistant", "words"), Message("user", "answer")])
        except EnvError:
            return False
        return MARK in head and whole.startswith(head)

    def _probe(self) -> None:
        """Say before anything is sampled that a template cannot be used; reasoning is what is removed most often."""
        before = [Message("user", "first")]
        self.opening(before)
        for words, role in (("<think>thought</think>\n\nwords", "user"), ("words", "tool"), ("words", "user")):
            said, reply = Message("assistant", words), Message(role, "answer")  # type: ignore[arg-type]
            self.answer(before, said, [reply])
            before += [said, reply]
