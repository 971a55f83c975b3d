"""Hashes of a model's files, cached for large files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from palaestra.core.errors import PalaestraError
from palaestra.engines.models import cache_folder, locate
from palaestra.runs.files import hash_file, write_json
from palaestra.runs.provenance import PROVENANCE

SUFFIXES = (".safetensors", ".bin", ".json", ".jinja")
"""Suffixes of files that determine a model's answers: weights, configuration, tokenizer, chat template."""
CACHED_FROM = 64 * 1024 * 1024
"""Size in bytes from which the hash of a file is cached."""


def hash_model(name: str) -> dict[str, Any] | None:
    """Return the SHA-256 of every file of a local model and one hash of all; `None` if they are not on this machine.

    Arguments:
        name: a registered name, a folder, or a hub id whose files are in the hub's cache.
    """
    try:
        folder = Path(locate(name))
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, local_files_only=True))
        files = hash_files(folder)
    except (PalaestraError, OSError, ValueError):  # The hub has several errors for a missing model.
        return None
    lines = "".join(f"{digest}  {file}\n" for file, digest in files.items())
    return {"sha256": hashlib.sha256(lines.encode()).hexdigest(), "files": files}


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a checkpoint's files by name. Hashes of large files are cached by path, size and time."""
    # The provenance of a checkpoint does not change its answers.
    files = [path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name != PROVENANCE]
    paths = sorted(path for path in files if path.is_file())
    store = cache_folder() / "hashes.json"
    known = _read(store) if any(path.stat().st_size >= CACHED_FROM for path in paths) else {}
    fresh: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    for path in paths:
        state = path.stat()
        key, mark = str(path.resolve()), [state.st_size, state.st_mtime_ns]
        entry = known.get(key)
        if isinstance(entry, list) and entry[:2] == mark and len(entry) == 3:
            hashes[path.name] = str(entry[2])
            continue
        hashes[path.name] = hash_file(path)
        if state.st_size >= CACHED_FROM:
            fresh[key] = [*mark, hashes[path.name]]
    if fresh:
        try:
            store.parent.mkdir(parents=True, exist_ok=True)
            write_json(store, {**_read(store), **fresh})
        except (OSError, PalaestraError):
            pass  # Without a cache the next call takes longer.
    return hashes


def _read(store: Path) -> dict[str, Any]:
    try:
        data = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
