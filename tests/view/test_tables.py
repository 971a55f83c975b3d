"""Tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from palaestra.view.tables import DataTable, export_table, with_query, write_csv, write_json_rows

ROWS = [
    {"id": 1, "text": 'two\nlines, "quoted"', "share": -0.5, "checks": ["a", "b"]},
    {"id": 2, "text": '=HYPERLINK("http://x")', "share": None, "checks": []},
    {"id": 3, "text": "@SUM(A1) \ud800 <b>", "more": "not a column"},
]
TABLE = DataTable("a run/examples", ("id", "text", "share", "checks"), ROWS)


def test_csv_keeps_numbers_and_disarms_formulas() -> None:
    rows = list(csv.DictReader(io.StringIO("".join(write_csv(TABLE)))))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert rows[0] == {"id": "1", "text": 'two\nlines, "quoted"', "share": "-0.5", "checks": '["a", "b"]'}
    assert rows[1]["text"] == '\'=HYPERLINK("http://x")'
    assert rows[2]["text"].startswith("'@SUM(A1)")
    assert list(csv.reader("".join(write_csv(DataTable("none", ("a", "b"), ()))).splitlines())) == [["a", "b"]]


def test_json_has_the_texts_as_they_are() -> None:
    rows = json.loads("".join(write_json_rows(TABLE)))
    assert rows == [{name: row.get(name) for name in TABLE.columns} for row in ROWS]
    assert json.loads("".join(write_json_rows(DataTable("none", ("a",), ())))) == []


def test_the_file_has_a_plain_name() -> None:
    app = Starlette(routes=[Route("/", lambda request: export_table(TABLE, "csv"))])
    answer = TestClient(app).get("/")
    assert answer.text == "".join(write_csv(TABLE)).replace("\ud800", "?")
    headers = answer.headers
    assert headers["content-disposition"] == 'inline; filename="a-run-examples.csv"'
    assert headers["content-type"].startswith("text/csv")


def test_links_keep_the_filters() -> None:
    assert with_query({"q": "1 & 2", "page": "4", "skill": ""}, format="json", page=None) == "?q=1+%26+2&format=json"
