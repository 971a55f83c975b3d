"""Open any model by its name, with or without a cache of its answers. Names without a scheme are local models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.records import Engine, Listener, Problem, ignore
from palaestra.engines.base import ENGINES, EngineScheme, RolloutEngine, get_scheme
from palaestra.engines.budget import Budget
from palaestra.engines.cached import CachedEngine
from palaestra.models import registry as models
from palaestra.runs.cache import Cache, digest
from palaestra.runs.provenance import CallLog

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_+.-]*):")


class LocalModels(EngineScheme):
    """Models in this process. Their calls are free, and a hash of their files identifies them in the cache."""

    remote = False
    serves_weights = True

    @classmethod
    def check(cls, name: str) -> None:
        models.check(name)

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> Engine:
        from palaestra.engines.transformers import TransformersEngine

        return TransformersEngine.from_loaded(models.load(name, device=device, listener=listener))

    @classmethod
    def open_for_rollouts(
        cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any
    ) -> RolloutEngine:
        """Open a copy of the model. `options` are arguments of `TransformersEngine`, for example `batch_size`."""
        from palaestra.engines.transformers import TransformersEngine

        loaded = models.load(name, device=device, listener=listener)
        return TransformersEngine(loaded.weights, loaded.tokenizer, name, processed_logprobs=True, **options)

    @classmethod
    def identify(cls, name: str) -> str:
        folder = Path(models.locate(name))
        return digest(models.hash_files(folder)) if folder.is_dir() else f"hub:{name}"

    @classmethod
    def reads_images(cls, name: str) -> bool | None:
        return models.reads_images(name)


def get_engine_class(name: str) -> type[EngineScheme]:
    """Return the engine class for the scheme of a model name.

    Raises:
        UnknownNameError: the name has a scheme that is not registered.
    """
    scheme = _SCHEME.match(name)
    if scheme is not None and scheme[1] not in ENGINES.names() and not Path(name).exists():
        raise UnknownNameError("engine", scheme[1], ENGINES.names())
    engine: type[EngineScheme] = ENGINES.get(get_scheme(name))
    return engine


def check_model(name: str) -> None:
    """Raise if a model does not exist or its service cannot be called. Loads and writes nothing."""
    get_engine_class(name).check(name)


def check_reads(name: str, problems: Iterable[Problem]) -> None:
    """Raise if problems have images and the model is known to read text only."""
    if get_engine_class(name).reads_images(name) is not False:
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
    return get_engine_class(name).open(name, device=device, listener=listener, **options)


def open_cached(
    name: str,
    cache: Cache,
    *,
    engine: Engine | None = None,
    budget: Budget | None = None,
    owner: str = "",
    log: CallLog | None = None,
    **settings: Any,
) -> CachedEngine:
    """Open a model with a cache, a ledger and a budget.

    Arguments:
        engine: the engine of the model, if it is already open; several runs may share one.
        log: collects prompts and answers; `None` for no record.
    """
    engine = engine or open_engine(name, **settings)
    identity = get_engine_class(name).identify(name)
    return CachedEngine(engine, cache, budget=budget, owner=owner, identity=identity, log=log)
