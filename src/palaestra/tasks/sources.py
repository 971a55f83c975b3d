"""Read the rows of published data sets from a file, a folder or the hub, for tasks and reward models.

A folder contains, for each published split, one of

- `train.jsonl`, `train.jsonl.gz`, `train.json` (a list of objects; objects by their id, as GQA has them; or JSON lines, as
  MnMs has them) or `train.parquet` (also `train-*.parquet`);
- a folder `train` of JSON files with one object each, at any depth (MATH as its authors publish it);

or it was written by `datasets.save_to_disk`. Without a path, the folder of the data set below the environment variable
`PALAESTRA_DATA` is read if it exists; otherwise the data is downloaded from the hub.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.text import clean

VARIABLE = "PALAESTRA_DATA"
LINES = (".jsonl", ".jsonl.gz")
ENDINGS = (*LINES, ".json", ".parquet")
HUB_ADVICE = "; or give a folder that holds it"

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""Rows, each with a name for error messages."""


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a data set.

    Arguments:
        folder: its name below `PALAESTRA_DATA`.
        hub: its id on the hub, empty if it has none; `config` is the configuration to load.
    """

    folder: str
    hub: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image in a row of a table. It is read on demand, as all images may take gigabytes."""

    column: Any
    number: int

    def read(self) -> Any:
        """The stored value, not decoded: `bytes`, and the `path` of the original file."""
        (value,) = self.column[self.number].values()
        return value


def locate(source: Source, path: str = "") -> Path | str:
    """The folder of a dataset, or its id on the hub.

    Arguments:
        path: a folder, or a hub id such as `owner/name`; empty for the default location.

    Raises:
        TaskError: the folder does not exist, or the data set has no default location.
    """
    folder = Path(path or Path(os.environ.get(VARIABLE, "")) / source.folder).expanduser()
    if (path or os.environ.get(VARIABLE)) and folder.is_dir():
        return folder
    if path and not is_hub_id(path):
        example = source.hub or "owner/name"
        raise TaskError(f"there is no folder {path} with {source.folder}; give a folder, or a hub id such as {example}")
    if not path and not source.hub:
        raise TaskError(
            f"the data of {source.folder} is not here: set {VARIABLE} to a folder that holds {source.folder}/, "
            "or give path= of the folder or of a dataset on the hub"
        )
    return path or source.hub


def read_rows(source: Source, path: str, published: str, config: str = "") -> Rows:
    """Every row of a published split (`train` or `test`).

    Arguments:
        path: see `locate`.
        config: the configuration on the hub; empty for that of the source.

    Raises:
        TaskError: no data was found, or its format is not supported.
        MissingExtraError: `datasets` is required but not installed.
    """
    place = locate(source, path)
    if isinstance(place, Path):
        return _folder_rows(place, published)
    return hub_rows(place, config or ("" if path else source.config), published)


def is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def file_rows(file: Path) -> Rows:
    """The rows of a `.jsonl`, `.jsonl.gz`, `.json` or `.parquet` file; raises `TaskError` if it is invalid."""
    if file.suffix == ".parquet":
        return _table_rows(lambda datasets: datasets.Dataset.from_parquet(str(file)), str(file))
    if file.suffix == ".json":
        return _check_row(_whole(file))
    if file.name.endswith(LINES):
        return _check_row(_lines(file))
    raise TaskError(f"cannot tell what {file} is; expected a name that ends with {', '.join(ENDINGS)}")


def read_saved_rows(folder: Path, published: str = "") -> Rows:
    """The rows of a split written by `datasets.save_to_disk`; by default `train`, or the only split."""
    return _table_rows(lambda datasets: datasets.load_from_disk(str(folder)), str(folder), published)


def hub_rows(hub: str, config: str = "", published: str = "") -> Rows:
    """The rows of a split on the hub; by default `train`, or the only split. Images are `StoredImage`s."""
    return _table_rows(
        lambda datasets: datasets.load_dataset(hub, config or None, split=published or None), hub, published, HUB_ADVICE
    )


def is_saved(folder: Path) -> bool:
    """Whether the folder was written by `datasets.save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def has_split(folder: Path, published: str) -> bool:
    """Whether a folder contains a split, in any of the formats above."""
    if (folder / "dataset_dict.json").is_file():
        return published in _parse(_text(folder / "dataset_dict.json"), str(folder), "a JSON object").get("splits", ())
    try:
        _folder_rows(folder, published)
    except TaskError:
        return False
    return True


def field(row: Mapping[str, Any], where: str, *names: str) -> Any:
    """The value of the first of `names` that `row` has; raises `TaskError` if it has none of them."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise TaskError(f"{where}: expected the field '{names[0]}'; got {', '.join(row)}")


def abbreviate(value: Any) -> str:
    """A value for an error message: short and on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _folder_rows(folder: Path, published: str) -> Rows:
    for saved in (folder, folder / published):
        if is_saved(saved):
            return read_saved_rows(saved, published)
    for ending in (*LINES, ".json"):
        if (file := folder / f"{published}{ending}").is_file():
            return file_rows(file)
    if files := sorted((folder / published).rglob("*.json")):
        return _check_row((str(file), _parse(_text(file), str(file), "a JSON object")) for file in files)
    if files := parquet_files(folder, published):
        return (row for file in files for row in file_rows(file))
    raise TaskError(
        f"the folder {folder} holds no '{published}' split; expected {published}.jsonl, .jsonl.gz, .json or .parquet, "
        f"a folder {published} of JSON files, or what datasets.save_to_disk wrote"
    )


def parquet_files(folder: Path, published: str) -> list[Path]:
    return sorted([*folder.glob(f"{published}.parquet"), *folder.glob(f"**/{published}-*.parquet")])


def _check_row(rows: Iterator[tuple[str, Any]]) -> Rows:
    for where, row in rows:
        if not isinstance(row, Mapping):
            raise TaskError(f"{where}: expected an object; got {abbreviate(row)}")
        yield where, clean(row)


def read_object(text: str | bytes, where: str) -> Mapping[str, Any]:
    """The object in a line of JSON; raises `TaskError` if it is not an object."""
    ((_, row),) = _check_row(iter([(where, _parse(text, where, "a JSON object"))]))
    return row


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else open(file, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield (where := f"{file}, row {number}"), _parse(line, where, "a JSON object")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TaskError(f"the file {file} cannot be read: {error}") from error


def _whole(file: Path) -> Iterator[tuple[str, Any]]:
    expected = "a JSON list of objects, or objects by their id, or JSON lines"
    text = _text(file)
    if _is_lines(text):
        yield from _lines(file)
        return
    rows = _parse(text, str(file), expected)
    if isinstance(rows, dict) and rows and all(isinstance(row, dict) for row in rows.values()):
        rows = [{"id": key, **row} for key, row in rows.items()]
    if not isinstance(rows, list):
        raise TaskError(f"{file}: expected {expected}; got {abbreviate(rows)}")
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _is_lines(text: str) -> bool:
    """Whether a text is JSON lines: its first line is a complete object, and another line follows."""
    first, _, rest = text.strip().partition("\n")
    if not rest.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"the file {file} cannot be read: {error}") from error


def _parse(text: str | bytes, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskError(f"{where}: expected {expected}; {error}") from error


def load_table(load: Callable[[Any], Any], where: str, published: str = "", advice: str = "") -> Any:
    """A table of `datasets`: the result of `load(datasets)`, or its split `published`.

    Raises:
        TaskError: it cannot be read, or has no such split.
        MissingExtraError: `datasets` is not installed.
    """
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "data", f"reading {where}")
    import datasets

    try:
        table = load(datasets)
    except Exception as error:  # datasets, pyarrow and the hub raise different exceptions.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TaskError(f"cannot read the dataset {where}: {reason}{advice}") from error
    if isinstance(table, Mapping):  # A table for each split.
        name = published or ("train" if len(table) != 1 else next(iter(table)))
        if name not in table:
            raise TaskError(f"the dataset {where} has no split '{name}'; it has {', '.join(map(str, table))}")
        table = table[name]
    return table


def _table_rows(load: Callable[[Any], Any], where: str, published: str = "", advice: str = "") -> Rows:
    table = load_table(load, where, published, advice)
    import datasets

    images = [
        name for name, kind in (getattr(table, "features", None) or {}).items() if isinstance(kind, datasets.Image)
    ]
    columns = {n: table.select_columns([n]).cast_column(n, datasets.Image(decode=False)) for n in images}
    for number, row in enumerate(table.remove_columns(images) if images else table):
        yield f"{where}, row {number + 1}", {**row, **{name: StoredImage(c, number) for name, c in columns.items()}}
