"""Any engine with a memory, a ledger and a budget: what was answered once is not asked again.

An answer is stored when it arrives, with its cost. So a run that is killed, or whose budget is spent, goes on
with what it has, and the same run again makes no call.
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
from palaestra.core.records import Completion, Failure, FailureCause, ImagePart, Message, TextPart, Usage
from palaestra.engines.base import Answer, Engine, Request, Slot, WatchedEngine
from palaestra.engines.budget import Budget, Reservation
from palaestra.engines.prices import Price, Prices, unpriced
from palaestra.runs.cache import Cache, digest
from palaestra.runs.ledger import Spending

KEPT = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that lie in what was asked, and would come again. Those of the moment, and of a request that a
better set-up server may accept, are asked again."""
_CHUNK = 32
"""Requests that are asked at once of an engine that says nothing before its batch is over."""
_POLL = 0.01
_FREE = Price(0.0, 0.0)


class CachedEngine:
    """Asks `engine` only what the cache does not know.

    Arguments:
        engine: any engine. One of a service (`WatchedEngine`) is metered call by call, the others by the batch.
        cache: where answers and calls are kept.
        budget: what may be spent; none for no limit.
        prices: the price table; none loads the user's. An engine in this process costs no money.
        owner: whose calls these are: the run's id.
        phase: the part of the run, as its ledger calls it; change it by `at`.
        identity: what determines the answers beside the request. By default the engine's own `identity`; weights
            in memory have none, because training changes them under the same name: give their hash.

    The same request twice, in one batch or ever, is asked once: `seed` and the index of a completion are what
    makes requests different.

    Raises:
        SettingsError: the engine has no identity, or its price is not known and `max_cost` limits it.
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
    ) -> None:
        self.engine, self.cache, self.owner, self.phase = engine, cache, owner, phase
        self.name, self.budget = engine.name, budget or Budget()
        self.identity = identity or str(getattr(engine, "identity", ""))
        self.reads_schema = bool(getattr(engine, "reads_schema", False))
        if not self.identity:
            raise SettingsError(
                f"the engine '{engine.name}' does not say which weights answer; give CachedEngine an identity, "
                "for example their hash"
            )
        self.price = (prices or Prices.load()).of(engine.name) if isinstance(engine, WatchedEngine) else _FREE
        if self.price is None and self.budget.limits_money:
            raise unpriced(engine.name)
        self.estimate = PromptEstimate()

    def at(self, phase: str) -> CachedEngine:
        """The same engine, cache and budget for another phase of the run."""
        other = copy.copy(self)
        other.phase = phase
        return other

    def spent(self, phase: str = "") -> Spending:
        """What this owner's calls have cost so far, before a resume too."""
        return self.cache.spent(self.owner, phase)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """As the engine's, from the cache where that knows.

        Raises:
            BudgetSpentError: not everything could be asked. What was answered is stored, so that the same call
                with a larger budget asks only for the rest.
        """
        keys = [request_keys(self.identity, request) for request in requests]
        known = self.cache.get({key for several in keys for key in several})
        hits = sum(key in known for several in keys for key in several)
        if hits:
            self.cache.hit(self.owner, self.phase, self.name, hits)
        # Requests that are the same are asked once, at the place of the first.
        open_ = {several: r for several, r in zip(keys, requests, strict=True) if any(k not in known for k in several)}
        if open_:
            known |= self._ask(list(open_.values()), list(open_), known)
        return [[known[key] for key in several] for several in keys]

    def _ask(
        self, requests: list[Request], keys: list[tuple[str, ...]], known: Mapping[str, Answer]
    ) -> dict[str, Answer]:
        desk = _Desk(self, requests, keys)
        if isinstance(self.engine, WatchedEngine):
            slots = {
                (i, k): known[key] for i, several in enumerate(keys) for k, key in enumerate(several) if key in known
            }
            answers = self.engine.generate_watched(requests, desk, slots)
        else:
            answers = desk.ask_by_chunks()
        return {key: a for several, got in zip(keys, answers, strict=True) for key, a in zip(several, got, strict=True)}


class _Desk:
    """Through which the calls of one batch go: it reserves, notes, stores and settles."""

    def __init__(self, home: CachedEngine, requests: list[Request], keys: list[tuple[str, ...]]) -> None:
        self.home, self.requests, self.keys = home, requests, keys
        self.open: dict[Slot, tuple[int, Reservation]] = {}

    def before(self, slot: Slot) -> bool:
        return self._begin([slot])

    def _begin(self, slots: Sequence[Slot]) -> bool:
        """Note that the calls of these slots, of one request, are about to be made; false where they have to wait."""
        home, request = self.home, self.requests[slots[0][0]]
        try:
            made = self._reserve(len(slots), request, home.estimate.tokens(request))
        except BudgetSpentError:
            if home.estimate.seen:
                raise
            # At worst it does not fit, but nobody knows yet: one call will tell.
            made = self._reserve(len(slots), request, math.ceil(prompt_size(request) * home.estimate.HOPED))
        for slot, reservation in zip(slots, made, strict=False):
            key, priced = self.keys[slot[0]][slot[1]], home.price is not None
            self.open[slot] = home.cache.begin(home.owner, home.phase, home.name, key, priced=priced), reservation
        return bool(made)

    def _reserve(self, calls: int, request: Request, prompt: int) -> list[Reservation]:
        most = Usage(prompt, request.sampling.max_tokens)
        money = self.home.price.of(most) if self.home.price else 0.0
        return self.home.budget.reserve_all(calls, most.prompt_tokens + most.completion_tokens, money)

    def after(self, slot: Slot, usage: Usage | None, seconds: float, answer: Answer | None) -> None:
        home = self.home
        call, reservation = self.open.pop(slot)
        money = home.price.of(usage) if home.price and usage else 0.0
        home.budget.settle(reservation, usage, money)
        if usage is not None:
            home.estimate.learn(self.requests[slot[0]], usage)
        kept = isinstance(answer, Completion) or (isinstance(answer, Failure) and answer.cause in KEPT)
        keep = (self.keys[slot[0]][slot[1]], answer) if kept and answer is not None else None
        home.cache.end(call, usage, seconds, money, keep)

    def ask_by_chunks(self) -> list[list[Answer]]:
        """Ask an engine that answers by the batch; a batch is what the budget has room for."""
        answers: list[list[Answer]] = []
        while len(answers) < len(self.requests):
            slots: list[list[Slot]] = []
            spent: BudgetSpentError | None = None
            for index, request in enumerate(self.requests[len(answers) :][:_CHUNK], len(answers)):
                several = [(index, k) for k in range(request.sampling.count)]
                try:
                    if not self._begin(several):
                        break
                except BudgetSpentError as error:
                    spent = error
                    break
                slots.append(several)
            if spent is not None and not slots:
                raise spent
            if not slots:
                time.sleep(_POLL)  # Calls of another engine hold the room.
            answers += self._ask_chunk(slots)
        return answers

    def _ask_chunk(self, slots: list[list[Slot]]) -> list[list[Answer]]:
        began = time.monotonic()
        try:
            answers = self.home.engine.generate([self.requests[several[0][0]] for several in slots]) if slots else []
        except BaseException:
            for slot in list(self.open):
                self.after(slot, None, 0.0, None)
            raise
        each = (time.monotonic() - began) / max(1, sum(map(len, slots)))
        for several, got in zip(slots, answers, strict=True):
            for slot, answer in zip(several, got, strict=True):
                self.after(slot, answer.usage if isinstance(answer, Completion) else Usage(), each, answer)
        return answers


class PromptEstimate:
    """How many tokens a prompt may have, from its bytes and what the answers so far have shown.

    Before the first answer a token may be as short as a byte; after it, a fourth shorter than the shortest yet.
    """

    HOPED = 1 / 3

    def __init__(self) -> None:
        self.seen = 0.0

    def tokens(self, request: Request) -> int:
        return math.ceil(prompt_size(request) * (min(1.0, 1.25 * self.seen) if self.seen else 1.0))

    def learn(self, request: Request, usage: Usage) -> None:
        self.seen = max(self.seen, usage.prompt_tokens / prompt_size(request))


def request_keys(identity: str, request: Request) -> tuple[str, ...]:
    """The cache's keys of a request's completions: a hash of all that determines each of them."""
    sampling = request.sampling
    parts = {
        "identity": identity,
        "messages": [_key(message) for message in request.messages],
        "sampling": [sampling.max_tokens, float(sampling.temperature), float(sampling.top_p), sampling.top_k,
                     list(sampling.stop)],
        "seed": request.seed,
        "schema": request.schema,
        **({"tools": request.tools} if request.tools else {}),
        **({"prompt_ids": list(request.prompt_ids)} if request.prompt_ids else {}),
    }  # fmt: skip
    return tuple(digest({**parts, "index": index}) for index in range(sampling.count))


def _key(message: Message) -> list[Any]:
    """What tells a message from another; one without calls is known as it was before there were any."""
    content = message.content if isinstance(message.content, str) else [_part(part) for part in message.content]
    if not message.tool_calls and not message.tool_call_id:
        return [message.role, content]
    calls = [[call.name, call.arguments, call.id] for call in message.tool_calls]
    return [message.role, content, calls, message.tool_call_id]


def _part(part: TextPart | ImagePart) -> Any:
    if isinstance(part, TextPart):
        return {"text": part.text}
    # A file counts by what is in it, wherever it lies.
    path = Path(part.url.removeprefix("file://"))
    if not part.url.startswith(("data:", "http:", "https:")) and path.is_file():
        return {"image": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {"image": part.url}


def prompt_size(request: Request) -> int:
    """About how long a prompt is, in bytes of text; an image counts like a page of it."""
    size = len(request.schema) + len(request.tools) + 24 * len(request.messages) + 4 * len(request.prompt_ids)
    for message in request.messages:
        size += len(message.text.encode("utf-8", "replace"))
        size += sum(len(call.name) + len(call.arguments.encode("utf-8", "replace")) for call in message.tool_calls)
        if not isinstance(message.content, str):
            size += 3000 * sum(isinstance(part, ImagePart) for part in message.content)
    return size
