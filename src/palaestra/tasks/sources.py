"""Read published data sets from a file, a folder or the hub, for tasks and reward models.

A folder contains, for each published split, one of

- `train.jsonl`, `train.jsonl.gz`, `train.json` (a list of objects; objects by their id, as in GQA; or JSON lines, as
  in MnMs) or `train.parquet` (also `train-*.parquet`);
- a folder `train` of JSON files with one object each, at any depth (MATH as its authors publish it);

or it was written by `datasets.save_to_disk`. Without a path, the folder of the data set below the environment variable
`PALAESTRA_DATA` is read if it exists; otherwise the data is downloaded from the hub.

Some data sets do not fit into memory: a row of LiveCodeBench may contain megabytes of tests. A `Table` is scanned row by
row, and each row can be read again by its key.

Data sets without published parts are divided by `part_by_hash` or `part_by_date`. Most of a benchmark stays test. The part
of a problem depends on the problem alone, not on a seed or on other problems.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from importlib.util import find_spec
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.records import Split
from palaestra.core.text import clean

VARIABLE = "PALAESTRA_DATA"
LINES = (".jsonl", ".jsonl.gz")
ENDINGS = (*LINES, ".json", ".parquet")
MAX_ROW = 512 << 20
"""Maximum bytes of a row of JSON lines, so that a small compressed file cannot fill the memory."""
TRAIN_PERCENT = VALIDATION_PERCENT = 20

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

    column: Any
    number: int

    def read(self) -> Any:
        """The stored value, not decoded: `bytes`, and the `path` of the original file."""
        (value,) = self.column[self.number].values()
        return value


class Table(Protocol):
    """The rows of one published split. Nothing is read before the first scan."""

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        """All rows, each with its key and a name for error messages."""
        ...

    def read(self, key: int) -> Row:
        """The row with a key from `scan`."""
        ...


class LineTable:
    """JSON lines. The key of a row is the offset of its line. A compressed file is decompressed up to that offset."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        return self._read_lines(0)

    def read(self, key: int) -> Row:
        return next(self._read_lines(key))[2]

    def _read_lines(self, key: int) -> Iterator[tuple[int, str, Row]]:
        try:
            with self._open() as lines:
                lines.seek(key)
                for number, line in enumerate(iter(lambda: lines.readline(MAX_ROW + 1), b""), start=1):
                    where = f"{self.file}, row {number}"
                    if len(line) > MAX_ROW:
                        raise TaskError(f"{where}: expected at most {MAX_ROW >> 20} MiB; it has more")
                    if text := line.decode().strip():
                        yield key, where, _check_row(where, _parse(text, where, "a JSON object"))
                    key += len(line)
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise TaskError(f"the file {self.file} cannot be read: {error}") from error

    def _open(self) -> gzip.GzipFile | BufferedReader:
        return gzip.open(self.file) if self.file.suffix == ".gz" else open(self.file, "rb")


class JsonTable:
    """Rows of JSON files that can only be read as a whole. They are kept in memory; the key of a row is its index."""

    def __init__(self, load: Callable[[], Iterator[tuple[str, Any]]]) -> None:
        self._load = load

    @cached_property
    def rows(self) -> list[tuple[str, Row]]:
        return [(where, _check_row(where, row)) for where, row in self._load()]

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        return ((number, where, row) for number, (where, row) in enumerate(self.rows))

    def read(self, key: int) -> Row:
        return self.rows[key][1]


class ArrowTable:
    """A table of `datasets`, which stays on disk. The key of a row is its index; images are `StoredImage`s.

    Arguments:
        load: called with the module `datasets`; returns a table, or tables by split.
        where: the location, for error messages.
        published: the split; by default `train`, or the only one.
        advice: added to the error message if the table cannot be loaded.
    """

    def __init__(self, load: Callable[[Any], Any], where: str, published: str = "", advice: str = "") -> None:
        self._load, self.where, self.published, self.advice = load, where, published, advice

    @cached_property
    def _columns(self) -> tuple[Any, dict[str, Any]]:
        """The table without its images, and the columns of images, not decoded."""
        if find_spec("datasets") is None:
            raise MissingExtraError("datasets", "data", f"reading {self.where}")
        import datasets

        try:
            table = self._load(datasets)
        except Exception as error:  # datasets, pyarrow and the hub raise different exceptions.
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TaskError(f"cannot read the dataset {self.where}: {reason}{self.advice}") from error
        if isinstance(table, Mapping):  # A table for each split.
            name = self.published or ("train" if len(table) != 1 else next(iter(table)))
            if name not in table:
                raise TaskError(f"the dataset {self.where} has no split '{name}'; it has {', '.join(map(str, table))}")
            table = table[name]
        images = [
            name for name, kind in (getattr(table, "features", None) or {}).items() if isinstance(kind, datasets.Image)
        ]
        columns = {n: table.select_columns([n]).cast_column(n, datasets.Image(decode=False)) for n in images}
        return table.remove_columns(images) if images else table, columns

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        table, images = self._columns
        for number, row in enumerate(table):
            stored = {name: StoredImage(column, number) for name, column in images.items()}
            yield number, f"{self.where}, row {number + 1}", {**row, **stored}

    def read(self, key: int) -> Row:
        table, images = self._columns
        return {**table[key], **{name: StoredImage(column, key) for name, column in images.items()}}


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
        raise TaskError(f"there is no folder {path} for {source.folder}; give a folder, or a hub id such as {example}")
    if not path and not source.hub:
        raise TaskError(
            f"the data of {source.folder} was not found: set {VARIABLE} to a folder that contains {source.folder}/, "
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
    place = locate(source, path)
    if isinstance(place, Path):
        return _open_folder(place, published)
    return _open_hub(place, config or ("" if path else source.config), published)


def read_rows(source: Source, path: str, published: str, config: str = "") -> Rows:
    """The rows of a published split; see `open_table`."""
    return _rows(open_table(source, path, published, config))


def file_rows(file: Path) -> Rows:
    """The rows of a `.jsonl`, `.jsonl.gz`, `.json` or `.parquet` file; raises `TaskError` if it is invalid."""
    return _rows(_open_file(file))


def read_saved_rows(folder: Path) -> Rows:
    """The rows of a data set written by `datasets.save_to_disk`: of `train`, or of the only split."""
    return _rows(_open_saved(folder))


def hub_rows(hub: str) -> Rows:
    """The rows of a data set on the hub: of `train`, or of the only split."""
    return _rows(_open_hub(hub))


def is_hub_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def is_saved(folder: Path) -> bool:
    """Whether the folder was written by `datasets.save_to_disk`."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def has_split(folder: Path, published: str) -> bool:
    """Whether a folder contains a split, in any of the formats above."""
    if (folder / "dataset_dict.json").is_file():
        return published in _read_json(folder / "dataset_dict.json").get("splits", ())
    try:
        _open_folder(folder, published)
    except TaskError:
        return False
    return True


def field(row: Row, where: str, *names: str) -> Any:
    """The value of the first of `names` that `row` has; raises `TaskError` if it has none of them."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise TaskError(f"{where}: expected the field '{names[0]}'; got {', '.join(row)}")


def abbreviate(value: Any) -> str:
    """A value for an error message: short and on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def part_by_hash(identity: str) -> Split:
    """The part of a problem, by the hash of its id: 20 % train, 20 % validation, 60 % test.

    >>> str(part_by_hash("HumanEval/0")), str(part_by_hash("HumanEval/3"))
    ('test', 'train')
    """
    bucket = int.from_bytes(hashlib.blake2b(f"part|{identity}".encode(), digest_size=8).digest()) % 100
    if bucket < TRAIN_PERCENT:
        return Split.TRAIN
    return Split.VALIDATION if bucket < TRAIN_PERCENT + VALIDATION_PERCENT else Split.TEST


def part_by_date(day: date, validation_from: date, test_from: date) -> Split:
    """The part of a problem by its date: the oldest are train, the newest test.

    >>> str(part_by_date(date(2024, 1, 1), date(2023, 9, 1), date(2024, 1, 1)))
    'test'
    """
    if day >= test_from:
        return Split.TEST
    return Split.VALIDATION if day >= validation_from else Split.TRAIN


def _rows(table: Table) -> Rows:
    return ((where, row) for _, where, row in table.scan())


def _open_folder(folder: Path, published: str) -> Table:
    for saved in (folder, folder / published):
        if is_saved(saved):
            return _open_saved(saved, published)
    for ending in (*LINES, ".json"):
        if (file := folder / f"{published}{ending}").is_file():
            return _open_file(file)
    if files := sorted((folder / published).rglob("*.json")):
        return JsonTable(lambda: ((str(file), _read_json(file)) for file in files))
    if files := sorted([*folder.glob(f"{published}.parquet"), *folder.glob(f"**/{published}-*.parquet")]):
        return ArrowTable(lambda datasets: datasets.Dataset.from_parquet(list(map(str, files))), str(folder))
    raise TaskError(
        f"the folder {folder} contains no '{published}' split; expected {published}.jsonl, .jsonl.gz, .json or .parquet, "
        f"a folder {published} of JSON files, or the output of datasets.save_to_disk"
    )


def _open_file(file: Path) -> Table:
    if file.suffix == ".parquet":
        return ArrowTable(lambda datasets: datasets.Dataset.from_parquet(str(file)), str(file))
    if file.suffix == ".json":
        return JsonTable(lambda: _read_whole(file))
    if file.name.endswith(LINES):
        return LineTable(file)
    raise TaskError(f"unknown file type of {file}; expected a name that ends with {', '.join(ENDINGS)}")


def _open_saved(folder: Path, published: str = "") -> Table:
    return ArrowTable(lambda datasets: datasets.load_from_disk(str(folder)), str(folder), published)


def _open_hub(hub: str, config: str = "", published: str = "") -> Table:
    def load(datasets: Any) -> Any:
        return datasets.load_dataset(hub, config or None, split=published or None)

    return ArrowTable(load, hub, published, "; or give a folder that contains it")


def _read_whole(file: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a `.json` file: a list of objects, objects by their id, or JSON lines."""
    expected = "a JSON list of objects, or objects by their id, or JSON lines"
    text = _read_text(file)
    first, _, rest = text.strip().partition("\n")
    if rest.lstrip().startswith("{") and first.rstrip().endswith("}"):
        yield from _rows(LineTable(file))
        return
    rows = _parse(text, str(file), expected)
    if isinstance(rows, dict) and rows and all(isinstance(row, dict) for row in rows.values()):
        rows = [{"id": key, **row} for key, row in rows.items()]
    if not isinstance(rows, list):
        raise TaskError(f"{file}: expected {expected}; got {abbreviate(rows)}")
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"the file {file} cannot be read: {error}") from error


def _read_json(file: Path) -> Any:
    return _parse(_read_text(file), str(file), "a JSON object")


def _parse(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: expected {expected}; {error}") from error


def _check_row(where: str, row: Any) -> Row:
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: expected an object; got {abbreviate(row)}")
    cleaned: Row = clean(row)
    return cleaned
