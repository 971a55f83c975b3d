"""The record of each call to a model: prompt, answer, tokens and money.

`calls.sqlite` has the answers of all runs, but no prompts, and it stays on the machine of the run. The store of a run has
its own calls, so that a reader of the folder sees what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from palaestra.core.records import Completion, Failure, ImagePart, Message, TextPart, ToolCall
from palaestra.core.text import clean_fields
from palaestra.runs.ledger import Spending

LONGEST_URL = 500
"""Maximum characters of an image's URL; a longer one is an image itself and is left out."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, or several with the same request.

    Arguments:
        key: identifies the request, as in the cache.
        phase: the part of the run, for example `2/lesson`.
        messages: the prompt. Images are replaced by their sizes.
        answer: the text of the completion; empty if the call failed.
        failure: why there is no answer.
        stop_reason: why the completion ended.
        spent: the cost of this run's calls. It has no calls if the answer came from the cache.
    """

    key: str
    phase: str
    model: str
    messages: tuple[Message, ...]
    answer: str = ""
    failure: Failure | None = None
    stop_reason: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    spent: Spending = field(default_factory=Spending)

    def __post_init__(self) -> None:
        clean_fields(self, "phase", "model", "answer")

    @property
    def is_cached(self) -> bool:
        return self.spent.calls == 0


class CallLog:
    """Collects the calls of a run until they are stored with the result that they led to."""

    def __init__(self) -> None:
        self._records: dict[str, CallRecord] = {}

    def add(
        self,
        key: str,
        phase: str,
        model: str,
        messages: Sequence[Message],
        answer: Completion | Failure,
        spent: Spending,
    ) -> None:
        """Add a call. A repeated request replaces the first one."""
        record = CallRecord(key, phase, model, tuple(map(_hide, messages)), spent=spent)
        if isinstance(answer, Completion):
            record = replace(
                record, answer=answer.text, stop_reason=str(answer.stop_reason), tool_calls=answer.tool_calls
            )
            if record.is_cached:
                # The tokens are those of the call that another run has paid for.
                record = replace(record, spent=replace(spent, usage=answer.usage))
        else:
            record = replace(record, failure=answer)
        self._records[key] = record

    def take(self) -> list[CallRecord]:
        """Return the calls since the last time, in order, and forget them."""
        records, self._records = list(self._records.values()), {}
        return records


def _hide(message: Message) -> Message:
    """Replace the images of a message."""
    if isinstance(message.content, str):
        return message
    parts = (
        TextPart(f"[image of {len(part.url)} characters]")
        if isinstance(part, ImagePart) and len(part.url) > LONGEST_URL
        else part
        for part in message.content
    )
    return replace(message, content=tuple(parts))
