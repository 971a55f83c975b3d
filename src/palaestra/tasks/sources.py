"""Read published data sets from a file, a folder or the hub, for tasks and reward models.

A folder contains, for each published split, one of

- `train.jsonl`, `train.jsonl.gz`, `train.json` (a list of objects; objects by their id, as in GQA; or JSON lines, as
  in MnMs), `train.csv`, `train.tsv` or `train.parquet` (also `train-*.parquet`);
- a folder `train` of JSON files with one object each, at any depth (MATH as its authors publish it);

or it was written by `datasets.save_to_disk`. Without a path, the folder of the data set below the environment variable
`PALAESTRA_DATA` is read if it exists; otherwise the data is downloaded from the hub.

Some data sets do not fit into memory: a row of LiveCodeBench may contain megabytes of tests. A `Table` is scanned row by
row, and each row can be read again by its key.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.process import quiet_libraries
from palaestra.core.settings import short_repr
from palaestra.core.text import clean

if TYPE_CHECKING:
    import datasets

_VARIABLE = "PALAESTRA_DATA"
LINES = (".jsonl", ".jsonl.gz", ".ndjson")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*LINES, ".json", ".parquet", *_DELIMITERS)
HUB = "hf:"
MAX_ROW = 512 << 20
"""Maximum bytes of a row of JSON lines, so that a small compressed file cannot fill the memory."""

Row = Mapping[str, Any]
Rows = Iterator[tuple[str, Row]]
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

    column: datasets.Dataset
    number: int

    def read(self) -> object:
        """The stored value, not decoded: `bytes`, and the `path` of the original file."""
        (value,) = self.column[self.number].values()
        return value


class Table(ABC):
    """The rows of one published split. Nothing is read before the first scan."""

    @abstractmethod
    def scan(self) -> Iterator[tuple[int, str, Row]]:
        """All rows, each with its key and a name for error messages."""

    @abstractmethod
    def read(self, key: int) -> Row:
        """The row with a key from `scan`."""

    def rows(self) -> Rows:
        """All rows, each with a name for error messages."""
        return ((where, row) for _, where, row in self.scan())


class _LineTable(Table):
    """JSON lines. The key of a row is the offset of its line. A compressed file is decompressed up to that offset."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self, key: int) -> Row:
        return next(self.scan(key))[2]

    def scan(self, key: int = 0) -> Iterator[tuple[int, str, Row]]:
        try:
            with gzip.open(self.file) if self.file.suffix == ".gz" else open(self.file, "rb") as lines:
                lines.seek(key)
                for number, line in enumerate(iter(lambda: lines.readline(MAX_ROW + 1), b""), start=1):
                    where = f"{self.file}, row {number}"
                    if len(line) > MAX_ROW:
                        raise TaskError(f"{where}: expected at most {MAX_ROW >> 20} MiB; it has more")
                    if text := line.decode("utf-8-sig").strip():
                        yield key, where, _check_row(where, _parse(text, where, "a JSON object"))
                    key += len(line)
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise TaskError(f"the file {self.file} cannot be read: {error}") from error


class _MemoryTable(Table):
    """Rows of files that can only be read as a whole. They are kept in memory; the key of a row is its index."""

    def __init__(self, load: Callable[[], Iterator[tuple[str, object]]]) -> None:
        self._load = load

    @cached_property
    def _rows(self) -> list[tuple[int, str, Row]]:
        return [(number, where, _check_row(where, row)) for number, (where, row) in enumerate(self._load())]

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        yield from self._rows

    def read(self, key: int) -> Row:
        return self._rows[key][2]


class _ArrowTable(Table):
    """A table of `datasets`, which stays on disk. The key of a row is its index; images are `StoredImage`s.

    Arguments:
        load: called with the module `datasets`; returns a table, or tables by split.
        where: the location, for error messages.
        published: the split; by default `train`, or the only one.
        advice: added to the error message if the table cannot be loaded.
    """

    def __init__(self, load: Callable[[ModuleType], Any], where: str, published: str = "", advice: str = "") -> None:
        self._load, self.where, self.published, self.advice = load, where, published, advice

    @cached_property
    def _columns(self) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
        """The table without its images, and the columns of images, not decoded."""
        with _hub_errors(self.where, self.advice) as datasets:
            table = self._load(datasets)
        if isinstance(table, Mapping):  # A table for each split.
            name = self.published or ("train" if len(table) != 1 else next(iter(table)))
            if name not in table:
                raise TaskError(f"the dataset {self.where} has no split '{name}'; it has {', '.join(map(str, table))}")
            table = table[name]
        features = getattr(table, "features", None) or {}
        images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
        columns = {n: table.select_columns([n]).cast_column(n, datasets.Image(decode=False)) for n in images}
        return table.remove_columns(images) if images else table, columns

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        for number, row in enumerate(self._columns[0]):
            yield number, f"{self.where}, row {number + 1}", self._add_images(number, row)

    def read(self, key: int) -> Row:
        return self._add_images(key, self._columns[0][key])

    def _add_images(self, key: int, row: Row) -> Row:
        return {**row, **{name: StoredImage(column, key) for name, column in self._columns[1].items()}}


def locate_dataset(source: Source, path: str = "") -> Path | str:
    """The folder of a dataset, or its id on the hub.

    Arguments:
        path: a folder, or a hub id such as `owner/name`; empty for the default location.

    Raises:
        TaskError: the folder does not exist, or the data set has no default location.
    """
    folder = Path(path or Path(os.environ.get(_VARIABLE, "")) / source.folder).expanduser()
    if (path or os.environ.get(_VARIABLE)) and folder.is_dir():
        return folder
    if path and not is_hub_id(path):
        example = source.hub or "owner/name"
        raise TaskError(f"there is no folder {path} for {source.folder}; give a folder, or a hub id such as {example}")
    if not path and not source.hub:
        raise TaskError(
            f"the data of {source.folder} was not found: set {_VARIABLE} to a folder that contains {source.folder}/, "
            "or set path= to the folder or to a dataset on the hub"
        )
    return path or source.hub


def open_table(source: Source, path: str, published: str, config: str = "") -> Table:
    """The table of a published split (`train` or `test`).

    Arguments:
        path: see `locate`.
        config: the configuration on the hub; empty for that of the source.

    Raises:
        TaskError: no data was found, or its format is not supported; on a scan, the data is invalid.
        MissingExtraError: on a scan, `datasets` is required but not installed.
    """
    place = locate_dataset(source, path)
    if isinstance(place, Path):
        return _open_folder(place, published)
    return _open_hub(place, config or ("" if path else source.config), published)


def read_rows(source: Source, path: str, published: str, config: str = "") -> Rows:
    """The rows of a published split; see `open_table`."""
    return open_table(source, path, published, config).rows()


def file_rows(file: Path) -> Rows:
    """The rows of a file whose name ends with one of `ENDINGS`; raises `TaskError` if it is invalid."""
    return _open_file(file).rows()


def folder_rows(folder: Path, published: str = "") -> Rows:
    """The rows of a split in a folder; raises `TaskError` if there is none.

    Without a split: of `train`, or of the only split, in a folder written by `datasets.save_to_disk`.
    """
    return _open_folder(folder, published).rows()


def hub_rows(hub: str, config: str = "", published: str = "") -> Rows:
    """The rows of a data set on the hub: of a split; by default of `train`, or of the only split."""
    return _open_hub(hub, config, published).rows()


def list_hub_splits(hub: str, config: str = "") -> list[str]:
    """The names of the splits of a data set on the hub, or in a folder that `datasets.load_dataset` reads.

    Raises:
        TaskError: the data set cannot be found.
        MissingExtraError: `datasets` is not installed.
    """
    with _hub_errors(hub, "; expected hf:owner/name or hf:FOLDER") as datasets:
        return [str(name) for name in datasets.get_dataset_split_names(hub, config or None)]


def is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def is_data(name: str) -> bool:
    """Whether the name of a task is a file of data, a folder, or a data set on the hub.

    >>> is_data("questions.jsonl"), is_data("hf:openai/gsm8k:main"), is_data("math-skills"), is_data("task.py:Mine")
    (True, True, False, False)
    """
    path = Path(name).expanduser()
    is_file = "." in name and not name.endswith(".py") and path.is_file()
    return name.startswith(HUB) or name.endswith(ENDINGS) or ("/" in name and path.is_dir()) or is_file


def is_saved(folder: Path) -> bool:
    """Whether the folder was written by `datasets.save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def has_split(folder: Path, published: str) -> bool:
    """Whether a folder contains a split, in any of the formats above."""
    if (folder / "dataset_dict.json").is_file():
        return published in json.loads(_read_text(folder / "dataset_dict.json"))["splits"]
    try:
        _open_folder(folder, published)
    except TaskError:
        return False
    return True


def get_field(row: Row, where: str, *names: str) -> Any:
    """The value of the first of `names` that `row` has; raises `TaskError` if it has none of them."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise TaskError(f"{where}: expected the field '{names[0]}'; got {', '.join(row)}")


def get_text(row: Row, name: str, where: str = "") -> str:
    """The text in a field of a row; raises `TaskError` if it has none. The message starts with `where`."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        given = short_repr(value) if name in row else f"the fields {', '.join(sorted(map(str, row))) or '(none)'}"
        raise TaskError(f"{where and f'{where}: '}expected a text in the field '{name}'; got {given}")
    return value


@contextmanager
def _hub_errors(where: str, advice: str = "") -> Iterator[ModuleType]:
    """Import `datasets`, and describe its errors in one line."""
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "data", f"reading {where}")
    import datasets

    try:
        with quiet_libraries():
            yield datasets
    except Exception as error:  # datasets, pyarrow and the hub raise different exceptions.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TaskError(f"cannot read the dataset {where}: {reason}{advice}") from error


def _open_folder(folder: Path, published: str) -> Table:
    for saved in (folder, folder / published):
        if is_saved(saved):
            return _open_saved(saved, published)
    for ending in (*LINES, ".json", *_DELIMITERS):
        if (file := folder / f"{published}{ending}").is_file():
            return _open_file(file)
    if files := sorted((folder / published).rglob("*.json")):
        return _MemoryTable(
            lambda: ((str(file), _parse(_read_text(file), str(file), "a JSON object")) for file in files)
        )
    if files := sorted([*folder.glob(f"{published}.parquet"), *folder.glob(f"**/{published}-*.parquet")]):
        return _ArrowTable(lambda datasets: datasets.Dataset.from_parquet(list(map(str, files))), str(folder))
    raise TaskError(
        f"the folder {folder} contains no '{published}' split; expected {published}.jsonl, .jsonl.gz, .json, .csv, .tsv or .parquet, "
        f"a folder {published} of JSON files, or the output of datasets.save_to_disk"
    )


def _open_file(file: Path) -> Table:
    if file.suffix == ".parquet":
        return _ArrowTable(lambda datasets: datasets.Dataset.from_parquet(str(file)), str(file))
    if file.suffix == ".json":
        return _MemoryTable(lambda: _read_json(file))
    if file.suffix in _DELIMITERS:
        return _MemoryTable(lambda: _read_delimited(file))
    if file.name.endswith(LINES):
        return _LineTable(file)
    raise TaskError(f"unknown file type of {file}; expected a name that ends with {', '.join(ENDINGS)}")


def _open_saved(folder: Path, published: str = "") -> Table:
    return _ArrowTable(lambda datasets: datasets.load_from_disk(str(folder)), str(folder), published)


def _open_hub(hub: str, config: str = "", published: str = "") -> Table:
    return _ArrowTable(
        lambda datasets: datasets.load_dataset(hub, config or None, split=published or None),
        hub,
        published,
        "; or give a folder that contains it",
    )


def _read_json(file: Path) -> Iterator[tuple[str, object]]:
    """The rows of a `.json` file: a list of objects, objects by their id, or JSON lines."""
    expected = "a JSON list of objects, or objects by their id, or JSON lines"
    text = _read_text(file)
    first, _, rest = text.strip().partition("\n")
    if rest.lstrip().startswith("{") and first.rstrip().endswith("}"):
        yield from _LineTable(file).rows()
        return
    rows = _parse(text, str(file), expected)
    if isinstance(rows, dict) and rows and all(isinstance(row, dict) for row in rows.values()):
        rows = [{"id": key, **row} for key, row in rows.items()]
    if not isinstance(rows, list):
        raise TaskError(f"{file}: expected {expected}; got {short_repr(rows)}")
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _read_delimited(file: Path) -> Iterator[tuple[str, object]]:
    """The rows of a `.csv` or `.tsv` file with a header. Empty values are left out."""
    text = io.StringIO(_read_text(file, "utf-8-sig"), newline="")
    reader = csv.DictReader(text, delimiter=_DELIMITERS[file.suffix], strict=True)
    try:
        for row in reader:
            where = f"{file}, line {reader.line_num}"
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                raise TaskError(f"{where}: expected {count} values, as in the header; it has another number")
            yield where, {name: value for name, value in row.items() if value != ""}
    except csv.Error as error:
        raise TaskError(f"{file}, line {reader.line_num}: {error}") from error


def _read_text(file: Path, encoding: str = "utf-8") -> str:
    try:
        return file.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"the file {file} cannot be read: {error}") from error


def _parse(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: expected {expected}; {error}") from error


def _check_row(where: str, row: object) -> Row:
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: expected an object; got {short_repr(row)}")
    cleaned: Row = clean(row)
    return cleaned
