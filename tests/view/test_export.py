"""Tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from palaestra.view.export import export_table, write_csv, write_json_rows
from palaestra.view.query import with_query

ROWS = [
    {"id": 1, "text": 'two\nlines, "quoted"', "share": -0.5, "checks": ["a", "b"]},
    {"id": 2, "text": '=HYPERLINK("http://x")', "share": None, "checks": []},
    {"id": 3, "text": "@SUM(A1) \ud800 <b>", "more": "not a column"},
]
COLUMNS: dict[str, Any] = {name: lambda row, name=name: row.get(name) for name in ("id", "text", "share", "checks")}


def test_csv_keeps_numbers_and_disarms_formulas() -> None:
    rows = list(csv.DictReader(io.StringIO("".join(write_csv(COLUMNS, ROWS)))))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert rows[0] == {"id": "1", "text": 'two\nlines, "quoted"', "share": "-0.5", "checks": '["a", "b"]'}
    assert rows[1]["text"] == '\'=HYPERLINK("http://x")'
    assert rows[2]["text"].startswith("'@SUM(A1)")
    assert list(csv.reader("".join(write_csv(COLUMNS, ())).splitlines())) == [list(COLUMNS)]


def test_json_has_the_texts_as_they_are() -> None:
    rows = json.loads("".join(write_json_rows(COLUMNS, ROWS)))
    assert rows == [{name: row.get(name) for name in COLUMNS} for row in ROWS]
    assert json.loads("".join(write_json_rows(COLUMNS, ()))) == []


def test_the_file_has_a_plain_name() -> None:
    app = Starlette(routes=[Route("/", lambda request: export_table("a run/examples", COLUMNS, ROWS, "csv"))])
    answer = TestClient(app).get("/")
    assert answer.text == "".join(write_csv(COLUMNS, ROWS)).replace("\ud800", "?")
    headers = answer.headers
    assert headers["content-disposition"] == 'inline; filename="a-run-examples.csv"'
    assert headers["content-type"].startswith("text/csv")


def test_links_keep_the_filters() -> None:
    assert with_query({"q": "1 & 2", "page": "4", "skill": ""}, format="json", page=None) == "?q=1+%26+2&format=json"
