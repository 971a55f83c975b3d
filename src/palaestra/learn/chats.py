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
from palaestra.engines.chat import prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\u241eMARK\u241e"
"""Stands for an assistant's words while it is found out what the template puts behind them."""
REMEMBERED = 4096
"""Texts and their ids that are kept: games say the same few things all the time."""


class ChatEncoder:
    """Encodes openings, and what follows an assistant's message.

    A tool's messages are rendered as a user's where the template does not know the role.

    Arguments:
        tokenizer: with a chat template, or without one: then every message is a line.
        name: of the model, for errors.

    Raises:
        EnvError: the chat template changes earlier turns when a later one comes.

    Example:
        >>> encoder = ChatEncoder(tokenizer)                                                   # doctest: +SKIP
        >>> ids = encoder.opening([Message("user", "Guess.")])                                 # doctest: +SKIP
        >>> ids += sampled                                                                     # doctest: +SKIP
        >>> ids += encoder.answer([Message("user", "Guess.")], said, [Message("user", "Higher.")], sampled[-1])  # doctest: +SKIP
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the model") -> None:
        self.tokenizer, self.name = tokenizer, name
        self._known: dict[tuple[Message, ...], str] = {}
        self._encoded: dict[str, tuple[int, ...]] = {}
        self._rendered: dict[tuple[Message, ...], str] = {}
        self._tools = True
        self._tools = self._knows_tools()
        self._probe()

    def opening(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids that ask the model for its first message.

        Raises:
            EnvError: there is no message, one holds an image, or the template refuses them.
        """
        if not messages:
            raise EnvError("an episode needs at least one message before the model's first; got none")
        spoken = self._spoken(messages)
        self._render(spoken)  # Refuses in words of ours what `prompt_ids` would refuse in the template's.
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
            EnvError: the template changes earlier turns, refuses the messages, or one holds an image.
        """
        key = tuple(reply)
        suffix = self._known.get(key)
        if suffix is None or not self._follows(before, said, reply, suffix):
            suffix = self._suffix(before, said, reply)
            if len(self._known) < REMEMBERED:
                self._known[key] = suffix
        return self._ids(suffix if last is None else self._without_end(suffix, last))

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

    def _without_end(self, suffix: str, last: int) -> str:
        """The suffix behind the token that ends a message, where the model has said that one itself."""
        end = self.tokenizer.convert_ids_to_tokens(last)
        gap, found, rest = suffix.partition(end) if isinstance(end, str) and end else ("", "", "")
        return rest if found and not gap.strip() else suffix

    def _ids(self, text: str) -> tuple[int, ...]:
        found = self._encoded.get(text)
        if found is None:
            found = tuple(self.tokenizer.encode(text, add_special_tokens=False)) if text else ()
            if len(self._encoded) < REMEMBERED:
                self._encoded[text] = found
        return found

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
        if self._tools:
            return tuple(messages)
        return tuple(Message("user", m.content) if m.role == "tool" else m for m in messages)

    def _knows_tools(self) -> bool:
        """Whether the template shows what a tool said; some refuse the role, some leave the message out."""
        asked = Message("user", "question")
        try:
            return MARK in self._render([asked, Message("assistant", "call"), Message("tool", MARK)])
        except EnvError:
            return False

    def _probe(self) -> None:
        """Say before anything is sampled that a template cannot be used; reasoning is what is removed most often."""
        before = [Message("user", "first")]
        for words, role in (("<think>thought</think>\n\nwords", "user"), ("words", "tool"), ("words", "user")):
            said, reply = Message("assistant", words), Message(role, "answer")  # type: ignore[arg-type]
            self.answer(before, said, [reply])
            before += [said, reply]
