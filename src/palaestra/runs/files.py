"""Files and folders that are either there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.runs.guard import storage_errors

PARTIAL = ".partial"


def write_json(path: Path, data: Any) -> None:
    """Write `data` beside `path`, then rename it into place."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path`, then rename it into place."""
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path, f"writing {path.name}"):
        try:
            with open(partial, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `RunError` in one line if it is not there or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"expected a file {path.name} in {path.parent}; there is none") from None
    except (ValueError, OSError) as error:
        raise RunError(f"the file {path} cannot be read: {error}") from error


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside `path`, then rename that into place.

    A kill at any instant leaves the old folder, the new one or none, and never half of one. If the
    disk is full, what was half written is removed again.
    """
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path, f"writing the checkpoint {path.name}"):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write(partial)
            for file in partial.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as stream:
                        os.fsync(stream.fileno())
            if path.exists():
                shutil.rmtree(path)
            os.replace(partial, path)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            # safetensors reports an error of the disk as its own, with the number only in the text.
            if found := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
            raise


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
