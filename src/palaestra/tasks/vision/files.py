"""Visual data sets from a folder or from the Hugging Face hub: rows, and the bytes of their images."""

from __future__ import annotations

import base64
import gzip
import json
import mimetypes
import os
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError, TaskError

VARIABLE = "PALAESTRA_DATA"
"""The environment variable that names the folder of data sets."""


def find_data(task: str, name: str, path: str, hub: str) -> Path | str:
    """Where the data of `task` is: a folder, or an id on the hub.

    Arguments:
        name: of its folder below `$PALAESTRA_DATA`.
        path: a folder or a hub id that the user gave; empty to look below `$PALAESTRA_DATA`, then at `hub`.

    Raises:
        TaskError: there is no such folder, or nothing is known.
    """
    if path:
        folder = Path(path).expanduser()
        if folder.is_dir():
            return folder
        if path.count("/") != 1 or path.startswith((".", "/", "~")):
            raise TaskError(f"task '{task}': there is no folder {path}; give a folder, or a hub id such as owner/name")
        return path
    base = os.environ.get(VARIABLE, "")
    folder = Path(base).expanduser() / name
    if base and folder.is_dir():
        return folder
    if not hub:
        raise TaskError(
            f"task '{task}' needs its data: set {VARIABLE} to a folder that holds {name}/, "
            f"or give path= of the folder or of a data set on the hub"
        )
    return hub


def read_rows(folder: Path, stem: str) -> Iterator[dict[str, Any]]:
    """The rows of `stem` in `folder`: `.jsonl`, `.jsonl.gz`, or `.json` (a list, or rows by their id).

    Raises:
        TaskError: there is no such file, or a line of it is no JSON object.
    """
    for ending in (".jsonl", ".jsonl.gz", ".json"):
        file = folder / f"{stem}{ending}"
        if not file.exists():
            continue
        if ending == ".json":
            yield from _whole(file)
            return
        with (
            gzip.open(file, "rt", encoding="utf-8") if ending.endswith(".gz") else file.open(encoding="utf-8") as lines
        ):
            for at, line in enumerate(lines, 1):
                if line.strip():
                    yield _object(_parsed(line, f"{file}:{at}"), f"{file}:{at}")
        return
    raise TaskError(f"there is no {stem}.jsonl, {stem}.jsonl.gz or {stem}.json in {folder}")


def _whole(file: Path) -> Iterator[dict[str, Any]]:
    held = _parsed(file.read_text(encoding="utf-8"), str(file))
    if isinstance(held, dict):  # GQA's own files: questions by their id.
        held = [{"id": key, **_object(row, f"{file}: '{key}'")} for key, row in held.items()]
    if not isinstance(held, list):
        raise TaskError(f"{file} holds no list of rows")
    yield from (_object(row, f"{file}, row {at}") for at, row in enumerate(held))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where} is no JSON: {error}") from error


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"{where}: expected an object with fields; got {type(row).__name__}")
    return row


def field(row: Mapping[str, Any], where: str, *names: str) -> Any:
    """The value under the first of `names` that `row` has; raises `TaskError` if it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise TaskError(f"{where}: expected the field '{names[0]}'; got {', '.join(row)}")


class Images:
    """The images of a folder, by name: as files below it or below `images/`, or in `images.zip`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._zip: zipfile.ZipFile | None = None

    def url(self, name: str) -> str:
        """The image as a `data:` address: its bytes as they are in the file.

        Raises:
            TaskError: there is no such image, or the archive is damaged.
        """
        for file in (self.folder / name, self.folder / "images" / name):
            if file.is_file():
                return data_url(file.read_bytes(), name)
        try:
            if self._zip is None and (self.folder / "images.zip").exists():
                self._zip = zipfile.ZipFile(self.folder / "images.zip")
            if self._zip is not None:
                return data_url(self._zip.read(name), name)
        except KeyError:
            pass
        except (zipfile.BadZipFile, OSError) as error:
            raise TaskError(f"cannot read {self.folder / 'images.zip'}: {error}") from error
        raise TaskError(f"there is no image {name} in {self.folder}, its images/ or its images.zip")


def data_url(content: bytes, name: str = "") -> str:
    """Bytes of an image file as a `data:` address, with the type that they begin with, or that `name` tells."""
    begins = {b"\x89PNG": "image/png", b"\xff\xd8": "image/jpeg", b"GIF8": "image/gif"}
    kind = next((kind for magic, kind in begins.items() if content.startswith(magic)), "")
    kind = kind or mimetypes.guess_type(name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def hub_rows(task: str, hub_id: str, split: str, config: str | None = None) -> Any:
    """The rows of a data set on the hub, their images as bytes and not decoded.

    Raises:
        MissingExtraError: the package `datasets` is not installed.
        TaskError: the data set cannot be fetched.
    """
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "data", f"reading {hub_id} from the hub")
    import datasets

    try:
        rows = datasets.load_dataset(hub_id, config, split=split)
    except Exception as error:  # The hub, the network, the cache and the file formats each raise their own.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TaskError(f"task '{task}' cannot read '{hub_id}' ({split}) from the hub: {reason}") from error
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
    return rows


def hub_image(value: Any, where: str) -> str:
    """The `data:` address of an image column's value as `hub_rows` gives it."""
    if isinstance(value, Mapping) and value.get("bytes"):
        return data_url(value["bytes"], str(value.get("path") or ""))
    if isinstance(value, Mapping) and value.get("path"):
        return data_url(Path(value["path"]).read_bytes(), str(value["path"]))
    raise TaskError(f"{where}: expected an image; got {type(value).__name__}")
