"""Atomic writes of files and folders."""

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
    """Write `data` as JSON, atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file, then rename it into place."""
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
    """Read a JSON file. Raises `RunError` if it does not exist or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} has no file {path.name}") from None
    except (ValueError, OSError) as error:
        raise RunError(f"the file {path} cannot be read: {error}") from error


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, then rename it to `path`.

    A kill at any instant leaves the old folder, the new one or none, but never a part of one. If the disk is full, the
    temporary folder is removed.
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
            # safetensors raises its own error for a full disk, with the error number only in the text.
            if match := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
            raise


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
