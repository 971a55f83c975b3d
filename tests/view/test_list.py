"""The list of runs, daily: progress, the real model, names and notes, columns, one unit in a sorted column."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from stored_runs import attempts, evaluate_run, mark_running, teach_run, write_train_run

from palaestra.recipes.settings import to_plain
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.report.notes import NOTES, RunNotes, read_notes
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run
from palaestra.view import make_app
from palaestra.view.runs import RunIndex

OWN = {"origin": "http://127.0.0.1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_train_run(tmp_path / "first")
    write_train_run(tmp_path / "inner" / "second", seed=1, ended=False)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> TestClient:
    return TestClient(make_app([folder]), base_url="http://127.0.0.1")


def write_control_run(folder: Path, seconds: float = 3.0, **settings: object) -> None:
    chosen = fill_presets(make_settings({"env": "CartPole-v1", "iterations": 10, **settings}))
    with Run.create(folder, "train", to_plain(chosen)) as run:
        for k in (1, 2):
            run.store.add_iteration(k, {"reward": 10.0 * k}, [], LedgerEntry(f"{k}/train", seconds=seconds))


def fail(run: Run) -> None:
    run.log.add("the last words")
    raise ValueError("the key sk-abcdefghijklmnop1234 is <wrong>")


def list_rows(page: str) -> list[str]:
    return re.findall(r'<tr data-row>.*?value="([^"]*)"', page, re.DOTALL)


def test_a_running_run_shows_its_curve_progress_and_time_left(folder: Path, client: TestClient) -> None:
    write_control_run(folder / "control")
    mark_running(folder / "control")
    card = RunIndex([folder]).find("control")
    assert card is not None
    assert (card.status, card.spark, card.done, card.planned, card.left) == ("running", (10.0, 20.0), 2, 10, 24.0)
    page = client.get("/?q=control").text
    assert '<progress value="2" max="10">' in page
    assert "about 24.0 s left" in page
    assert 'class="spark"' in page
    (row,) = (row for row in client.get("/runs.json").json() if row["id"] == "control")
    assert (row["done"], row["planned"], row["left"]) == (2, 10, 24.0)


def test_a_run_counts_as_running_while_its_process_lives(folder: Path, client: TestClient) -> None:
    run, lock = folder / "inner" / "second", folder / "inner" / "second" / "run.lock"

    def read_status() -> str:
        card = RunIndex([folder]).find("inner/second")
        assert card is not None
        return card.status

    assert read_status() == "stopped", "a run that was closed leaves an empty lock"
    assert (
        f"It was stopped; continue it with <code>palaestra resume {run}</code>" in client.get("/run/inner/second/").text
    )
    mark_running(run)
    assert read_status() == "running"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    lock.write_text(f"{ended.pid} {platform.node()}\n")
    assert read_status() == "stopped", "the process was killed"
    lock.write_text("1 another-machine\n")
    assert read_status() == "running", "its store has just changed"
    os.utime(run / "store.sqlite", (0, 0))
    assert read_status() == "stopped"


def test_every_recipe_has_its_progress(tmp_path: Path) -> None:
    teach_run(tmp_path / "taught")
    evaluate_run(tmp_path / "measured", attempts(3), ended=False)
    with Run.open(tmp_path / "measured") as run:
        run.store.plan(40)
    mark_running(tmp_path / "measured")
    cards = {card.id: card for card in RunIndex([tmp_path]).cards()}
    assert (cards["taught"].done, cards["taught"].planned) == (2, 2)
    assert cards["taught"].spark == pytest.approx((0.4, 0.5, 0.65))
    assert (cards["measured"].done, cards["measured"].planned, cards["measured"].left) == (20, 40, 1.0)


def test_the_model_is_the_one_that_learns(folder: Path) -> None:
    write_control_run(folder / "control", width=32)
    cards = {card.id: card for card in RunIndex([folder]).cards()}
    assert (cards["control"].model, cards["first"].model) == ("mlp 2×32", "nano")


def test_paths_are_relative(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = json.loads((folder / "first" / "settings.json").read_text())
    stored["settings"] |= {"env": f"{folder}/my_env.py:Maze", "model": f"{folder}/models/small"}
    (folder / "first" / "settings.json").write_text(json.dumps(stored))
    monkeypatch.chdir(folder)
    card = RunIndex([folder]).find("first")
    assert card is not None
    assert (card.subject, card.model) == ("my_env.py:Maze", "models/small")
    with pytest.raises(ValueError, match="broke"), Run.open(folder / "inner" / "second"):
        raise ValueError(f"first failure: {folder}/my_env.py:Maze broke")
    failed = RunIndex([folder]).find("inner/second")
    assert failed is not None
    assert failed.problem == "ValueError: first failure: my_env.py:Maze broke"


def test_a_failed_run_shows_its_cause(folder: Path, client: TestClient) -> None:
    with pytest.raises(ValueError, match="wrong"), Run.open(folder / "inner" / "second") as run:
        fail(run)
    assert "ValueError: the key *** is &lt;wrong&gt;" in client.get("/?q=second").text
    assert list_rows(client.get("/?q=valueerror").text) == ["inner/second"]
    page = client.get("/run/inner/second/").text
    assert "<strong>The run failed.</strong> ValueError: the key *** is &lt;wrong&gt;" in page
    assert "Traceback (most recent call last)" in page
    assert "the last words" in page
    log = client.get("/run/inner/second/log")
    assert "the last words" in log.text
    assert "Traceback (most recent call last)" in log.text
    assert "failed: ValueError" not in client.get("/run/inner/second/log?q=words").text
    assert client.get("/run/inner/second/log?format=txt").text.endswith("failed: ValueError: the key *** is <wrong>")
    assert "The run has no log" in client.get("/run/first/log").text


def test_a_run_is_renamed_in_place_and_noted(folder: Path, client: TestClient) -> None:
    page = client.get("/?q=second&edit=inner/second").text
    assert 'action="/run/inner/second/notes" method="post"' in page
    answer = client.post(
        "/run/inner/second/notes", data={"name": " my  <b>best</b> ", "query": "q=second"}, headers=OWN
    )
    assert str(answer.url) == "http://127.0.0.1/?q=second"
    assert ">my &lt;b&gt;best&lt;/b&gt;</a>" in answer.text
    assert list_rows(client.get("/?q=best").text) == ["inner/second"]
    answer = client.post("/run/inner/second/notes", data={"text": "one\r\ntwo"}, headers=OWN)
    assert str(answer.url) == "http://127.0.0.1/run/inner/second/"
    assert read_notes(folder / "inner" / "second") == RunNotes("my <b>best</b>", "one\ntwo")
    assert "one\ntwo" in client.get("/?column=notes").text
    assert client.post("/run/inner/second/notes", data={"name": "x" * 201}, headers=OWN).status_code == 500
    assert client.post("/run/inner/second/notes", data={"text": "x" * 300_000}, headers=OWN).status_code == 413
    assert client.post("/run/nothing/notes", data={"name": "x"}, headers=OWN).status_code == 404
    assert read_notes(folder / "inner" / "second").text == "one\ntwo"


def test_only_own_pages_with_the_token_write(folder: Path) -> None:
    client = TestClient(make_app([folder], "secret", frozenset({"127.0.0.1"})), base_url="http://127.0.0.1")
    address, form = "/run/first/notes", {"name": "changed"}
    assert client.post(address, data=form, headers=OWN).status_code == 403, "no token"
    client.get("/?token=secret")
    for headers in ({}, {"origin": "null"}, {"origin": "http://elsewhere.example"}, {"origin": "https://127.0.0.1:99"}):
        assert client.post(address, data=form, headers=headers).status_code == 403, headers
    assert client.get(f"{address}?name=changed").status_code in (404, 405)
    assert client.post("/run/first/", headers=OWN).status_code == 405
    assert not (folder / "first" / NOTES).exists()
    answer = client.post(address, data=form | {"query": "@elsewhere.example"}, headers=OWN, follow_redirects=False)
    assert answer.headers["location"].startswith("/?"), "no form leads elsewhere"
    assert read_notes(folder / "first").name == "changed"


def test_columns_are_chosen_and_remembered(client: TestClient) -> None:
    page = client.get("/?column=seed&column=started").text
    assert re.findall(r'data-label="(\w+)"', page) == ["seed", "Started", "seed", "Started"]
    assert re.findall(r'data-label="seed"[^>]*>(\d)', page) == ["1", "0"]
    assert re.findall(r'data-label="(\w+)"', client.get("/?q=first").text) == ["seed", "Started"]
    assert re.findall(r"<time>(.*?)</time>", page)[0].count(":") == 2, "the whole date"


def test_a_sorted_column_has_one_unit(folder: Path, client: TestClient) -> None:
    for name, seconds in (("short", 0.4), ("long", 5000.0)):
        write_control_run(folder / name, seconds=seconds)
    page = client.get("/?sort=seconds").text
    assert list_rows(page)[0] == "long"
    assert re.findall(r'data-label="Time"[^>]*>([^<]*)', page)[0] == "2:46:40"
    assert re.findall(r'data-label="Time"[^>]*>([^<]*)', page)[-1] == "0:00:00"
    units = [card["figure_name"] for card in client.get("/runs.json").json()]
    assert len(set(units)) > 1
    rows = list_rows(client.get("/?sort=figure").text)
    names = {card["id"]: card["figure_name"] for card in client.get("/runs.json").json()}
    shown = [names[row] for row in rows]
    assert sorted(shown, reverse=True) == shown, "figures of one unit stand together"
