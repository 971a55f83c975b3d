"""The scheme of local models: names of the model registry, folders and hub ids, loaded by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from palaestra.core.events import Listener, ignore
from palaestra.engines import models
from palaestra.engines.base import Engine, EngineScheme
from palaestra.engines.weights import hash_files
from palaestra.runs.cache import digest


class LocalModels(EngineScheme):
    """Models in this process. Their calls are free, and the cache knows them by a hash of their files."""

    remote = False

    @classmethod
    def check(cls, name: str) -> None:
        models.check(name)

    @classmethod
    def open(cls, name: str, *, device: str = "", listener: Listener = ignore, **options: Any) -> Engine:
        return models.load(name, device=device, listener=listener).engine()

    @classmethod
    def identify(cls, name: str) -> str:
        folder = Path(models.locate(name))
        return digest(hash_files(folder)) if folder.is_dir() else f"hub:{name}"

    @classmethod
    def reads_images(cls, name: str) -> bool | None:
        return models.reads_images(name)
