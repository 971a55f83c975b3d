"""The language models of a run behind one cache, one ledger and one budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.records import Event, Json, Listener, Values, ignore
from palaestra.recipes.settings import CALL_TIMEOUT, require

if TYPE_CHECKING:
    from palaestra.core.records import Answer, Engine, Request
    from palaestra.engines.budget import Budget
    from palaestra.engines.cached import CachedEngine
    from palaestra.recipes.research.settings import ResearchSettings
    from palaestra.recipes.teach.settings import TeachSettings
    from palaestra.runs.cache import Cache
    from palaestra.runs.provenance import CallLog, Spending
    from palaestra.runs.run import Run

CALLS = "calls.sqlite"
"""File name of the cache of model answers. The default is in the user's cache folder and is shared by all runs."""


@dataclass
class MeteredEngines:
    """Opens the models of a run. All of them share the run's cache and budget. See `meter_engines`.

    Arguments:
        cache: stores every answer.
        owner: the id of the run.
        service: arguments of `OpenAIEngine` for remote models.
        local: arguments of the engine of local models.
        log: collects prompts and answers; `None` for no record.
    """

    cache: Cache
    owner: str
    budget: Budget
    listener: Listener = ignore
    service: Values = field(default_factory=dict)
    local: Values = field(default_factory=dict)
    log: CallLog | None = None
    _opened: list[Engine] = field(default_factory=list)

    def open(self, name: str, engine: Engine | None = None) -> CachedEngine:
        """Open a model: `openai:MODEL`, `ADDRESS#MODEL`, a folder, a hub id, or a registered name.

        Arguments:
            engine: the engine of the model, if it is open already.
        """
        from palaestra.engines.base import is_remote
        from palaestra.engines.factory import open_cached, open_engine

        if engine is None:
            options = self.service if is_remote(name) else self.local
            engine = open_engine(name, listener=self.listener, **options)
            self._opened.append(engine)
        return open_cached(name, self.cache, engine=engine, budget=self.budget, owner=self.owner, log=self.log)

    def close(self) -> None:
        """Close the engines that were opened here."""
        from palaestra.engines.base import close_engine

        for engine in self._opened:
            close_engine(engine)

    def spent(self) -> Spending:
        """The cost of the run's calls so far, including those of earlier processes."""
        return self.cache.spent(self.owner)


@contextmanager
def meter_engines(
    run: Run,
    settings: TeachSettings | ResearchSettings,
    within: Budget | None = None,
    resumable: bool = True,
    listener: Listener = ignore,
    log: CallLog | None = None,
) -> Iterator[MeteredEngines]:
    """Open the cache of a run and meter its models. Earlier spending of the run counts against the budget.

    Arguments:
        within: the budget of a group of runs that this run belongs to.
        resumable: the run can be resumed with higher limits after it reached one.
        listener: receives events for downloads and retried calls.
        log: collects prompts and answers; `None` for no record.
    """
    from palaestra.engines.budget import Budget

    with open_cache(settings.cache) as cache:
        owner = run.store.id
        budget = Budget(
            max_cost=settings.max_cost or None,
            max_calls=settings.max_calls or None,
            max_tokens=settings.max_tokens or None,
            spent=cache.spent(owner),
            within=within,
            resumable=resumable,
        )
        service = service_options(settings.call_timeout, in_flight=settings.in_flight)
        engines = MeteredEngines(cache, owner, budget, listener, service, settings.engine_kwargs, log)
        try:
            yield engines
        finally:
            engines.close()


def open_cache(path: str = "") -> Cache:
    """Open the cache of model answers at `path`, or the user's cache if `path` is empty."""
    from palaestra.models.registry import cache_folder
    from palaestra.runs.cache import Cache
    from palaestra.runs.files import storage_errors

    file = Path(path).expanduser() if path else cache_folder() / CALLS
    with storage_errors(file, "opening the cache of calls"):
        file.parent.mkdir(parents=True, exist_ok=True)
    return Cache(file)


def check_cache(path: str) -> None:
    """Check that a cache can be opened at `path`, without creating it.

    Raises:
        SettingsError: `path` is a folder, or one of its parents is a file.
        RunError: the file is not a cache.
    """
    if path in ("", ":memory:"):
        return
    file = Path(path).expanduser()
    parent = next(folder for folder in file.parents if folder.exists())
    require(not file.is_dir(), f"setting 'cache': expected a file; {file} is a folder")
    require(parent.is_dir(), f"setting 'cache': expected a file in a folder; {parent} is not a folder")
    if file.exists():
        open_cache(path).close()


def service_options(call_timeout: float, **options: Any) -> Json:
    """Arguments of `OpenAIEngine`: `call_timeout` limits each call and all of its retries together."""
    from palaestra.engines.openai_endpoint import RetryPolicy

    return {"timeout": call_timeout, "retry_policy": RetryPolicy(total=call_timeout), **options}


class SharedEngines:
    """Open models by name, shared by all runs of this process. A local model serves one thread at a time."""

    def __init__(self, device: str = "", listener: Listener = ignore, call_timeout: float = CALL_TIMEOUT) -> None:
        self.device, self.listener, self.call_timeout = device, listener, call_timeout
        self._open: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def get(self, name: str, **local: Any) -> Engine:
        """Return the model of that name. The first call loads it.

        Arguments:
            local: further arguments of the engine of a local model.
        """
        from palaestra.engines.base import is_remote
        from palaestra.engines.factory import open_engine

        with self._lock:
            if name not in self._open:
                self.listener(Event("load"))
                options = service_options(self.call_timeout) if is_remote(name) else {"device": self.device, **local}
                engine = open_engine(name, listener=self.listener, **options)
                self._open[name] = engine if is_remote(name) else SerialEngine(engine)
            return self._open[name]

    def close(self) -> None:
        """Close all models. The next `get` loads them again."""
        from palaestra.engines.base import close_engine

        with self._lock:
            for engine in self._open.values():
                close_engine(engine.engine if isinstance(engine, SerialEngine) else engine)
            self._open.clear()


class SerialEngine:
    """An engine behind a lock, so that several threads can use it."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self._lock = engine, engine.name, threading.Lock()

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        with self._lock:
            return self.engine.generate(requests)
