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
from palaestra.engines.base import Answer, Engine, Request, StreamingEngine

PATIENCE = 20
"""Maximum time that a batch waits for requests, in multiples of `max_wait`."""


class Batcher:
    """Batches the requests of many clients for one engine, in one thread.

    Arguments:
        max_batch: maximum number of completions per batch.
        max_wait: seconds without a new request after which a batch starts. A batch waits at most `PATIENCE` times as
            long, so that many clients that receive their answers together share the next batch as well.
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
            batch, closing = self._gather(first)
            try:
                answers = self._generate(batch)
            except Exception as error:  # The clients receive the failure; the server continues.
                failure = Failure(FailureCause.ENGINE, f"{type(error).__name__}: {error}")
                for pending in batch:
                    pending.answers.set_result([failure])
            else:
                for pending, several in zip(batch, answers, strict=True):
                    pending.answers.set_result(several)
            if closing:
                return

    def _gather(self, first: _Pending) -> tuple[list[_Pending], bool]:
        """Return a batch, and whether the queue was closed after it."""
        batch, count = [first], first.request.sampling.count
        deadline = time.monotonic() + PATIENCE * self.max_wait
        while count < self.max_batch:
            try:
                pending = self._queue.get(timeout=max(0.0, min(self.max_wait, deadline - time.monotonic())))
            except Empty:
                break
            if pending is None:
                return batch, True
            batch.append(pending)
            count += pending.request.sampling.count
        return batch, False

    def _generate(self, batch: Sequence[_Pending]) -> list[list[Answer]]:
        requests = [pending.request for pending in batch]
        if not isinstance(self.engine, StreamingEngine) or all(pending.on_token is None for pending in batch):
            return self.engine.generate(requests)

        def forward(slot: tuple[int, int], position: int, token: int) -> None:
            on_token = batch[slot[0]].on_token
            if on_token is not None:
                on_token(slot[1], position, token)

        return self.engine.generate_streaming(requests, forward)


@dataclass(frozen=True, slots=True)
class _Pending:
    request: Request
    on_token: Callable[[int, int, int], None] | None
    answers: Future[list[Answer]] = field(default_factory=Future)


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
