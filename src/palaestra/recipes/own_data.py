"""Data of a Python call (rows, or a dataset of `datasets`) as a file, so that a run can name it and be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.process import quiet_libraries
from palaestra.core.settings import short_repr
from palaestra.models.registry import cache_folder
from palaestra.runs.files import write_bytes, write_folder


def is_dataset(value: object) -> bool:
    """Whether a value is a `Dataset` or `DatasetDict` of the package `datasets`."""
    return type(value).__module__.partition(".")[0] == "datasets" and hasattr(value, "save_to_disk")


def store_data(data: Any) -> str:
    """Store rows in the user's cache and return the path: JSON lines, or the folder of `datasets.save_to_disk`.

    The name depends on the content, so that equal data is stored once.

    Arguments:
        data: a dataset, or a list of rows. A row is a dictionary, a text (the prompt), or a list of messages.

    Raises:
        SettingsError: a row has another type, or a value that JSON cannot hold.
    """
    base = cache_folder() / "data"
    base.mkdir(parents=True, exist_ok=True)
    if is_dataset(data):
        parts = data.values() if isinstance(data, Mapping) else [data]
        folder = base / _hash("".join(str(part._fingerprint) for part in parts))
        if not folder.is_dir():
            with quiet_libraries():
                write_folder(folder, lambda target: data.save_to_disk(str(target)))
        return str(folder)
    if not data:
        raise SettingsError("the data has no rows; expected a list of dictionaries or texts")
    lines = "".join(f"{_to_line(row, number)}\n" for number, row in enumerate(data, start=1))
    file = base / f"{_hash(lines)}.jsonl"
    if not file.is_file():
        write_bytes(file, lines.encode())
    return str(file)


def _to_line(row: object, number: int) -> str:
    if not isinstance(row, Mapping):
        row = {"prompt": row}
    if not isinstance(row.get("prompt", ""), str | list):
        raise SettingsError(
            f"row {number}: expected a dictionary, a text or a list of messages; got {short_repr(row['prompt'])}"
        )
    try:
        return json.dumps(dict(row), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"row {number} cannot be stored as JSON: {error}; pass a datasets.Dataset, or a file"
        ) from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
