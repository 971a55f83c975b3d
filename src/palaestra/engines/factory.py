"""Any model by its name: of the shelf, a folder, the hub, or a service; with a memory where one is given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.events import Listener, ignore
from palaestra.core.records import Problem
from palaestra.engines.base import Engine
from palaestra.engines.budget import Budget
from palaestra.engines.cached import CachedEngine
from palaestra.engines.endpoints import Endpoint, is_remote
from palaestra.engines.prices import Prices
from palaestra.engines.weights import hash_files
from palaestra.runs.cache import Cache, digest


def check_model(name: str) -> None:
    """Raise now, before anything is written, if `name` cannot be a model, or its service cannot be asked."""
    if is_remote(name):
        Endpoint.of(name).check()
    else:
        from palaestra.engines import models

        models.check(name)


def check_reads(name: str, problems: Iterable[Problem]) -> None:
    """Raise now, before anything is loaded, if problems have pictures and a model on this machine reads text only."""
    from palaestra.engines import models

    if is_remote(name) or models.reads_images(name) is not False:
        return
    if any(message.has_image for problem in problems for message in problem.messages):
        raise SettingsError(
            f"the problems have pictures, and the model '{name}' reads text only; take one that reads images"
            f"{', for example nano-vlm' if 'nano-vlm' in models.MODELS else ''}"
        )


def open_engine(name: str, *, device: str = "", listener: Listener = ignore, **service: Any) -> Engine:
    """The engine of a model.

    Arguments:
        name: `openai:MODEL`, `azure:DEPLOYMENT`, `http://HOST:PORT/v1#MODEL`, or what the shelf knows.
        device: of weights that are loaded here.
        listener: is told how far weights are fetched, and of a service's calls that are made again.
        service: settings of `OpenAIEngine`, for example `in_flight`; only of a service.
    """
    if is_remote(name):
        from palaestra.engines.openai import OpenAIEngine

        return OpenAIEngine(name, listener=listener, **service)
    from palaestra.engines import models

    return models.load(name, device=device, listener=listener).engine()


def open_cached(
    name: str,
    cache: Cache,
    *,
    engine: Engine | None = None,
    budget: Budget | None = None,
    prices: Prices | None = None,
    owner: str = "",
    phase: str = "",
    **settings: Any,
) -> CachedEngine:
    """The same with a cache, a ledger and a budget; weights are known to the cache by their hash.

    Arguments:
        engine: the model's, where it is open already; several runs may share one.
    """
    engine = engine or open_engine(name, **settings)
    identity = "" if is_remote(name) else _weights(name)
    return CachedEngine(engine, cache, budget=budget, prices=prices, owner=owner, phase=phase, identity=identity)


def _weights(name: str) -> str:
    """What a checkpoint's answers depend on: the content of its files; of the hub's, its name."""
    from palaestra.engines import models

    folder = Path(models.locate(name))
    if not folder.is_dir():
        return f"hub:{name}"
    return digest(hash_files(folder))
