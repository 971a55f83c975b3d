"""Batch the requests of many clients into one engine, and stream texts while they are generated."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from palaestra.core.records import Answer, Engine, Failure, FailureCause, Request
from palaestra.engines.base import JoiningEngine, Slot

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_WAITS = 20
"""Maximum time that a batch waits for requests, in multiples of `max_wait`."""
_log = logging.getLogger(__name__)


class Batcher:
    """Batches the requests of many clients for one engine, in one thread.

    With a `JoiningEngine`, requests join the running batch and are answered when they have finished. A request is aborted
    by cancelling its future: it leaves the queue, or the running batch of a `JoiningEngine`. Other engines finish the
    batch.

    Arguments:
        max_batch: maximum number of completions per batch.
        max_wait: for other engines, seconds without a new request after which a batch starts. A batch waits at most
            `_MAX_WAITS` times as long.

    Attributes:
        aborted: number of aborted requests.
    """

    def __init__(self, engine: Engine, max_batch: int = 128, max_wait: float = 0.01) -> None:
        self.engine, self.max_batch, self.max_wait = engine, max_batch, max_wait
        self.aborted = 0
        self._queue: SimpleQueue[_Pending | _Pause | None] = SimpleQueue()
        self._next: _Pending | _Pause | None = None
        """Taken from the queue, but for the time after the running batch."""
        self._running: dict[int, _Pending] = {}
        self._cancelled: set[Future[list[Answer]]] = set()
        self._thread = threading.Thread(target=self._run, name="palaestra-serve", daemon=True)
        self._thread.start()

    def submit(
        self,
        request: Request,
        on_token: Callable[[int, int, int], None] | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> Future[list[Answer]]:
        """Queue a request. Cancel the future to abort it.

        Arguments:
            on_token: receives completion, position and token id of each new token, if the engine streams.
            on_start: called when the request leaves the queue.
        """
        pending = _Pending(request, on_token, on_start)
        pending.answers.add_done_callback(self._note_abort)
        self._queue.put(pending)
        return pending.answers

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Wait until the earlier requests have been answered or aborted. Later ones wait until the end of the context."""
        pause = _Pause()
        self._queue.put(pause)
        pause.reached.wait()
        try:
            yield
        finally:
            pause.over.set()

    def close(self) -> None:
        """Answer all queued requests, then stop."""
        self._queue.put(None)
        self._thread.join()

    @property
    def running(self) -> int:
        """Number of completions in the running batch."""
        return sum(pending.request.sampling.count for pending in list(self._running.values()))

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return self._queue.qsize()

    def _note_abort(self, answers: Future[list[Answer]]) -> None:
        if answers.cancelled():
            self._cancelled.add(answers)
            self.aborted += 1
            _log.info("a request was aborted: its client has left (%d so far)", self.aborted)

    def _run(self) -> None:
        while (first := self._next or self._queue.get()) is not None:
            self._next = None
            if isinstance(first, _Pause):
                first.reached.set()
                first.over.wait()
                continue
            try:
                self._generate(first)
            except Exception as error:  # The clients receive the failure; the server continues.
                failure = Failure(FailureCause.ENGINE, f"{type(error).__name__}: {error}")
                for pending in self._running.values():
                    pending.resolve([failure])
            self._running = {}
            self._cancelled.clear()

    def _postpone(self, item: _Pause | None) -> None:
        """Keep a pause, or the end, for the time after the running batch."""
        if item is None:
            self._queue.put(None)
        else:
            self._next = item

    def _generate(self, first: _Pending) -> None:
        """Generate a request, and those that arrive until the batch starts or, with a `JoiningEngine`, ends."""
        count, queued, running = 0, [first], self._running
        wait = 0.0 if isinstance(self.engine, JoiningEngine) else self.max_wait
        deadline = time.monotonic() + _MAX_WAITS * wait

        def take(room: int) -> list[Request]:
            nonlocal count
            taken: list[Request] = []
            room = min(room, self.max_batch - self.running)
            while room > 0 and self._next is None:
                try:
                    left = max(0.0, min(wait, deadline - time.monotonic()))
                    pending = queued.pop() if queued else self._queue.get(timeout=left)
                except Empty:
                    break
                if not isinstance(pending, _Pending):
                    self._postpone(pending)
                    break
                if not pending.start():
                    self._cancelled.discard(pending.answers)
                else:
                    running[count] = pending
                    taken.append(pending.request)
                    count, room = count + 1, room - pending.request.sampling.count
            return taken

        def on_token(slot: Slot, position: int, token: int) -> None:
            forward = running[slot[0]].on_token
            if forward is not None:
                forward(slot[1], position, token)

        def on_answer(slot: Slot, answer: Answer) -> None:
            pending = running[slot[0]]
            pending.finished[slot[1]] = answer
            if len(pending.finished) == pending.request.sampling.count:
                pending.resolve([pending.finished[k] for k in range(len(pending.finished))])
                del running[slot[0]]
                self._cancelled.discard(pending.answers)

        def is_aborted(index: int) -> bool:
            return bool(self._cancelled) and running[index].answers in self._cancelled

        if isinstance(self.engine, JoiningEngine):
            self.engine.generate_joining(take, on_token, on_answer, is_aborted)
        else:
            answers = self.engine.generate(take(self.max_batch))
            for pending, several in zip(running.values(), answers, strict=True):
                pending.resolve(several)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request in the queue or in the running batch. Its future can be cancelled until it has a result."""

    request: Request
    on_token: Callable[[int, int, int], None] | None
    on_start: Callable[[], None] | None
    answers: Future[list[Answer]] = field(default_factory=Future)
    finished: dict[int, Answer] = field(default_factory=dict)

    def start(self) -> bool:
        """Note that the request leaves the queue. Returns whether its client still waits."""
        if self.answers.cancelled():
            return False
        if self.on_start is not None:
            self.on_start()
        return True

    def resolve(self, answers: list[Answer]) -> None:
        if not self.answers.done() and self.answers.set_running_or_notify_cancel():
            self.answers.set_result(answers)


@dataclass(frozen=True, slots=True)
class _Pause:
    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


class TextStream:
    """Streams the text of a completion in pieces that do not change later.

    A piece contains whole characters only, and ends before any text that may be the start of a stop string.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.text = ""
        """The text of the tokens so far, up to the last whole character."""
        self.ids: list[int] = []
        self.sent = 0
        self._window = 0, 0
        """The tokens that the next ones are decoded with: the last that completed a text, and the end of the text."""

    def extend(self, token: int) -> str:
        """Append a token. Returns the text that it completes."""
        self.ids.append(token)
        start, end = self._window
        known, text = (self._decode(self.ids[start:stop]) for stop in (end, None))
        if len(text) <= len(known) or text.endswith("\ufffd"):
            return ""
        self._window = end, len(self.ids)
        self.text += text[len(known) :]
        return text[len(known) :]

    def add(self, position: int, token: int) -> str:
        """Return the new piece, possibly empty. Positions that were already added are ignored."""
        if position < len(self.ids):
            return ""
        self.extend(token)
        text, end = self.text, len(self.text)
        for stop in self.stop:
            at = text.find(stop)
            if at >= 0:
                end = min(end, at)
            end = min(end, len(text) - next((k for k in range(len(stop) - 1, 0, -1) if text.endswith(stop[:k])), 0))
        return self.finish(text[:end])

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def finish(self, text: str) -> str:
        """Return the part of a text that was not sent yet."""
        piece, self.sent = text[self.sent :], max(self.sent, len(text))
        return piece
