"""Rows of a published dataset: from a folder, or from the hub.

A folder holds, for each published split, one of

- `train.jsonl`, `train.jsonl.gz`, `train.json` (a list of objects) or `train.parquet` (also `train-*.parquet`);
- a folder `train` of JSON files with one object each, at any depth (MATH as its authors publish it);

or is what `datasets.save_to_disk` wrote. Without a folder the environment variable `PALAESTRA_DATA` may name
one that holds the dataset's; else it is fetched from the hub.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError, TaskError

VARIABLE = "PALAESTRA_DATA"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a dataset is.

    Arguments:
        folder: its name below `PALAESTRA_DATA`.
        hub: its id on the hub; `config` is the configuration to load there.
    """

    folder: str
    hub: str
    config: str = ""


def read_rows(source: Source, path: str, published: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every row of a published split (`train` or `test`) with its name for errors.

    Arguments:
        path: a folder, or a hub id such as `owner/name`; empty for the dataset's own place.

    Raises:
        TaskError: there is nothing there, or it is no such dataset.
        MissingExtraError: `datasets` is needed and not installed.
    """
    place = path or str(_below_variable(source) or "")
    folder = Path(place).expanduser()
    if place and folder.is_dir():
        return _folder_rows(folder, published)
    if path and (path.count("/") != 1 or path.startswith((".", "/", "~"))):
        raise TaskError(
            f"there is no folder {path} with {source.folder}; give a folder, or a hub id such as {source.hub}"
        )
    return _hub_rows(path or source.hub, "" if path else source.config, published)


def _below_variable(source: Source) -> Path | None:
    root = os.environ.get(VARIABLE, "")
    folder = Path(root).expanduser() / source.folder
    return folder if root and folder.is_dir() else None


def _folder_rows(folder: Path, published: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if (folder / "dataset_dict.json").is_file():
        return _checked(_saved_rows(folder, published))
    for ending in (".jsonl", ".jsonl.gz", ".json"):
        if (file := folder / f"{published}{ending}").is_file():
            return _checked(_list_rows(file) if ending == ".json" else _line_rows(file))
    if (folder / published).is_dir() and (files := sorted((folder / published).rglob("*.json"))):
        return _checked(_object_rows(files))
    if tables := sorted([*folder.glob(f"{published}.parquet"), *folder.glob(f"**/{published}-*.parquet")]):
        return _checked(_table_rows(tables))
    raise TaskError(
        f"the folder {folder} holds no '{published}' split; expected {published}.jsonl, .jsonl.gz, .json or .parquet, "
        f"a folder {published} of JSON files, or what datasets.save_to_disk wrote"
    )


def _checked(rows: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where, row in rows:
        if not isinstance(row, Mapping):
            raise TaskError(f"{where}: expected an object; got {type(row).__name__}")
        yield where, row


def _text(file: Path) -> str:
    try:
        with (
            gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else open(file, encoding="utf-8") as opened
        ):
            return opened.read()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TaskError(f"the file {file} cannot be read: {error}") from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{where}: expected JSON; {error}") from error


def _line_rows(file: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if line.strip():
            yield (where := f"{file}, row {number}"), _parsed(line, where)


def _list_rows(file: Path) -> Iterator[tuple[str, Any]]:
    rows = _parsed(_text(file), str(file))
    if not isinstance(rows, list):
        raise TaskError(f"{file}: expected a JSON list of objects; got {type(rows).__name__}")
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _object_rows(files: list[Path]) -> Iterator[tuple[str, Any]]:
    yield from ((str(file), _parsed(_text(file), str(file))) for file in files)


def _table_rows(files: list[Path]) -> Iterator[tuple[str, Any]]:
    datasets = _datasets(str(files[0]))
    for file in files:
        yield from _dataset_rows(lambda file=file: datasets.Dataset.from_parquet(str(file)), str(file))


def _saved_rows(folder: Path, published: str) -> Iterator[tuple[str, Any]]:
    datasets = _datasets(str(folder))
    yield from _dataset_rows(lambda: datasets.load_from_disk(str(folder))[published], str(folder))


def _hub_rows(hub: str, config: str, published: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    datasets = _datasets(hub)
    return _checked(_dataset_rows(lambda: datasets.load_dataset(hub, config or None, split=published), hub))


def _dataset_rows(load: Any, where: str) -> Iterator[tuple[str, Any]]:
    try:
        data = load()
    except Exception as error:  # datasets, pyarrow and the hub each raise their own.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TaskError(f"cannot read the dataset {where}: {reason}; or give a folder: path=FOLDER") from error
    yield from ((f"{where}, row {number}", row) for number, row in enumerate(data, start=1))


def _datasets(where: str) -> Any:
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "data", f"reading {where}")
    import datasets

    return datasets
