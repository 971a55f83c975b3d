"""Tables of the viewer as CSV and JSON: `?format=csv` or `?format=json` on the address of a page, with its filters."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

FORMATS = {"csv": "text/csv", "json": "application/json"}
IN_MEMORY, CHUNK = 4 << 20, 1 << 16
"""Bytes of a table that are kept in memory, and bytes that are sent at a time."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet would read as a formula."""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows to export.

    Arguments:
        name: the file name without its ending.
        columns: the columns in order.
        rows: all rows that match the filters, of all pages.
    """

    name: str
    columns: Sequence[str]
    rows: Iterable[Mapping[str, Any]]


def export_table(table: DataTable, format_: str) -> Response:
    """Return a table as CSV or JSON.

    All rows are read now, by the thread that has opened the store. A large table waits in a temporary file.
    """
    file = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  (the response closes it)
    try:
        for line in write_csv(table) if format_ == "csv" else write_json_rows(table):
            file.write(line.encode("utf-8", "replace"))  # Text that UTF-8 cannot encode is replaced.
    except BaseException:
        file.close()
        raise
    size = file.tell()
    file.seek(0)
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in table.name)
    headers = {"content-disposition": f'inline; filename="{name}.{format_}"', "content-length": str(size)}
    return StreamingResponse(_read_chunks(file), media_type=FORMATS[format_], headers=headers)


def _read_chunks(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


def write_csv(table: DataTable) -> Iterator[str]:
    """Yield the lines of a table as CSV. A text that looks like a formula gets an apostrophe in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([_to_cell(row.get(column)) for column in table.columns])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def write_json_rows(table: DataTable) -> Iterator[str]:
    """Yield a table as a JSON array with one object per line."""
    yield "["
    for place, row in enumerate(table.rows):
        line = json.dumps({column: row.get(column) for column in table.columns}, default=str)
        yield f"{',' if place else ''}\n{line}"
    yield "\n]\n"


def with_query(query: Mapping[str, Any], **changes: Any) -> str:
    """Return the query of a link: the current one with `changes`; `None` removes a part.

    >>> with_query({"q": "a b", "page": "3"}, page=None, format="csv")
    '?q=a+b&format=csv'
    """
    parts = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(parts)}"


def _to_cell(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
