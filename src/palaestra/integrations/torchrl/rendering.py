"""A conversation through a chat template, with nothing left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from palaestra.core.errors import EnvError
from palaestra.integrations.torchrl.entries import Chat

PROBE = [
    {"role": "system", "content": "Seventeen grey herons."},
    {"role": "user", "content": "Nine quiet otters."},
    {"role": "assistant", "content": "Four young larches."},
    {"role": "user", "content": "Two slow barges."},
]
"""What is looked for in a rendered conversation, to see what a template makes of it."""


class Renderer:
    """Makes the text of a conversation that a model reads, by its tokenizer's chat template.

    Templates differ in what they take. Some refuse system messages, or leave them out: for those the system's text is the
    beginning of the user's. Some want the parts of a message in place of its text. Which it is, is found once, by
    rendering a conversation in each form. A tokenizer without a template gets the texts of the messages, a line each.

    Arguments:
        tokenizer: of transformers, or anything with its `apply_chat_template` and `chat_template`.
        template: a chat template in place of the tokenizer's own.
        continue_final: leave the last message open, so that the model goes on with it, instead of asking for another.

    Raises:
        EnvError: in every form the template refuses a conversation, or leaves out what somebody says in it.
    """

    def __init__(self, tokenizer: Any, template: str | None = None, continue_final: bool = False) -> None:
        self.tokenizer, self.continue_final = tokenizer, continue_final
        self.template = template if template is not None else tokenizer.chat_template
        self._in_parts, self._joined = self._form()

    def __call__(self, conversation: Chat, ask: bool = True) -> str:
        """The text of a conversation.

        Arguments:
            ask: up to where the assistant speaks next.

        Raises:
            EnvError: the template refuses it.
        """
        if self.template is None:
            return "".join(f"{message['content']}\n" for message in conversation)
        return self._applied(conversation, ask, self._in_parts, self._joined)

    @property
    def ending(self) -> str:
        """What the template puts behind an assistant's message; empty where it takes none at the end."""
        *before, said, _ = PROBE
        try:
            return self([*before, said], ask=False).partition(said["content"])[2].strip()
        except EnvError:
            return ""

    def _form(self) -> tuple[bool, bool]:
        """Whether to give parts, and whether to join the system's text to the user's."""
        if self.template is None:
            return False, False
        lost, refused = list[str](), list[str]()
        for in_parts, joined in product((False, True), repeat=2):
            try:
                text = self._applied(PROBE, True, in_parts, joined)
            except EnvError as error:
                refused.append(str(error))
                continue
            missing = [message["role"] for message in PROBE if message["content"] not in text]
            if not missing:
                return in_parts, joined
            lost.append(f"the chat template leaves out what the {missing[-1]} says")
        raise EnvError(f"{[*lost, *refused][0]}; give the tokenizer another, as its `chat_template`")

    def _applied(self, conversation: Chat, ask: bool, in_parts: bool, joined: bool) -> str:
        from jinja2 import TemplateError

        given: Sequence[dict[str, Any]] = _joined(conversation) if joined else conversation
        if in_parts:
            given = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in given]
        try:
            # Not by `History.apply_chat_template`: it takes a template of TorchRL's own for most tokenizers, by their name.
            return str(
                self.tokenizer.apply_chat_template(
                    given,
                    chat_template=self.template,
                    tokenize=False,
                    **(
                        {"continue_final_message": True}
                        if ask and self.continue_final
                        else {"add_generation_prompt": ask}
                    ),
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles, reason = ", ".join(message["role"] for message in given), " ".join(str(error).split())
            raise EnvError(f"the chat template refuses messages of {roles}: {reason}") from error


def _joined(conversation: Chat) -> Chat:
    """The same with the system's text as the beginning of the user's."""
    match conversation:
        case [{"role": "system", "content": system}, {"role": "user", "content": asked}, *rest]:
            return [{"role": "user", "content": f"{system}\n\n{asked}"}, *rest]
    return conversation
