"""Completions from a service: OpenAI, Azure OpenAI, or any server that speaks their chat format.

Many calls are in flight at once, and answers come back in the order of their requests. Every completion is
a call of its own, with its own seed: it is repeated, counted and cached alone, and servers that know
nothing of `n` serve it too. What fails for the moment is repeated with patience; what fails for good is that
slot's `Failure`; what would fail for every call (a wrong key, no such model) ends the run in one line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Failure, FailureCause, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Answer, BaseEngine, CallMonitor, Price, Request, Slot
from palaestra.engines.openai_endpoint import Endpoint, find_list_price
from palaestra.engines.openai_format import LIMITS, BrokenAnswerError, Dialect, Trouble, body, read, trouble
from palaestra.engines.retry import AGAIN, WAITING, Patience

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_POLL = 0.01
"""Seconds until a call that the budget told to wait asks again."""
_log = logging.getLogger(__name__)


class OpenAIEngine(BaseEngine):
    """Asks a model that is served somewhere.

    Arguments:
        name: `openai:MODEL`, `azure:DEPLOYMENT` or `http://HOST:PORT/v1#MODEL`; keys come from the environment
            (`palaestra.engines.openai_endpoint`).
        in_flight: most calls at once.
        patience: how calls are repeated that failed for the moment.
        timeout: most seconds for one call, its whole answer included.
        stall: most seconds without a byte, once an answer has begun to arrive.
        notice: seconds without a byte after which the listener is told, and again after twice as long.
        largest: most bytes of an answer; one that is larger is not read on and is a failure.
        exact: ask for token ids and log-probs as well, which vLLM can give.
        identity: what the cache knows the answers by; empty takes address and model. Give one for a server
            that is the same at another address the next time.
        extra: further fields of the call's JSON, for example `{"reasoning_effort": "low"}`.
        listener: is told of every call that will be made again (an event of the phase `AGAIN`), and of calls without an answer
            for `notice` seconds (`WAITING`).

    Raises:
        EngineError: there is no key, or Azure's address is missing.
        MissingExtraError: the `openai` package is not installed.

    Example:
        >>> OpenAIEngine("http://localhost:8000/v1#my-model", in_flight=8).endpoint.model
        'my-model'
    """

    reads_schema = True

    def __init__(
        self,
        name: str,
        *,
        in_flight: int = 32,
        patience: Patience = Patience(),
        timeout: float = 600.0,
        stall: float = 60.0,
        notice: float = 15.0,
        largest: int = 4_000_000,
        exact: bool = False,
        identity: str = "",
        extra: Mapping[str, Any] = MappingProxyType({}),
        listener: Listener = ignore,
    ) -> None:
        if in_flight < 1 or timeout <= 0 or stall <= 0 or notice <= 0 or largest < 1:
            raise SettingsError(
                "an engine for a service needs in_flight and largest of at least 1, and timeout, stall and notice above 0; "
                f"got {in_flight}, {largest}, {timeout}, {stall} and {notice}"
            )
        self.name, self.endpoint, self.listener = name, Endpoint.parse(name), listener
        self.in_flight, self.patience, self.largest = in_flight, patience, largest
        self.timeout, self.stall, self.notice = timeout, stall, notice
        self.extra = {**({"return_token_ids": True, "logprobs": True} if exact else {}), **extra}
        settings = json.dumps(self.extra, sort_keys=True) if self.extra else ""
        self.identity = identity or self.endpoint.identity + settings
        self.endpoint.check()  # A missing key or package is better known now than at the first call.
        self._dialect = Dialect(limit=LIMITS[1] if self.endpoint.kind == "url" else LIMITS[0])
        self._reached = False
        """Whether there was ever somebody at the address."""

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> OpenAIEngine:
        return cls(name, listener=listener, **options)

    @classmethod
    def check(cls, name: str) -> None:
        Endpoint.parse(name).check()

    @classmethod
    def list_price(cls, name: str) -> Price | None:
        return find_list_price(name)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        return self.generate_monitored(requests, _Nobody())

    def generate_monitored(
        self, requests: Sequence[Request], watch: CallMonitor, known: Mapping[Slot, Answer] = MappingProxyType({})
    ) -> list[list[Answer]]:
        slots = [(i, k) for i, request in enumerate(requests) for k in range(request.sampling.count)]
        batch = _Batch(requests, watch, dict(known), iter([slot for slot in slots if slot not in known]))
        if len(batch.answers) < len(slots):
            try:
                _run(self._work(batch, min(self.in_flight, len(slots) - len(batch.answers))))
            except BaseException as error:
                # Interrupted in a notebook, where calls are made in another thread: it starts no further one.
                batch.fatal = batch.fatal or error
                raise
        return [[batch.answers[i, k] for k in range(r.sampling.count)] for i, r in enumerate(requests)]

    async def _work(self, batch: _Batch, workers: int) -> None:
        async with self.endpoint.client(self.timeout) as client:
            watching = asyncio.create_task(self._watch_silence(batch))
            await asyncio.gather(*(self._worker(client, batch) for _ in range(workers)))
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        if batch.fatal is not None:
            raise batch.fatal

    async def _watch_silence(self, batch: _Batch) -> None:
        """Tell the listener when calls have had no answer for `notice` seconds, then for twice as long, and so on."""
        told = 0.0
        while True:
            await asyncio.sleep(min(1.0, self.notice / 4))
            now = time.monotonic()
            silent = [now - at for at in batch.heard.values() if now - at >= self.notice]
            if not silent:
                told = 0.0
            elif max(silent) >= 2 * told:
                told = max(silent)
                data = {"model": self.name, "calls": len(silent), "seconds": told, "limit": self.timeout}
                self.listener(Event(WAITING, data=data))

    async def _worker(self, client: AsyncOpenAI, batch: _Batch) -> None:
        for slot in batch.waiting:
            try:
                batch.answers[slot] = await self._answer(client, batch, slot)
            except Exception as error:  # Whatever it is, the others' calls are paid for: they end first.
                batch.fatal = batch.fatal or error
            if batch.fatal is not None:
                return

    async def _answer(self, client: AsyncOpenAI, batch: _Batch, slot: Slot) -> Answer:
        """Call until there is an answer, a failure for good, or no patience left."""
        request = batch.requests[slot[0]]
        seeds = Seeds(request.seed).derive("call", slot[1])
        first, tried = time.monotonic(), 0
        while True:
            dialect = self._dialect
            try:
                sent = body(self.endpoint, request, slot[1], dialect, self.extra)
            except ValueError as error:
                return Failure(FailureCause.INVALID_REQUEST, str(error))
            await batch.may_start(slot)
            tried, start = tried + 1, time.monotonic()
            try:
                outcome, usage = await self._call(client, sent, request, batch.heard, slot)
            except asyncio.CancelledError:
                batch.watch.after(slot, None, time.monotonic() - start, None)
                raise
            seconds = time.monotonic() - start
            if not isinstance(outcome, Trouble):
                batch.reached = self._reached = True
                batch.watch.after(slot, usage, seconds, outcome)
                return outcome
            batch.reached, self._reached = batch.reached or outcome.connected, self._reached or outcome.connected
            adapted = self._adapt(dialect, outcome.refused)
            wait = None if adapted or not outcome.again else self._wait(batch, outcome, tried, first, seeds)
            last = not adapted and wait is None
            usage = Usage() if usage is None and not outcome.billed else usage
            batch.watch.after(slot, usage, seconds, outcome.failure if last and outcome.fatal is None else None)
            if outcome.fatal is not None:
                raise outcome.fatal
            if last:
                if not batch.reached:
                    raise EngineError(f"nobody answers at {self.endpoint.url}: {outcome.failure.message}")
                return outcome.failure
            if wait is not None:
                data = {"reason": outcome.failure.message, "seconds": wait}
                self.listener(Event(AGAIN, tried, self.patience.tries, data=data))
                await asyncio.sleep(wait)

    def _wait(self, batch: _Batch, outcome: Trouble, tried: int, first: float, seeds: Seeds) -> float | None:
        wait = self.patience.wait(tried, time.monotonic() - first, outcome.wish, seeds, self._reached)
        if wait is not None and outcome.wish is not None:
            # The server wants fewer calls, not this one later: nobody starts before its time.
            batch.quiet_until = max(batch.quiet_until, time.monotonic() + outcome.wish)
        return wait

    async def _call(
        self, client: AsyncOpenAI, sent: Mapping[str, Any], request: Request, heard: dict[Slot, float], slot: Slot
    ) -> tuple[Answer | Trouble, Usage | None]:
        """Make one call.

        Returns its answer or what went wrong, and the usage that the server billed. `heard[slot]` is the time of the last
        byte while the call is under way.
        """
        create: Any = client.chat.completions.with_streaming_response.create
        silent, heard[slot] = True, time.monotonic()
        try:
            async with asyncio.timeout(self.timeout):
                # The client would walk through every message and knows only its own server's options.
                async with create(model=self.endpoint.model, messages=(), extra_body=sent) as response:
                    raw, silent = bytearray(), False
                    pieces = response.iter_bytes().__aiter__()
                    while (piece := await asyncio.wait_for(anext(pieces, None), self.stall)) is not None:
                        raw += piece
                        heard[slot] = time.monotonic()
                        if len(raw) > self.largest:
                            said = (
                                f"{self.name} sent more than {self.largest} bytes; its answer was not read to the end"
                            )
                            return Failure(FailureCause.MALFORMED, said), None
            try:
                data = json.loads(raw)
            except (ValueError, RecursionError) as error:
                raise BrokenAnswerError(f"the answer is no JSON ({len(raw)} bytes): {error}") from error
            return read(data, request.sampling.stop)
        except BrokenAnswerError as error:
            return trouble(error, self.endpoint, sent), error.usage
        except TimeoutError:
            said = f"no answer within {self.timeout:g} s" if silent else (
                f"no further byte for {self.stall:g} s, or no end after {self.timeout:g} s"
            )  # fmt: skip
            return trouble(BrokenAnswerError(said, silent=silent), self.endpoint, sent), None
        except Exception as error:  # The client's errors, and those of whichever httpx it stands on.
            return trouble(error, self.endpoint, sent), None
        finally:
            heard.pop(slot, None)

    def _adapt(self, used: Dialect, refused: str) -> bool:
        """Learn that the server refuses an option; whether the call is worth making again without it."""
        if not refused:
            return False
        now = self._dialect
        if refused in now.without:
            return used != now  # Another call has learned it in the meantime.
        if refused in LIMITS:
            other = LIMITS[1 - LIMITS.index(refused)]
            if other in now.without:
                return False
            now = replace(now, limit=other)
        elif refused not in ("stop", "response_format"):
            _log.warning("%s does not accept '%s'; it is left out and has no effect", self.name, refused)
        self._dialect = replace(now, without=now.without | {refused})
        return True


@dataclass(slots=True)
class _Batch:
    """The calls of one `generate`, and what its workers share."""

    requests: Sequence[Request]
    watch: CallMonitor
    answers: dict[Slot, Answer]
    waiting: Iterator[Slot]
    fatal: BaseException | None = None
    reached: bool = False
    """Whether anybody has answered at all."""
    quiet_until: float = 0.0
    heard: dict[Slot, float] = field(default_factory=dict)
    """When the last byte came, or the call began, of each call that is under way."""

    async def may_start(self, slot: Slot) -> None:
        """Wait for the server's wish and for the budget; raises what ended the batch in the meantime."""
        while True:
            if self.fatal is not None:
                raise self.fatal
            quiet = self.quiet_until - time.monotonic()
            if quiet > 0:
                await asyncio.sleep(quiet)
            elif self.watch.before(slot):
                return
            else:
                await asyncio.sleep(_POLL)


class _Nobody:
    """Watches nothing."""

    def before(self, slot: Slot) -> bool:
        return True

    def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
        pass


def _run(work: Any) -> None:
    """Run a coroutine to its end, also where a loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    raised: list[BaseException] = []

    def alone() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=alone, name="palaestra-calls")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
