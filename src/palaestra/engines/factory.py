"""Open any model by its name, with or without a cache of its answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.events import Listener, ignore
from palaestra.core.records import Problem
from palaestra.engines.base import ENGINES, Engine, EngineScheme, get_scheme
from palaestra.engines.budget import Budget, Prices
from palaestra.engines.cached import CachedEngine
from palaestra.runs.cache import Cache
from palaestra.runs.calls import CallLog

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_+.-]*):")


def get_engine_scheme(name: str) -> type[EngineScheme]:
    """Return the engine class for the scheme of a model name.

    Raises:
        UnknownNameError: the name has a scheme that is not registered.
    """
    scheme = _SCHEME.match(name)
    if scheme is not None and scheme[1] not in ENGINES.names() and not Path(name).exists():
        raise UnknownNameError("engine", scheme[1], ENGINES.names())
    engine_scheme: type[EngineScheme] = ENGINES.get(get_scheme(name))
    return engine_scheme


def check_model(name: str) -> None:
    """Raise if a model does not exist or its service cannot be called. Loads and writes nothing."""
    get_engine_scheme(name).check(name)


def check_reads(name: str, problems: Iterable[Problem]) -> None:
    """Raise if problems have images and the model is known to read text only."""
    if get_engine_scheme(name).reads_images(name) is not False:
        return
    if any(message.has_image for problem in problems for message in problem.messages):
        raise SettingsError(
            f"the problems have images, and the model '{name}' reads text only; choose one that reads images, "
            "for example nano-vlm"
        )


def open_engine(name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> Engine:
    """Open a model.

    Arguments:
        name: `scheme:model` with a scheme of `ENGINES`, a name of the model registry, a folder or a hub id.
        device: the device of local weights.
        listener: receives events about downloads and about repeated calls to a service.
        options: arguments of the engine, for example `in_flight` of `OpenAIEngine`.
    """
    return get_engine_scheme(name).open(name, device=device, listener=listener, **options)


def open_cached(
    name: str,
    cache: Cache,
    *,
    engine: Engine | None = None,
    budget: Budget | None = None,
    prices: Prices | None = None,
    owner: str = "",
    phase: str = "",
    log: CallLog | None = None,
    **settings: Any,
) -> CachedEngine:
    """Open a model with a cache, a ledger and a budget.

    Arguments:
        engine: the engine of the model, if it is already open; several runs may share one.
        log: collects prompts and answers; `None` for no record.
    """
    engine = engine or open_engine(name, **settings)
    identity = get_engine_scheme(name).identify(name)
    return CachedEngine(
        engine, cache, budget=budget, prices=prices, owner=owner, phase=phase, identity=identity, log=log
    )
