"""What a chat template supports, and conversations in the form that it accepts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from palaestra.chat.rendering import (
    MARK,
    find_shared_prefix,
    offers_tools,
    render_conversation,
    to_plain,
    with_tools,
    without_system,
)
from palaestra.core.errors import EnvError
from palaestra.core.records import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARKED_ARGUMENTS = json.dumps({"value": MARK}, ensure_ascii=False)
"""The arguments of a call with a mark in them."""
_QUESTION, _WORDS = Message("user", "probe-question"), Message("assistant", "words")


class ChatTemplate:
    """The chat template of a tokenizer. Its abilities are found by rendering short conversations.

    Tool messages that it rejects or omits become user messages. System messages that it rejects, omits or moves are put
    before the next user message.

    Arguments:
        tokenizer: with a chat template. Without one, every message is a line.
        name: the model's name, for error messages.
        tools: the tools that the model may call, as in `Request.tools`. If the template does not support tools, they are
            described in the system message, and their answers are user messages.
        describe_tools: describe tools in the system message even if the template supports them.

    Attributes:
        offered_tools: `tools` if the template supports tools; empty otherwise.
        max_calls: the maximum number of calls in one message; 0 if the template cannot render calls.
        end_tokens: the special tokens that end a message of the assistant. Some templates have one for calls, or for the
            last message.
        closing: the text after a message of the assistant, whether or not another message follows.
        preserves_prefix: whether a longer conversation is rendered as an extension of the shorter one.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "the model",
        tools: str = "",
        *,
        describe_tools: bool = False,
    ) -> None:
        self.tokenizer, self.name = tokenizer, name
        self.offered_tools = tools if tools and not describe_tools and offers_tools(tokenizer, tools) else ""
        self._tool_description = "" if self.offered_tools else tools
        self._special_tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self._has_system_role = self._has_tool_role = True
        self._alternates = self._text_arguments = False
        self._has_system_role = self._supports_system()
        self.max_calls = 0 if self._tool_description else self._find_max_calls()
        self._has_tool_role = self._supports_tools()
        self._alternates = self._requires_alternation()
        self.closing = ""
        self.end_tokens = self._find_end_tokens()
        self.preserves_prefix = self._is_prefix_preserving()

    def render(self, messages: Sequence[Message], generation_prompt: bool = True) -> str:
        """Render messages of `adapt`.

        Raises:
            EnvError: the template rejects them.
        """
        from jinja2 import TemplateError

        try:
            return render_conversation(
                self.tokenizer,
                messages,
                self.offered_tools,
                generation_prompt=generation_prompt,
                text_arguments=self._text_arguments,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message.role for message in messages)
            reason = " ".join(str(error).split())
            raise EnvError(
                f"the chat template of {self.name} rejects messages with the roles {roles}: {reason}"
            ) from error

    def render_after_mark(self, messages: Sequence[Message], generation_prompt: bool = True) -> str:
        """Render messages of `adapt` and return the text after the mark.

        Raises:
            EnvError: the template rejects the messages, or omits the marked one.
        """
        _, mark, rest = self.render(messages, generation_prompt).partition(MARK)
        if not mark:
            raise EnvError(
                f"the chat template of {self.name} omits a message of the assistant; set the tokenizer's "
                "`chat_template` to another one"
            )
        return rest

    def adapt(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Convert roles and tools that the template does not support.

        Raises:
            EnvError: a message has an image.
        """
        if any(message.has_image for message in messages):
            raise EnvError("expected text messages; got a message with an image")
        adapted: list[Message] = []
        answers_call = was_converted = False
        for message in messages:
            if message.role == "assistant":
                answers_call = bool(message.tool_calls)
            is_converted = message.role == "tool" and (
                bool(self._tool_description) or not (self._has_tool_role or answers_call)
            )
            if is_converted:
                message = to_plain(message) if self._tool_description else Message("user", message.content)
            if self._alternates and (is_converted or was_converted) and adapted[-1].role == message.role == "user":
                adapted[-1] = Message("user", f"{adapted[-1].text}\n\n{message.text}")
            else:
                adapted.append(message)
                was_converted = is_converted
        if self._tool_description:
            adapted = list(with_tools(adapted, self._tool_description))
        return tuple(adapted) if self._has_system_role else without_system(adapted)

    def blank(self, message: Message) -> Message:
        """Replace the words of a message of the assistant, and the arguments of its calls."""
        if message.role != "assistant":
            return message
        calls = message.tool_calls[-self.max_calls :] if self.max_calls else ()
        return Message("assistant", "", tuple(replace(call, arguments="{}") for call in calls)) if calls else _WORDS

    def mark(self, message: Message) -> Message:
        """Put the mark at the end of a message of the assistant: in its last call, or in its text."""
        calls = self.blank(message).tool_calls
        if not calls:
            return Message("assistant", MARK)
        return Message("assistant", "", (*calls[:-1], replace(calls[-1], arguments=_MARKED_ARGUMENTS)))

    # Abilities

    def _supports_system(self) -> bool:
        """Whether the template renders a system message in its place; some move it before the last user message."""
        opening = [Message("system", MARK), _QUESTION]
        try:
            head = self.render(opening).partition(_QUESTION.text)[0]
            longer = self.render([*opening, _WORDS, Message("user", "probe-answer")]).partition(_QUESTION.text)[0]
        except EnvError:
            return False
        return MARK in head and longer == head

    def _supports_tools(self) -> bool:
        """Whether the template renders tool messages that answer no call; some reject the role, some omit the message."""
        try:
            return MARK in self.render([_QUESTION, _WORDS, Message("tool", MARK)])
        except EnvError:
            return False

    def _find_max_calls(self) -> int:
        """Render one call and several. Some templates accept arguments only as text, and some only one call."""
        calls = tuple(ToolCall("probe", _MARKED_ARGUMENTS, f"call{k:05d}") for k in range(2))
        answers = [Message("tool", f"answer {call.id}", tool_call_id=call.id) for call in calls]
        for count, limit in ((2, 1000), (1, 1)):
            for self._text_arguments in (False, True):
                try:
                    text = self.render([_QUESTION, Message("assistant", "", calls[:count]), *answers[:count]])
                except EnvError:
                    continue
                if text.count(MARK) == count and all(answer.text in text for answer in answers[:count]):
                    return limit
        self._text_arguments = False
        return 0

    def _requires_alternation(self) -> bool:
        try:
            self.render([_QUESTION, _QUESTION])
        except EnvError:
            return True
        return False

    def _find_end_tokens(self) -> tuple[str, ...]:
        """The tokens that end a message of the assistant: in the middle of a conversation, at its end, and after a call.

        In some templates only the start of the next message ends a message. These have none.
        """
        opening, marked = self.adapt([_QUESTION]), Message("assistant", MARK)
        tokens = []
        try:
            final = self.render_after_mark([*opening, marked], False)
            if not (last := self._find_leading_token(final)):
                return ()
            suffix = self.render_after_mark([*opening, marked, Message("user", "probe-answer")])
            self.closing = find_shared_prefix(final, suffix)
            if token := self._find_leading_token(suffix):
                header = suffix.partition(token)[2].partition("probe-answer")[0]
                # Otherwise the token is the start of the next message, and only the last message has an end.
                if token == last or any(special in header for special in self._special_tokens):
                    tokens = [token, last]
            call = [*opening, Message("assistant", "", (ToolCall("probe", _MARKED_ARGUMENTS, "call00000"),))]
            if self.max_calls and (end_of_call := self.render_after_mark(call, False)) != self.render_after_mark(call):
                tokens += [token for token in self._special_tokens if end_of_call.rstrip().endswith(token)]
        except EnvError:
            pass
        return tuple(dict.fromkeys(tokens))

    def _find_leading_token(self, text: str) -> str:
        return next((token for token in self._special_tokens if text.lstrip().startswith(token)), "")

    def _is_prefix_preserving(self) -> bool:
        """Whether the rendering of a conversation with reasoning and calls begins with that of each shorter one.

        White space around the assistant's messages is ignored: some templates trim it or add a space.
        """
        conversation = [_QUESTION, Message("assistant", "<think>\nthought\n</think>\n\nwords"), Message("user", "next")]
        if self.max_calls:
            call = ToolCall("probe", "{}", "call00000")
            conversation += [Message("assistant", "", (call,)), Message("tool", "result", tool_call_id=call.id)]
        conversation += [_WORDS, Message("user", "last")]
        try:
            for place, message in enumerate(conversation):
                if message.role == "assistant":
                    head = self.render(self.adapt(conversation[:place]))
                    longer = self.render(self.adapt(conversation[: place + 2]))
                    if not longer.startswith(head) or not longer[len(head) :].lstrip().startswith(message.text):
                        return False
        except EnvError:
            return False
        return True


def is_marked(message: Message) -> bool:
    """Whether a message contains the mark of `ChatTemplate.mark`."""
    return message.role == "assistant" and (
        MARK in message.text or any(MARK in call.arguments for call in message.tool_calls)
    )
