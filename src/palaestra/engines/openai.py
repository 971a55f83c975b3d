"""Completions from a service: OpenAI, Azure OpenAI, or any server with the same chat format.

Many calls run at once, and answers are returned in the order of their requests. Every completion is a separate call with
its own seed, so it is repeated, counted and cached on its own. Calls with temporary failures are repeated. A permanent
failure becomes the `Failure` of its slot. Errors that every call would have (wrong key, unknown model) raise `EngineError`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, SettingsError
from palaestra.core.records import Answer, Event, Failure, FailureCause, Json, Listener, Request, Usage, ignore, notice
from palaestra.core.seeding import Seeds
from palaestra.core.text import mask
from palaestra.engines.base import BaseEngine, CallMonitor, Price, Slot
from palaestra.engines.openai_endpoint import RETRY, WAITING, Endpoint, RetryPolicy, find_list_price
from palaestra.engines.openai_format import (
    LIMITS,
    BrokenAnswerError,
    CallError,
    build_body,
    classify_error,
    decode_response,
    parse_response,
)
from palaestra.engines.server_pool import Server, ServerPool
from palaestra.models.registry import hash_files
from palaestra.runs.cache import digest

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_POLL = 0.01
"""Seconds between two budget checks of a waiting call."""
_log = logging.getLogger(__name__)


class OpenAIEngine(BaseEngine):
    """Calls a model of a service.

    Arguments:
        name: `openai:MODEL`, `azure:DEPLOYMENT` or `http://HOST:PORT/v1#MODEL`, with a comma between the addresses of
            several servers (`palaestra.engines.server_pool`); keys come from the environment
            (`palaestra.engines.openai_endpoint`).
        in_flight: maximum number of concurrent calls.
        retry_policy: when calls with temporary failures are repeated.
        timeout: maximum seconds of one call.
        exact: request token ids and log-probs as well, which vLLM's server returns. A completion without them has a
            false `is_exact`.
        identity: the identity of the answers in the cache; default: address and model. Set it for a server whose
            address changes.
        extra: further fields of the request body, for example `{"reasoning_effort": "low"}`.
        listener: receives an event for every repeated call (phase `RETRY`), and for calls without an answer for `notice`
            seconds (`WAITING`).

    Raises:
        EngineError: the key or Azure's address is missing.
        MissingExtraError: the `openai` package is not installed.

    Example:
        >>> OpenAIEngine("http://localhost:8000/v1#my-model", in_flight=8).endpoint.model
        'my-model'
    """

    reads_schema = True
    stall = 60.0
    """Maximum seconds without a byte, once an answer has begun to arrive."""
    notice = 15.0
    """Seconds without a byte after which the listener receives an event, and again after twice as long."""
    probe = 1.0
    """Seconds between two questions whether a lost server answers again, and for its answer."""
    max_bytes = 4_000_000
    """Maximum size of an answer; a larger one is a failure."""

    def __init__(
        self,
        name: str,
        *,
        in_flight: int = 32,
        retry_policy: RetryPolicy = RetryPolicy(),
        timeout: float = 600.0,
        exact: bool = False,
        identity: str = "",
        extra: Mapping[str, object] = MappingProxyType({}),
        listener: Listener = ignore,
    ) -> None:
        if in_flight < 1 or timeout <= 0:
            raise SettingsError(
                f"expected in_flight of at least 1 and a timeout above 0; got {in_flight} and {timeout}"
            )
        endpoints = Endpoint.parse_all(name)
        self.pool = ServerPool(endpoints)
        self.endpoint = self._base = endpoints[0]
        """The first server, with the model that all of them use."""
        self.name = ",".join(mask(server.url) for server in endpoints) + f"#{self.endpoint.model}"
        self.name, self.listener = self.name if len(endpoints) > 1 else self.endpoint.name, listener
        self.in_flight, self.retry_policy, self.timeout = in_flight, retry_policy, timeout
        self.extra = {**({"return_token_ids": True, "logprobs": True} if exact else {}), **extra}
        settings = json.dumps(self.extra, sort_keys=True) if self.extra else ""
        address = self.name if len(endpoints) > 1 else self.endpoint.identity
        self.identity = self._base_identity = identity or address + settings
        self.endpoint.check()  # Raise for a missing key or package before the first call.
        self._without: frozenset[str] = frozenset()
        """The options that the server has rejected."""
        self._reached = False
        """Whether a server has ever answered."""

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> OpenAIEngine:
        return cls(name, listener=listener, **options)

    @classmethod
    def check(cls, name: str) -> None:
        Endpoint.parse_all(name)[0].check()

    @classmethod
    def list_price(cls, name: str) -> Price | None:
        return find_list_price(name)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        return self.generate_monitored(requests, CallMonitor())

    def load_adapter(self, folder: Path) -> None:
        """Load a LoRA adapter in peft's format into vLLM's server and use it from now on. It replaces the previous one.

        The server reads the folder itself. It needs `--enable-lora` and the environment variable
        `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. Every call uses a new name, because vLLM would keep the old weights of a
        known one. The adapter's hash becomes part of `identity`; a `CachedEngine` keeps the identity that it started with.

        Raises:
            EngineError: the server cannot load the adapter.
        """
        name = f"{self._base.model}-{uuid.uuid4().hex[:12]}"
        self._post("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
        self.unload_adapter()
        self.endpoint = replace(self._base, model=name)
        self.identity = self._base_identity + digest(hash_files(folder))

    def unload_adapter(self) -> None:
        """Use the served model itself from now on.

        Raises:
            EngineError: the server cannot unload the adapter.
        """
        if self.endpoint != self._base:
            self._post("/unload_lora_adapter", {"lora_name": self.endpoint.model})
            self.endpoint, self.identity = self._base, self._base_identity

    def _post(self, path: str, body: Mapping[str, str]) -> None:
        from openai import OpenAIError

        async def post() -> None:
            for server in self.pool.servers:
                async with server.endpoint.client(self.timeout) as client:
                    await client.post(path, body=body, cast_to=str)

        try:
            _run(post())
        except OpenAIError as error:
            reason = classify_error(error, self.endpoint, body).failure.message
            raise EngineError(
                f"{path.strip('/')} failed for '{body.get('lora_path', body['lora_name'])}': {reason}; vLLM's server needs "
                "--enable-lora, VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and access to the folder"
            ) from error

    def generate_monitored(
        self, requests: Sequence[Request], monitor: CallMonitor, known: Mapping[Slot, Answer] = MappingProxyType({})
    ) -> list[list[Answer]]:
        slots = [(i, k) for i, request in enumerate(requests) for k in range(request.sampling.count)]
        batch = CallBatch(requests, monitor, dict(known), iter([slot for slot in slots if slot not in known]))
        if len(batch.answers) < len(slots):
            try:
                _run(self._work(batch, min(self.in_flight, len(slots) - len(batch.answers))))
            except BaseException as error:
                # After an interrupt in a notebook, the thread starts no further calls.
                batch.fatal = batch.fatal or error
                raise
        return [[batch.answers[i, k] for k in range(r.sampling.count)] for i, r in enumerate(requests)]

    async def _work(self, batch: CallBatch, workers: int) -> None:
        async with AsyncExitStack() as stack:
            for server in self.pool.servers:
                batch.clients[server] = await stack.enter_async_context(server.endpoint.client(self.timeout))
            watchers = [asyncio.create_task(self._watch_silence(batch)), asyncio.create_task(self._probe_lost(batch))]
            await asyncio.gather(*(self._worker(batch) for _ in range(workers)))
            for watcher in watchers:
                watcher.cancel()
                with suppress(asyncio.CancelledError):
                    await watcher
        if batch.fatal is not None:
            raise batch.fatal

    async def _watch_silence(self, batch: CallBatch) -> None:
        """Send an event when calls have received nothing for `notice` seconds, then for twice as long, and so on."""
        reported = 0.0
        while True:
            await asyncio.sleep(min(1.0, self.notice / 4))
            now = time.monotonic()
            silent = [now - at for at in batch.heard.values() if now - at >= self.notice]
            if not silent:
                reported = 0.0
            elif max(silent) >= 2 * reported:
                reported = max(silent)
                data = {"model": self.name, "calls": len(silent), "seconds": reported, "limit": self.timeout}
                self.listener(Event(WAITING, data=data))

    async def _probe_lost(self, batch: CallBatch) -> None:
        """Ask lost servers whether they answer again."""
        from openai import APIStatusError, OpenAIError

        while True:
            for server in self.pool.lost:
                try:
                    await batch.clients[server].with_options(timeout=self.probe).models.list()
                except APIStatusError as error:
                    if error.status_code in (502, 503, 504):
                        continue  # The answer of a proxy.
                except OpenAIError:
                    continue
                server.is_lost = False
                self.listener(notice(f"the server {server.endpoint.name} answers again"))
            await asyncio.sleep(self.probe)

    async def _worker(self, batch: CallBatch) -> None:
        for slot in batch.waiting:
            try:
                batch.answers[slot] = await self._answer(batch, slot)
            except Exception as error:  # The other workers' calls are paid for, so they finish first.
                batch.fatal = batch.fatal or error
            if batch.fatal is not None:
                return

    async def _answer(self, batch: CallBatch, slot: Slot) -> Answer:
        """Call until there is an answer, a permanent failure, or no retry left."""
        request = batch.requests[slot[0]]
        seeds = Seeds(request.seed).derive("call", slot[1])
        first, tried = time.monotonic(), 0
        while True:
            without = self._without
            try:
                body = build_body(self.endpoint, request, slot[1], without, self.extra)
            except ValueError as error:
                return Failure(FailureCause.INVALID_REQUEST, str(error))
            if (answer := await batch.may_start(slot)) is not None:
                return answer
            tried, start, server = tried + 1, time.monotonic(), self.pool.choose(request)
            server.running += 1
            try:
                outcome, usage = await self._call(server, body, request, batch, slot)
            except asyncio.CancelledError:
                batch.monitor.after(slot, None, time.monotonic() - start, None)
                raise
            finally:
                server.running -= 1
            seconds = time.monotonic() - start
            if not isinstance(outcome, CallError):
                batch.reached = self._reached = True
                batch.monitor.after(slot, usage, seconds, outcome)
                return outcome
            batch.reached, self._reached = batch.reached or outcome.connected, self._reached or outcome.connected
            adapted = self._adapt(without, outcome.refused)
            is_known = server.is_lost
            moves = outcome.lost and self.pool.lose(server)
            if moves and not is_known:
                self.listener(notice(f"{outcome.failure.message}; its calls run on the other servers"))
            wait = None if adapted or not outcome.again else self._wait(batch, outcome, tried, first, seeds)
            if moves and wait is not None:
                wait = 0.0
            last = not adapted and wait is None
            usage = Usage() if usage is None and not outcome.billed else usage
            batch.monitor.after(slot, usage, seconds, outcome.failure if last and outcome.fatal is None else None)
            if outcome.fatal is not None:
                raise outcome.fatal
            if last:
                # A server that refuses connections to the last is down; one that answers other calls is not.
                if not batch.reached or not (outcome.connected or outcome.billed):
                    urls = ", ".join(mask(server.endpoint.url) for server in self.pool.servers)
                    raise EngineError(f"no server answers at {urls}: {outcome.failure.message}")
                return outcome.failure
            if wait:
                data = {"reason": outcome.failure.message, "seconds": wait}
                self.listener(Event(RETRY, tried, self.retry_policy.tries, data=data))
                await asyncio.sleep(wait)

    def _wait(self, batch: CallBatch, outcome: CallError, tried: int, first: float, seeds: Seeds) -> float | None:
        wait = self.retry_policy.wait(tried, time.monotonic() - first, outcome.wish, seeds, self._reached)
        if wait is not None and outcome.wish is not None:
            # The server limits the rate of all calls, so no call of the batch starts earlier.
            batch.quiet_until = max(batch.quiet_until, time.monotonic() + outcome.wish)
        return wait

    async def _call(
        self, server: Server, body: Json, request: Request, batch: CallBatch, slot: Slot
    ) -> tuple[Answer | CallError, Usage | None]:
        """Make one call.

        Returns the answer or the error, and the billed usage. `batch.heard[slot]` is the time of the last byte while the
        call is running.
        """
        endpoint, heard = server.endpoint, batch.heard
        client, start = batch.clients[server], {"prompt": ""} if request.prompt_ids else {"messages": ()}
        kind: Any = client.completions if request.prompt_ids else client.chat.completions
        create: Any = kind.with_streaming_response.create
        silent, heard[slot] = True, time.monotonic()
        try:
            async with asyncio.timeout(self.timeout):
                # `extra_body` avoids the client's conversion of messages and its list of known options.
                async with create(model=self.endpoint.model, extra_body=body, **start) as response:
                    raw, silent = bytearray(), False
                    chunks = response.iter_bytes().__aiter__()
                    while (chunk := await asyncio.wait_for(anext(chunks, None), self.stall)) is not None:
                        raw += chunk
                        heard[slot] = time.monotonic()
                        if len(raw) > self.max_bytes:
                            message = f"{self.name} sent more than {self.max_bytes} bytes"
                            return Failure(FailureCause.MALFORMED, message), None
            try:
                data = decode_response(raw)
            except (ValueError, RecursionError) as error:
                raise BrokenAnswerError(f"the answer is not JSON ({len(raw)} bytes): {error}") from error
            return parse_response(data, request.sampling.stop)
        except BrokenAnswerError as error:
            return classify_error(error, endpoint, body), error.usage
        except TimeoutError:
            message = f"no answer within {self.timeout:g} s"
            if not silent:
                message = f"no data for {self.stall:g} s, or no complete answer after {self.timeout:g} s"
            return classify_error(BrokenAnswerError(message, silent=silent), endpoint, body), None
        except Exception as error:  # Errors of the client and of httpx.
            return classify_error(error, endpoint, body), None
        finally:
            heard.pop(slot, None)

    def _adapt(self, used: frozenset[str], refused: str) -> bool:
        """Remember that the server rejects an option. Returns whether to repeat the call without it."""
        if not refused:
            return False
        if refused in self._without:
            return used != self._without  # Another call has already removed the option.
        if self._without | {refused} >= set(LIMITS):
            return False
        if refused not in (*LIMITS, "stop", "response_format"):
            _log.warning("%s does not accept '%s'; the option is left out and has no effect", self.name, refused)
        self._without |= {refused}
        return True


@dataclass(slots=True)
class CallBatch:
    """The calls of one `generate`, shared by its workers."""

    requests: Sequence[Request]
    monitor: CallMonitor
    answers: dict[Slot, Answer]
    waiting: Iterator[Slot]
    fatal: BaseException | None = None
    reached: bool = False
    """Whether a server has answered in this batch."""
    quiet_until: float = 0.0
    clients: dict[Server, AsyncOpenAI] = field(default_factory=dict)
    heard: dict[Slot, float] = field(default_factory=dict)
    """The time of the last byte, or of the start, of each running call."""

    async def may_start(self, slot: Slot) -> Answer | None:
        """Wait for the server's `Retry-After` and for budget. Raises the error that ended the batch in the meantime.

        Returns the monitor's answer, if it takes the place of the call.
        """
        while True:
            if self.fatal is not None:
                raise self.fatal
            quiet = self.quiet_until - time.monotonic()
            if quiet > 0:
                await asyncio.sleep(quiet)
            elif (verdict := self.monitor.before(slot)) is False:
                await asyncio.sleep(_POLL)
            else:
                return None if verdict is True else verdict


def _run(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine, also if an event loop is already running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    pool = ThreadPoolExecutor(1, "palaestra-calls")
    try:
        pool.submit(asyncio.run, work).result()
    finally:
        pool.shutdown(wait=False)  # After an interrupt, running calls end on their own.
