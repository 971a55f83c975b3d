"""History processors: what a model sees of a long conversation.

The conversation itself only grows. A processor shortens the view of the model: it keeps the beginning (everything
before the model's first message) and never separates a tool call from its answer. To add one, write a class and
register it:

    HISTORIES.register("mine", "my_package.history:Mine", "what it leaves out")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from palaestra.core.errors import SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Json, Message
from palaestra.core.registry import Registry
from palaestra.envs.turn.base import transcript
from palaestra.research.agents.base import Halt
from palaestra.research.workspace.commands.files import HEADER
from palaestra.research.workspace.templates import TaskText

HISTORIES = Registry("history processor", "palaestra.histories")
_WINDOW = re.compile(
    HEADER.pattern + r"(?:\n(?:\d+\|.*|\(\d+ more lines? (?:above|below)\)|\(the file is empty\))$)*", re.MULTILINE
)
"""A window: its header and its numbered lines."""


class HistoryContext(Protocol):
    """What a processor may use."""

    prompts: Prompts

    def tokens(self, messages: Sequence[Message]) -> int:
        """Count the tokens of the messages for the model, exactly or by estimate."""
        ...

    def write(self, messages: Sequence[Message]) -> str | Halt:
        """Return the model's answer to the messages, at the agent's cost."""
        ...


class History:
    """A history processor.

    Arguments:
        argument: the text after the colon of its name.
    """

    takes: str | None = None

    def __init__(self, argument: str = "") -> None:
        if argument and self.takes is None:
            raise SettingsError(f"this history processor takes no argument; got ':{argument}'")

    def shorten(self, messages: Sequence[Message], context: HistoryContext) -> list[Message] | Halt:
        """Return the messages that the model sees, or a `Halt` if it cannot continue."""
        raise NotImplementedError(f"{type(self).__name__} must implement `shorten`")

    def state(self) -> Json:
        """Return its state besides the conversation, as plain data."""
        return {}

    def restore(self, state: Json) -> None:
        """Restore a `state`."""


def make_history(spec: str) -> History:
    """Make a processor from a specification such as `closed_windows` or `last:5`.

    Raises:
        UnknownNameError: there is no such processor; suggests the nearest one.
        SettingsError: its argument is invalid.
    """
    name, _, argument = spec.partition(":")
    history: History = HISTORIES.get(name)(argument)
    return history


class LastObservations(History):
    """Shows the last N observations, and only the length of earlier ones."""

    takes = "N"

    def __init__(self, argument: str = "") -> None:
        self.count = _parse_count("last", argument)

    def shorten(self, messages: Sequence[Message], context: HistoryContext) -> list[Message]:
        first = _opening(messages)
        observed = [k for k, message in enumerate(messages) if k >= first and message.role != "assistant"]
        old = set(observed[: max(0, len(observed) - self.count)])
        return [_omit(message, context) if k in old else message for k, message in enumerate(messages)]


class ClosedWindows(History):
    """Closes the window of a file if a later message shows the same file."""

    def shorten(self, messages: Sequence[Message], context: HistoryContext) -> list[Message]:
        shown = list(messages)
        seen: set[str] = set()
        for k in range(len(messages) - 1, _opening(messages) - 1, -1):
            if messages[k].role != "assistant":
                shown[k] = replace(messages[k], content=self._close(messages[k].text, seen, context))
        return shown

    def _close(self, text: str, seen: set[str], context: HistoryContext) -> str:
        """Remove windows of files in `seen`, and add this text's files to `seen`."""
        for match in reversed(list(_WINDOW.finditer(text))):
            path = match[1]
            if path in seen:
                lines = match[0].count("\n")
                note = context.prompts.render("closed_window", path=path, lines=lines, observation=text)
                text = text[: match.start()] + note + text[match.end() :]
            seen.add(path)
        return text


class Summary(History):
    """Replaces the older part of a conversation with a summary by the model if it exceeds a token budget.

    About half of the budget is left for the newest messages. A summary is written once, and the next one builds on it,
    so that the model's view changes only then.
    """

    takes = "TOKENS"

    def __init__(self, argument: str = "") -> None:
        self.budget = _parse_count("summary", argument)
        self.until, self.text = 0, ""

    def shorten(self, messages: Sequence[Message], context: HistoryContext) -> list[Message] | Halt:
        first = _opening(messages)
        if self.until > len(messages):
            self.until, self.text = 0, ""  # A new episode.
        shown = self._view(messages, first, context)
        if context.tokens(shown) <= self.budget:
            return shown
        cut = self._find_cut(messages, max(first, self.until), context)
        if cut is None:
            return shown
        written = context.write((Message("user", self._question(messages, first, cut, context)),))
        if isinstance(written, Halt):
            return written
        self.until, self.text = cut, written.strip()
        return self._view(messages, first, context)

    def state(self) -> Json:
        return {"until": self.until, "text": self.text}

    def restore(self, state: Json) -> None:
        self.until, self.text = int(state.get("until", 0)), str(state.get("text", ""))

    def _view(self, messages: Sequence[Message], first: int, context: HistoryContext) -> list[Message]:
        if not self.until:
            return list(messages)
        # Appended to the opening, whose last message is the user's: some chat templates reject two in a row.
        summary = context.prompts.render("summary", summary=self.text)
        last = messages[first - 1]
        opening = replace(last, content=f"{last.text}\n\n{summary}")
        return [*messages[: first - 1], opening, *messages[self.until :]]

    def _find_cut(self, messages: Sequence[Message], start: int, context: HistoryContext) -> int | None:
        """Return where the unshortened part begins: at a message of the model, so that no answer loses its call."""
        turns = [k for k in range(start, len(messages)) if messages[k].role == "assistant"]
        for k in turns[1:]:
            if context.tokens(messages[k:]) <= self.budget // 2:
                return k
        return turns[-1] if len(turns) > 1 else None

    def _question(self, messages: Sequence[Message], first: int, cut: int, context: HistoryContext) -> str:
        old = messages[max(first, self.until) : cut]
        # The request has to fit the model as well: the middle of long messages is left out.
        most = max(200, 3 * self.budget // max(1, len(old)))
        written = "\n\n".join(f"[{message.role}]\n{_middle(transcript(message), most)}" for message in old)
        task = TaskText(_middle(messages[first - 1].text, self.budget), context.prompts.get_bound("task"))
        words = max(50, self.budget // 8)
        return context.prompts.render("summarize", task=task, before=self.text, transcript=written, words=words)


def _opening(messages: Sequence[Message]) -> int:
    """Count the messages before the model's first one.

    >>> _opening([Message("system", "s"), Message("user", "u"), Message("assistant", "a"), Message("user", "o")])
    2
    """
    return next((k for k, message in enumerate(messages) if message.role == "assistant"), len(messages))


def _omit(message: Message, context: HistoryContext) -> Message:
    lines = message.text.count("\n") + 1
    return replace(message, content=context.prompts.render("omitted", lines=lines, observation=message.text))


def _middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n({len(text) - 2 * half} characters left out)\n{text[-half:]}"


def _parse_count(name: str, argument: str) -> int:
    if not argument.isdecimal() or int(argument) < 1:
        given = f"{name}:{argument}" if argument else name
        raise SettingsError(f"expected the history processor {name}:N with N >= 1; got '{given}'")
    return int(argument)


HISTORIES.register("last", LastObservations, "last:N: keeps the last N observations; a note replaces each other one")
HISTORIES.register("closed_windows", ClosedWindows, "keeps only the last window of every file")
HISTORIES.register("summary", Summary, "summary:TOKENS: the model summarizes the older part of a longer conversation")
