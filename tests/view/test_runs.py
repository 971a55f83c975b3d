"""The viewer over folders that somebody has damaged on purpose: each is a row with its own error, and no page hangs."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from stored_runs import write_train_run

from palaestra.view import make_app

DEEP = '{"format": 1, "recipe": "train", "settings": ' + '{"a":' * 100_000 + "1" + "}" * 100_001
ENDLESS = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) SELECT i AS iteration, 'reward' AS name, i AS value FROM c"
PAGES = ("", "episodes", "episodes?format=csv", "conversation", "examples", "problems", "calls", "episodes/1/0")


def write(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def change(name: str, **values: Any) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        part = data["settings"] if name == "settings.json" else data
        part.update(values)
        (folder / name).write_text(json.dumps(data))

    return damage


def replace(name: str, make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def execute(script: str) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        (folder / "summary.json").unlink()
        db = sqlite3.connect(folder / "store.sqlite")
        db.executescript(script)
        db.close()

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "infinite result": (change("summary.json", gain=float("inf")), "finite"),
    "result that is not a number": (change("summary.json", gain=float("nan")), "finite"),
    "overflowing number": (write("summary.json", '{"gain": 1e999}'), "finite"),
    "infinite seconds": (change("summary.json", seconds=float("inf")), "finite"),
    "huge integer": (write("summary.json", f'{{"gain": 1{"0" * 400}}}'), "too large"),
    "endless integer": (write("summary.json", f'{{"gain": 1{"0" * 9000}}}'), "digits"),
    "text as number": (change("summary.json", gain=1.0, gain_low="low"), "could not convert"),
    "deep settings": (write("settings.json", DEEP), "nested too deeply"),
    "no settings": (write("settings.json", "null"), "no settings"),
    "list of settings": (write("settings.json", '{"format": 1, "recipe": "train", "settings": []}'), "no settings"),
    "list as summary": (write("summary.json", "[]"), "not an object"),
    "number as tags": (change("settings.json", tags=5), "not iterable"),
    "pipe": (replace("settings.json", os.mkfifo), "pipe"),
    "pipe as summary": (replace("summary.json", os.mkfifo), "pipe"),
    "pipe as provenance": (replace("provenance.json", os.mkfifo), "pipe"),
    "pipe as store": (replace("store.sqlite", os.mkfifo), "pipe"),
    "pipe as log": (replace("store.sqlite-wal", os.mkfifo), "pipe"),
    "folder as settings": (replace("settings.json", Path.mkdir), "directory"),
    "folder as summary": (replace("summary.json", Path.mkdir), "directory"),
    "link": (replace("settings.json", lambda path: path.symlink_to("/etc/passwd")), "link"),
    "link to itself": (replace("settings.json", lambda path: path.symlink_to(path)), "link"),
    "huge file": (lambda folder: os.truncate(folder / "summary.json", 1 << 40), "MB"),
    "no store": (lambda folder: (folder / "store.sqlite").unlink(), "no store"),
    "garbage": (replace("store.sqlite", lambda path: path.write_bytes(b"SQLite" * 999)), "not a database"),
    "endless view": (execute(f"DROP TABLE metrics; CREATE VIEW metrics AS {ENDLESS}"), "not a plain table"),
    "endless meta": (execute(f"DROP TABLE meta; CREATE VIEW meta AS {ENDLESS}"), "not a plain table"),
    "trigger": (execute("CREATE TRIGGER t AFTER INSERT ON metrics BEGIN DELETE FROM ledger; END"), "not a plain table"),
    "infinite metric": (execute("INSERT INTO metrics VALUES (99, 'reward', 9e999)"), "finite"),
    "text as metric": (execute("INSERT INTO metrics VALUES (99, 'reward', 'abc')"), "could not convert"),
    "infinite cost": (execute("UPDATE ledger SET money = 9e999"), "finite"),
}  # fmt: skip
SHOWN: dict[str, Callable[[Path], Any]] = {
    "lone surrogate": change("settings.json", env="a\ud800b", tags=["\udfff"], **{"x\ud801": "\ud800"}),
    "infinite setting": change("settings.json", learning_rate=float("inf"), hyperparameters=[float("nan")]),
    "extreme metrics": execute("INSERT INTO metrics VALUES (98, 'reward', 1e308), (99, 'reward', -1e308)"),
    "distant date": lambda folder: os.utime(folder / "settings.json", (1 << 40, 1 << 40)),
    "pipe as lock": replace("run.lock", os.mkfifo),
    "pipe as traceback": replace("traceback.txt", os.mkfifo),
    "line\nbreak": lambda folder: None,
    "<script>alert(1)": lambda folder: None,
    os.fsdecode(b"\xff\xfe"): lambda folder: None,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")
    write_train_run(folder / "good")
    for name, damage in {**SHOWN, **{name: damage for name, (damage, _) in DAMAGES.items()}}.items():
        shutil.copytree(folder / "good", folder / name)
        damage(folder / name)
    for number in range(30):  # Followed again and again, they would be 30 ** 4 folders.
        (folder / f"circle-{number}").symlink_to(folder)
    (folder / "itself").symlink_to(folder / "itself")
    (folder / "a-link").symlink_to(folder / "good")
    for name, plan in (
        ("list of arms", "[]"),
        ("arms outside", '{"seeds": [0], "arms": [{"name": "../x"}], "settings": {}}'),
    ):
        (folder / name).mkdir()
        (folder / name / "study.json").write_text(plan)
    with TestClient(make_app([folder]), base_url="http://127.0.0.1") as client:
        yield client


def test_the_list_has_a_row_for_every_folder(client: TestClient) -> None:
    rows = {row["id"]: row for row in client.get("/runs.json").json()}
    assert len(rows) == 1 + len(SHOWN) + len(DAMAGES) + 2
    assert rows["good"]["figure"] == [12.5, 10.0, 15.0]
    assert {row["id"] for row in rows.values() if row["kind"] == "unreadable"} == {*DAMAGES, "list of arms"}
    for query in ("", "?sort=figure", "?sort=money&order=up", "?group=tags", "?group=host", "?q=train"):
        page = client.get(f"/{query}")
        assert page.status_code == 200
        assert "<script>alert" not in page.text
    assert client.get("/").text.count("data-row") == len(rows)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_shows_its_error(client: TestClient, name: str) -> None:
    page = client.get("/").text
    row = next(row for row in page.split("<tr data-row>") if f'value="{name}"' in row)
    assert DAMAGES[name][1] in row


@pytest.mark.parametrize("name", ["arms outside", *DAMAGES, *SHOWN])
def test_every_page_of_a_damaged_folder_answers(client: TestClient, name: str) -> None:
    shown = name.replace("\n", "\ufffd").encode("utf-8", "replace").decode()
    shown = shown if name.isascii() else "\ufffd\ufffd"
    for page in PAGES:
        answer = client.get(f"/run/{quote(shown)}/{page}")
        assert answer.status_code in (200, 404, 500)
        assert answer.status_code == 200 or "This cannot be shown" in answer.text
    assert client.get(f"/settings?run=good&run={quote(shown)}").status_code in (200, 500)
    assert client.get(f"/compare?run=good&run={quote(shown)}").status_code in (200, 500)
