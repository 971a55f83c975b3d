"""Batch the requests of many clients into one engine, and stream texts while they are generated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from palaestra.core.records import Failure, FailureCause
from palaestra.engines.base import Answer, Engine, Request, Slot, StreamingEngine

PATIENCE = 20
"""Maximum time that a batch waits for requests, in multiples of `max_wait`."""


class Batcher:
    """Batches the requests of many clients for one engine, in one thread.

    With a `StreamingEngine`, requests join the running batch and are answered when they have finished.

    Arguments:
        max_batch: maximum number of completions per batch.
        max_wait: for other engines, seconds without a new request after which a batch starts. A batch waits at most
            `PATIENCE` times as long.
    """

    def __init__(self, engine: Engine, max_batch: int = 128, max_wait: float = 0.01) -> None:
        self.engine, self.max_batch, self.max_wait = engine, max_batch, max_wait
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="palaestra-serve", daemon=True)
        self._thread.start()

    def submit(self, request: Request, on_token: Callable[[int, int, int], None] | None = None) -> Future[list[Answer]]:
        """Queue a request.

        Arguments:
            on_token: receives completion, position and token id of each new token, if the engine streams.
        """
        pending = _Pending(request, on_token)
        self._queue.put(pending)
        return pending.answers

    def close(self) -> None:
        """Answer all queued requests, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            unanswered: dict[int, _Pending] = {}
            try:
                if isinstance(self.engine, StreamingEngine):
                    self._generate_joining(self.engine, first, unanswered)
                else:
                    self._gather(first, unanswered)
                    answers = self.engine.generate([pending.request for pending in unanswered.values()])
                    for pending, several in zip(unanswered.values(), answers, strict=True):
                        pending.answers.set_result(several)
            except Exception as error:  # The clients receive the failure; the server continues.
                failure = Failure(FailureCause.ENGINE, f"{type(error).__name__}: {error}")
                for pending in unanswered.values():
                    pending.answers.set_result([failure])

    def _gather(self, pending: _Pending | None, unanswered: dict[int, _Pending]) -> None:
        """Add a request and those that arrive now."""
        deadline = time.monotonic() + PATIENCE * self.max_wait
        while pending is not None:
            if pending.start():
                unanswered[len(unanswered)] = pending
            if _count_completions(unanswered) >= self.max_batch:
                return
            try:
                pending = self._queue.get(timeout=max(0.0, min(self.max_wait, deadline - time.monotonic())))
            except Empty:
                return
        self._queue.put(None)

    def _generate_joining(self, engine: StreamingEngine, first: _Pending, unanswered: dict[int, _Pending]) -> None:
        """Generate a request and all that arrive, until there are none. `unanswered` keeps those without an answer."""
        count, queued = 0, [first]

        def take(room: int) -> list[Request]:
            nonlocal count
            taken: list[Request] = []
            room = min(room, self.max_batch - _count_completions(unanswered))
            while room > 0:
                try:
                    pending = queued.pop() if queued else self._queue.get_nowait()
                except Empty:
                    break
                if pending is None:
                    self._queue.put(None)
                    break
                if pending.start():
                    unanswered[count] = pending
                    taken.append(pending.request)
                    count, room = count + 1, room - pending.request.sampling.count
            return taken

        def on_token(slot: Slot, position: int, token: int) -> None:
            forward = unanswered[slot[0]].on_token
            if forward is not None:
                forward(slot[1], position, token)

        def on_answer(slot: Slot, answer: Answer) -> None:
            pending = unanswered[slot[0]]
            pending.finished[slot[1]] = answer
            if len(pending.finished) == pending.request.sampling.count:
                pending.answers.set_result([pending.finished[k] for k in range(len(pending.finished))])
                del unanswered[slot[0]]

        engine.generate_joining(take, on_token, on_answer)


@dataclass(frozen=True, slots=True)
class _Pending:
    request: Request
    on_token: Callable[[int, int, int], None] | None
    answers: Future[list[Answer]] = field(default_factory=Future)
    finished: dict[int, Answer] = field(default_factory=dict)

    def start(self) -> bool:
        """Return whether the client still waits. From now on the request cannot be cancelled."""
        return self.answers.set_running_or_notify_cancel()


def _count_completions(unanswered: dict[int, _Pending]) -> int:
    return sum(pending.request.sampling.count for pending in unanswered.values())


class TextStream:
    """Streams the text of a completion in pieces that do not change later.

    A piece contains whole characters only, and ends before any text that may be the start of a stop string.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.ids: list[int] = []
        self.sent = 0

    def add(self, position: int, token: int) -> str:
        """Return the new piece, possibly empty. Positions that were already added are ignored."""
        if position < len(self.ids):
            return ""
        self.ids.append(token)
        text = str(self.tokenizer.decode(self.ids, skip_special_tokens=True))
        end = len(text.rstrip("\ufffd"))
        for stop in self.stop:
            at = text.find(stop)
            if at >= 0:
                end = min(end, at)
            end = min(end, len(text) - next((k for k in range(len(stop) - 1, 0, -1) if text.endswith(stop[:k])), 0))
        return self._send(text[:end])

    def finish(self, text: str) -> str:
        """Return the rest of the whole text."""
        return self._send(text)

    def _send(self, text: str) -> str:
        piece, self.sent = text[self.sent :], max(self.sent, len(text))
        return piece
