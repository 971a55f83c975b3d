"""A model object of a Python call as a checkpoint, so that a run can name it and be resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.process import quiet_libraries
from palaestra.models.registry import LoadedModel, cache_folder
from palaestra.runs.files import write_folder
from palaestra.runs.run import INITIAL_MODEL

_folders: dict[str, TemporaryDirectory[str]] = {}
"""The temporary folders of this process, by the checkpoint that each contains."""


def is_model(value: object) -> bool:
    """Whether a value is a model of transformers or peft, or a `LoadedModel`."""
    is_checkpoint = hasattr(value, "save_pretrained") and hasattr(value, "config")
    return isinstance(value, LoadedModel) or (is_checkpoint and not isinstance(value, type))


def write_model(model: Any, tokenizer: Any = None) -> str:
    """Write a model with its tokenizer to a temporary folder in the user's cache, and return the path.

    Arguments:
        tokenizer: a tokenizer, or the processor of a model that reads images; by default that of the checkpoint that the
            model was loaded from.

    Raises:
        ModelError: no tokenizer is given, and the model's own checkpoint has none.
    """
    from palaestra.envs.token.prompts import load_tokenizer

    if isinstance(model, LoadedModel):
        model, tokenizer = model.weights, tokenizer or model.processor or model.tokenizer
    name = str(getattr(model.config, "_name_or_path", ""))
    if tokenizer is None and not name:
        raise SettingsError("the model object has no checkpoint to load a tokenizer from; pass tokenizer=")
    tokenizer = load_tokenizer(name) if tokenizer is None else tokenizer
    base = cache_folder()
    base.mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(dir=base, prefix="model-")
    path = str(Path(folder.name) / INITIAL_MODEL)
    with quiet_libraries():
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    _folders[path] = folder
    return path


def keep_model(path: str, folder: Path) -> str:
    """Move a checkpoint that `write_model` has written to a run folder. Returns its new path; any other name is returned
    unchanged."""
    if path not in _folders:
        return path
    target = folder.resolve() / INITIAL_MODEL
    target.parent.mkdir(parents=True, exist_ok=True)
    write_folder(target, lambda partial: _move_files(Path(path), partial))
    _folders.pop(path).cleanup()
    return str(target)


def _move_files(source: Path, target: Path) -> None:
    for file in source.iterdir():
        shutil.move(file, target)
