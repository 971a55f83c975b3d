"""Read the rows of published data sets one at a time.

Some data sets do not fit into memory: a row of LiveCodeBench may contain megabytes of tests. A table is scanned once,
and each row can be read again by its key. Rows are not kept in memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from palaestra.core.errors import TaskError
from palaestra.tasks.sources import (
    HUB_ADVICE,
    LINES,
    Source,
    is_saved,
    load_table,
    locate,
    parquet_files,
    read_object,
    read_rows,
)

Row = Mapping[str, Any]


class Table(Protocol):
    """The rows of one published split."""

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        """All rows, each with its key and a name for error messages."""
        ...

    def read(self, key: int) -> Row:
        """The row with a key from `scan`."""
        ...


def open_table(source: Source, path: str, published: str) -> Table:
    """Open the table of a split. Data is read when the table is scanned, except formats that cannot be read in parts.

    Arguments:
        path: see `palaestra.tasks.sources.locate`.

    Raises:
        TaskError: the split does not exist.
    """
    place = locate(source, path)
    if isinstance(place, str):
        config = "" if path else source.config
        loaded = load_table(
            lambda datasets: datasets.load_dataset(place, config or None, split=published), place, published, HUB_ADVICE
        )
        return ArrowTable(loaded, place)
    if saved := next((str(folder) for folder in (place, place / published) if is_saved(folder)), ""):
        return ArrowTable(load_table(lambda datasets: datasets.load_from_disk(saved), saved, published), saved)
    for ending in LINES:
        if (file := place / f"{published}{ending}").is_file():
            return LineTable(file)
    if files := [str(file) for file in parquet_files(place, published)]:
        return ArrowTable(load_table(lambda datasets: datasets.Dataset.from_parquet(files), str(place)), str(place))
    return HeldTable(source, path, published)


class LineTable:
    """JSON lines. The key of a row is the offset of its line. A compressed file is decompressed up to that offset."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        key = 0
        try:
            with self._open() as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        where = f"{self.file}, row {number}"
                        yield key, where, read_object(line, where)
                    key += len(line)
        except (OSError, EOFError, zlib.error) as error:
            raise TaskError(f"the file {self.file} cannot be read: {error}") from error

    def read(self, key: int) -> Row:
        try:
            with self._open() as lines:
                lines.seek(key)
                return read_object(lines.readline(), str(self.file))
        except (OSError, EOFError, zlib.error) as error:
            raise TaskError(f"the file {self.file} cannot be read: {error}") from error

    def _open(self) -> gzip.GzipFile | BufferedReader:
        return gzip.open(self.file) if self.file.suffix == ".gz" else open(self.file, "rb")


class ArrowTable:
    """A table of `datasets`, which stays on disk. The key of a row is its index."""

    def __init__(self, table: Any, where: str) -> None:
        self.table, self.where = table, where

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        for number, row in enumerate(self.table):
            yield number, f"{self.where}, row {number + 1}", row

    def read(self, key: int) -> Row:
        row: Row = self.table[key]
        return row


class HeldTable:
    """Rows of JSON files that can only be read as a whole. They are kept in memory; the key of a row is its index."""

    def __init__(self, source: Source, path: str, published: str) -> None:
        self.rows = list(read_rows(source, path, published))

    def scan(self) -> Iterator[tuple[int, str, Row]]:
        for number, (where, row) in enumerate(self.rows):
            yield number, where, row

    def read(self, key: int) -> Row:
        return self.rows[key][1]
