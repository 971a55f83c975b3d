"""An engine with a cache of answers, a ledger and a budget.

An answer is stored with its cost when it arrives. A run that was killed, or whose budget was spent, continues with the
stored answers, and repeating a finished run makes no call.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.core.errors import BudgetSpentError, SettingsError
from palaestra.core.records import (
    Answer,
    Completion,
    Engine,
    Failure,
    FailureCause,
    ImagePart,
    Message,
    Request,
    TextPart,
    Usage,
    reads_schema,
)
from palaestra.engines.base import BaseEngine, CallMonitor, MonitoredEngine, Price, Slot, is_remote
from palaestra.engines.budget import Budget, Prices, Reservation, missing_price
from palaestra.runs.cache import Cache, digest
from palaestra.runs.provenance import CallLog, Spending

CACHED_FAILURES = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that the same request would have again. Requests with other failures are sent again."""
_CHUNK = 32
"""Number of requests per batch for an engine that does not report individual calls."""
_POLL = 0.01
_WAIT = 0.1
"""Seconds between two looks at calls of other processes."""
_ELSEWHERE = Failure(FailureCause.ENGINE, "a call for the same request is running")
"""Takes the place of an answer that another call will store."""
_FREE = Price(0.0, 0.0)


class CachedEngine(BaseEngine):
    """Calls `engine` only for requests whose answers are not in the cache.

    Arguments:
        engine: any engine. A `MonitoredEngine` is recorded call by call, other engines batch by batch.
        cache: stores answers and calls.
        budget: limits the cost; `None` for no limit.
        prices: the price table; `None` loads the user's. Local engines are free.
        owner: the id of the run that makes the calls.
        phase: the part of the run in its ledger; `at` changes it.
        identity: identifies the model in cache keys; default: the engine's own `identity`. Weights in memory have none,
            because training changes them under the same name: pass their hash.
        log: collects prompts and answers; `None` for no record.

    A request is not sent while its answer is in the cache or an equal request is running: within a batch, in other threads,
    and in other processes with the same cache file. It is sent again after a temporary failure, or if the process that sent it
    died. Requests with different seeds or completion indices are not equal. An engine that answers in batches generates all
    completions of a request if one of them is missing.

    Raises:
        SettingsError: the engine has no identity, or `max_cost` is set and its price is unknown.
    """

    def __init__(
        self,
        engine: Engine,
        cache: Cache,
        *,
        budget: Budget | None = None,
        prices: Prices | None = None,
        owner: str = "",
        phase: str = "",
        identity: str = "",
        log: CallLog | None = None,
    ) -> None:
        self.engine, self.cache, self.owner, self.phase, self.log = engine, cache, owner, phase, log
        self.name, self.budget = engine.name, budget or Budget()
        self.identity = identity or (engine.identity if isinstance(engine, BaseEngine) else "")
        self.reads_schema = reads_schema(engine)
        if not self.identity:
            raise SettingsError(
                f"the engine '{engine.name}' has no identity; pass one to CachedEngine, for example the hash of "
                "its weights"
            )
        paid = isinstance(engine, MonitoredEngine) or is_remote(engine.name)
        self.price = (prices or Prices.load()).find(engine.name) if paid else _FREE
        if self.price is None and self.budget.limits_money:
            raise missing_price(engine.name)
        self.estimate = _PromptEstimate()

    def at(self, phase: str) -> CachedEngine:
        """Return the same engine, cache and budget for another phase of the run."""
        other = copy.copy(self)
        other.phase = phase
        return other

    def spent(self, phase: str = "") -> Spending:
        """Return the cost of this owner's calls so far, including those before a resume."""
        return self.cache.spent(self.owner, phase)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Answer from the cache, and send the remaining requests to the engine.

        Raises:
            BudgetSpentError: the budget does not allow all calls. Answers so far are stored, so the same call with a
                larger budget sends only the rest.
        """
        keys = [request_keys(self.identity, request) for request in requests]
        known = self.cache.get({key for group in keys for key in group})
        hits = sum(key in known for group in keys for key in group)
        if hits:
            self.cache.hit(self.owner, self.phase, self.name, hits)
        missing = {group: r for group, r in zip(keys, requests, strict=True) if any(k not in known for k in group)}
        while missing:
            # Requests that others are sending wait until their calls end.
            free = {group: request for group, request in missing.items() if not self.cache.is_running(group)}
            if free:
                known |= self._ask(list(free.values()), list(free), known)
            stored = self.cache.get({key for group in missing for key in group if key not in known})
            if stored:
                self.cache.hit(self.owner, self.phase, self.name, len(stored))
                known |= stored
            missing = {group: r for group, r in missing.items() if any(key not in known for key in group)}
            if missing:
                time.sleep(_WAIT)
        if self.log is not None:
            costs = self.cache.spent_by_key(self.owner, self.phase)
            for group, request in zip(keys, requests, strict=True):
                for key in group:
                    spent = costs.get(key, Spending())
                    self.log.add(key, self.phase, self.name, request.messages, known[key], spent)
        return [[known[key] for key in group] for group in keys]

    def _ask(
        self, requests: list[Request], keys: list[tuple[str, ...]], known: Mapping[str, Answer]
    ) -> dict[str, Answer]:
        meter = _CallMeter(self, requests, keys)
        if isinstance(self.engine, MonitoredEngine):
            slots = {(i, k): known[key] for i, group in enumerate(keys) for k, key in enumerate(group) if key in known}
            answers = self.engine.generate_monitored(requests, meter, slots)
        else:
            answers = meter.ask_by_chunks()
        pairs = (pair for group, row in zip(keys, answers, strict=True) for pair in zip(group, row, strict=True))
        return {key: answer for key, answer in pairs if answer is not _ELSEWHERE and key not in known}


class _CallMeter(CallMonitor):
    """The monitor of one batch: reserves budget before each call, and stores answer and cost after it."""

    def __init__(self, home: CachedEngine, requests: list[Request], keys: list[tuple[str, ...]]) -> None:
        self.home, self.requests, self.keys = home, requests, keys
        self.open: dict[Slot, tuple[int, Reservation]] = {}

    def before(self, slot: Slot) -> bool | Answer:
        return self._begin([slot])

    def _begin(self, slots: Sequence[Slot]) -> bool | Answer:
        """Reserve and record the calls of one request's slots.

        Returns false if they have to wait for budget, and `_ELSEWHERE` if another call has stored or will store the answer.
        """
        home, request = self.home, self.requests[slots[0][0]]
        try:
            reservations = self._reserve(len(slots), request, home.estimate.tokens(request))
        except BudgetSpentError:
            if home.estimate.seen:
                raise
            # The worst case does not fit. Before the first measurement, try a typical size.
            reservations = self._reserve(len(slots), request, math.ceil(prompt_size(request) * home.estimate.TYPICAL))
        if not reservations:
            return False
        keys, priced = [self.keys[index][k] for index, k in slots], home.price is not None
        calls = home.cache.begin(home.owner, home.phase, home.name, keys, priced=priced)
        if calls is None:
            for reservation in reservations:
                home.budget.cancel(reservation)
            return _ELSEWHERE
        self.open.update(zip(slots, zip(calls, reservations, strict=True), strict=True))
        return True

    def _reserve(self, calls: int, request: Request, prompt: int) -> list[Reservation]:
        limit = Usage(prompt, request.sampling.max_tokens)
        money = self.home.price.cost(limit) if self.home.price else 0.0
        return self.home.budget.reserve(limit.prompt_tokens + limit.completion_tokens, money, calls)

    def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
        home = self.home
        call, reservation = self.open.pop(slot)
        money = home.price.cost(usage) if home.price and usage else 0.0
        home.budget.settle(reservation, usage, money)
        if usage is not None:
            home.estimate.learn(self.requests[slot[0]], usage)
        entry = None
        if isinstance(answer, Completion) or (isinstance(answer, Failure) and answer.cause in CACHED_FAILURES):
            entry = self.keys[slot[0]][slot[1]], answer
        home.cache.end(call, usage, seconds, money, entry)

    def ask_by_chunks(self) -> list[list[Answer]]:
        """Call an engine that answers in batches. A batch has as many requests as the budget allows."""
        answers: list[list[Answer]] = [[_ELSEWHERE] * request.sampling.count for request in self.requests]
        waiting = list(range(len(self.requests)))
        try:
            while waiting:
                slots = self._begin_chunk(waiting)
                if slots:
                    for request_slots, row in zip(slots, self._ask_chunk(slots), strict=True):
                        answers[request_slots[0][0]] = row
                elif waiting:
                    time.sleep(_POLL)  # Calls of another engine have reserved the budget.
        except BaseException:
            for slot in list(self.open):
                self.after(slot, None, 0.0, None)
            raise
        return answers

    def _begin_chunk(self, waiting: list[int]) -> list[list[Slot]]:
        """Begin the calls of the next requests and remove them from `waiting`, with those that others are sending."""
        slots: list[list[Slot]] = []
        while waiting and len(slots) < _CHUNK:
            request_slots = [(waiting[0], k) for k in range(self.requests[waiting[0]].sampling.count)]
            try:
                verdict = self._begin(request_slots)
            except BudgetSpentError:
                if not slots:
                    raise
                break
            if verdict is False:
                break
            waiting.pop(0)
            if verdict is True:
                slots.append(request_slots)
        return slots

    def _ask_chunk(self, slots: list[list[Slot]]) -> list[list[Answer]]:
        began = time.monotonic()
        answers = self.home.engine.generate([self.requests[request_slots[0][0]] for request_slots in slots])
        each = (time.monotonic() - began) / sum(map(len, slots))
        for request_slots, row in zip(slots, answers, strict=True):
            for slot, answer in zip(request_slots, row, strict=True):
                self.after(slot, answer.usage if isinstance(answer, Completion) else Usage(), each, answer)
        return answers


class _PromptEstimate:
    """Estimates the tokens of a prompt from its bytes and from the usage of earlier calls.

    Before the first call it assumes one token per byte; then 1.25 times the highest ratio of tokens to bytes so far.
    """

    TYPICAL = 1 / 3
    """Tokens per byte of ordinary text."""

    def __init__(self) -> None:
        self.seen = 0.0

    def tokens(self, request: Request) -> int:
        return math.ceil(prompt_size(request) * (min(1.0, 1.25 * self.seen) if self.seen else 1.0))

    def learn(self, request: Request, usage: Usage) -> None:
        self.seen = max(self.seen, usage.prompt_tokens / prompt_size(request))


def request_keys(identity: str, request: Request) -> tuple[str, ...]:
    """Return the cache keys of a request's completions: hashes of everything that determines them."""
    sampling = request.sampling
    numbers = float(sampling.temperature), float(sampling.top_p)
    parts = {
        "identity": identity,
        "messages": [_key(message) for message in request.messages],
        "sampling": [sampling.max_tokens, *numbers, sampling.top_k, list(sampling.stop)],
        "seed": request.seed,
        "schema": request.schema,
        **({"tools": request.tools} if request.tools else {}),
        **({"prompt_ids": list(request.prompt_ids)} if request.prompt_ids else {}),
    }
    return tuple(digest({**parts, "index": index}) for index in range(sampling.count))


def _key(message: Message) -> list[Any]:
    """Return the data that identify a message. The key of a message without tool calls has no fields for them."""
    content = message.content if isinstance(message.content, str) else [_part(part) for part in message.content]
    if not message.tool_calls and not message.tool_call_id:
        return [message.role, content]
    calls = [[call.name, call.arguments, call.id] for call in message.tool_calls]
    return [message.role, content, calls, message.tool_call_id]


def _part(part: TextPart | ImagePart) -> Any:
    if isinstance(part, TextPart):
        return {"text": part.text}
    # A file is identified by its content, not by its path.
    path = Path(part.url.removeprefix("file://"))
    if not part.url.startswith(("data:", "http:", "https:")) and path.is_file():
        return {"image": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {"image": part.url}


def prompt_size(request: Request) -> int:
    """Estimate the size of a prompt in bytes of text. An image counts as 3000."""
    size = len(request.schema) + len(request.tools) + 24 * len(request.messages) + 4 * len(request.prompt_ids)
    for message in request.messages:
        size += len(message.text.encode("utf-8", "replace"))
        size += sum(len(call.name) + len(call.arguments.encode("utf-8", "replace")) for call in message.tool_calls)
        if not isinstance(message.content, str):
            size += 3000 * sum(isinstance(part, ImagePart) for part in message.content)
    return size
