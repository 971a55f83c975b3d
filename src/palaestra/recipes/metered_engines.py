"""The calls of a run to language models: one cache, one ledger and one budget for all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from palaestra.core.events import Event, Listener, ignore
from palaestra.recipes.settings import require

if TYPE_CHECKING:
    from palaestra.engines.base import Answer, Engine, Request
    from palaestra.engines.budget import Budget
    from palaestra.engines.cached import CachedEngine
    from palaestra.runs.cache import Cache
    from palaestra.runs.ledger import Spending
    from palaestra.runs.run import Run

CALL_TIMEOUT = 600.0
CALL_TIMEOUT_HELP = "Most seconds to wait for one answer of a service, repeated calls included."
CALLS = "calls.sqlite"
"""Below the user's cache: every answer of a model, so that the same run again makes no call."""


class CallSettings(Protocol):
    """Settings of a recipe that calls models."""

    @property
    def cache(self) -> str: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def call_timeout(self) -> float: ...
    @property
    def max_cost(self) -> float: ...
    @property
    def max_calls(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class Calls:
    """Opens the models of a run. All of them draw on its budget; make one with `calls_of`.

    Arguments:
        cache: keeps every answer.
        owner: the run's id.
        service: arguments of `OpenAIEngine`, for services that it opens itself.
    """

    def __init__(
        self,
        cache: Cache,
        owner: str,
        budget: Budget,
        listener: Listener = ignore,
        service: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.cache, self.owner, self.budget, self.listener, self.service = cache, owner, budget, listener, service

    def engine(self, name: str, opened: Engine | None = None) -> CachedEngine:
        """Open a model by name: `openai:MODEL`, `ADDRESS#MODEL`, a folder, a hub id or a registered name.

        Arguments:
            opened: its engine, where that is open already.
        """
        from palaestra.engines.endpoints import is_remote
        from palaestra.engines.factory import open_cached

        service = self.service if is_remote(name) else {}
        return open_cached(
            name, self.cache, engine=opened, budget=self.budget, owner=self.owner, listener=self.listener, **service
        )

    def spent(self) -> Spending:
        """What the run's calls have cost so far, before a kill too."""
        return self.cache.spent(self.owner)


def open_cache(path: str = "") -> Cache:
    """The answers of models that are kept: in the file of that name, or in the one for all runs."""
    from palaestra.engines.models import cache_folder
    from palaestra.runs.cache import Cache
    from palaestra.runs.guard import storage_errors

    where = Path(path).expanduser() if path else cache_folder() / CALLS
    with storage_errors(where, "opening the cache of calls"):
        where.parent.mkdir(parents=True, exist_ok=True)
    return Cache(where)


def check_cache(path: str) -> None:
    """Raise where the answers of models cannot be kept there, as far as that is known without making anything.

    Raises:
        SettingsError: a folder is named, or lies below a file.
        RunError: it is a file of something else.
    """
    if path in ("", ":memory:"):
        return
    where = Path(path).expanduser()
    above = next(folder for folder in where.parents if folder.exists())
    require(not where.is_dir(), f"setting 'cache': expected a file; {where} is a folder")
    require(above.is_dir(), f"setting 'cache': expected a file in a folder; {above} is none")
    if where.exists():
        open_cache(path).close()


def check_prices(max_cost: float, *models: str) -> None:
    """Raise if `max_cost` limits a service whose price is not known; before anything is loaded or called."""
    from palaestra.engines.prices import check_price

    if max_cost:
        for name in models:
            check_price(name)


def check_call_timeout(seconds: float) -> None:
    """Raise if the setting `call_timeout` is no limit."""
    require(0 < seconds < math.inf, f"setting 'call_timeout': expected seconds above 0, and finite; got {seconds}")


def service_options(call_timeout: float, **options: Any) -> dict[str, Any]:
    """Arguments of `OpenAIEngine` for a setting `call_timeout`: the limit of a call, and of its repetitions together."""
    from palaestra.engines.retry import Patience

    return {"timeout": call_timeout, "patience": Patience(total=call_timeout), **options}


@contextmanager
def calls_of(
    run: Run,
    settings: CallSettings,
    within: Budget | None = None,
    resumable: bool = True,
    listener: Listener = ignore,
) -> Iterator[Calls]:
    """The calls of a run, with its cache open; what the run has spent before counts.

    Arguments:
        within: the budget of several runs, of which this is one.
        resumable: whether the run can go on with other limits, where it has reached one.
        listener: is told of weights that are fetched, and of calls that are made again.
    """
    from palaestra.engines.budget import Budget

    with open_cache(settings.cache) as cache:
        owner = run.store.id
        budget = Budget(
            max_cost=settings.max_cost or None, max_calls=settings.max_calls or None,
            max_tokens=settings.max_tokens or None, spent=cache.spent(owner), within=within,
            resumable=resumable,
        )  # fmt: skip
        service = service_options(settings.call_timeout, in_flight=settings.in_flight)
        yield Calls(cache, owner, budget, listener, service)


class Engines:
    """Models that are open, by name, for all runs of this process. Those of this process answer one at a time."""

    def __init__(self, device: str = "", listener: Listener = ignore, call_timeout: float = CALL_TIMEOUT) -> None:
        self.device, self.listener, self.call_timeout = device, listener, call_timeout
        self._open: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Engine:
        from palaestra.engines.endpoints import is_remote
        from palaestra.engines.factory import open_engine

        with self._lock:
            if name not in self._open:
                self.listener(Event("load"))
                own = service_options(self.call_timeout) if is_remote(name) else {"device": self.device}
                engine = open_engine(name, listener=self.listener, **own)
                self._open[name] = engine if is_remote(name) else OneAtATime(engine)
            return self._open[name]


class OneAtATime:
    """An engine for several threads: the others wait."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self._lock = engine, engine.name, threading.Lock()

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        with self._lock:
            return self.engine.generate(requests)
