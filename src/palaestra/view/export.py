"""Lists of the viewer as CSV and JSON: `?format=csv` or `?format=json` on the address of a page, with its filters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from tempfile import SpooledTemporaryFile
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

T = TypeVar("T")
Columns = Mapping[str, Callable[[T], object]]
"""The columns of a table in order, each with the function that reads its value from a record."""
FORMATS = {"csv": "text/csv", "json": "application/json"}
_IN_MEMORY, _CHUNK = 4 << 20, 1 << 16
"""Bytes of a table that are kept in memory, and bytes that are sent at a time."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet would read as a formula."""


def read_fields(*paths: str) -> Columns[Any]:
    """Columns with the values of attributes, named by the last part of their paths.

    >>> read_fields("real")["real"](2)
    2
    """
    return {path.rpartition(".")[2]: attrgetter(path) for path in paths}


def export_table(name: str, columns: Columns[T], records: Iterable[T], format_: str) -> Response:
    """Return records as a CSV or JSON file.

    All records are read now, by the thread that has opened the store. A large table waits in a temporary file.

    Arguments:
        records: all that match the filters, of all pages.
    """
    file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  (the response closes it)
    try:
        for line in (write_csv if format_ == "csv" else write_json_rows)(columns, records):
            file.write(line.encode("utf-8", "replace"))  # Text that UTF-8 cannot encode is replaced.
    except BaseException:
        file.close()
        raise
    size = file.tell()
    file.seek(0)
    stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
    headers = {"content-disposition": f'inline; filename="{stem}.{format_}"', "content-length": str(size)}
    return StreamingResponse(_read_chunks(file), media_type=FORMATS[format_], headers=headers)


def _read_chunks(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


def write_csv(columns: Columns[T], records: Iterable[T]) -> Iterator[str]:
    """Yield the lines of a table as CSV. A text that looks like a formula gets an apostrophe in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(columns)
    for record in records:
        writer.writerow([_to_cell(read(record)) for read in columns.values()])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def write_json_rows(columns: Columns[T], records: Iterable[T]) -> Iterator[str]:
    """Yield a table as a JSON array with one object per line."""
    yield "["
    for place, record in enumerate(records):
        line = json.dumps({name: read(record) for name, read in columns.items()}, default=str)
        yield f"{',' if place else ''}\n{line}"
    yield "\n]\n"


def _to_cell(value: object) -> object:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
