"""The pages of the lesson scale over a run that was written by the store."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from stored_runs import HOSTILE, attempts, cost, create, evaluate_run, teach_run

from palaestra.core.records import (
    Completion,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Lesson,
    Message,
    Score,
    TextPart,
    Usage,
)
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.runs.provenance import CallLog, Spending
from palaestra.teachers.quality.base import Broken, CheckReport, Dropped, Inspection
from palaestra.view import make_app

LINE = "x" * 10_000_000
"""A line of 10 MB."""


def make_example(number: int, text: str = "") -> Example:
    return Example(
        (Message("user", f"Add {number} and 1. {text}"),), f"It is {number + 1}. {text}", "addition", "carry"
    )


def write_lessons(folder: Path) -> None:
    kept, dropped, held = ([make_example(10 * k + n, HOSTILE) for n in range(3)] for k in range(3))
    checks = (
        CheckReport("readable", 9, 9, 0, 0, 0), CheckReport("picture", 9, 0, 0, 9, 0),
        CheckReport("scorer", 9, 3, 3, 0, 3), CheckReport("solved", 3, 2, 0, 1, 0),
    )  # fmt: skip
    drops = tuple(Dropped(3 + n, example, "scorer", "wrong answer", f"got {n}") for n, example in enumerate(dropped))
    broken = Broken("scorer", Failure(FailureCause.SCORER, "it broke"), (6, 7, 8), True, tuple(held))
    log, secret = CallLog(), "sk-" + "a1B2" * 10
    pictures = Message("user", (TextPart(f"Draw {HOSTILE}"), ImagePart("data:image/png;base64," + "A" * 9000)))
    log.add(
        "k1",
        "1/lesson",
        "openai:writer",
        [Message("system", f"the key {secret}"), pictures],
        Completion("an answer"),
        Spending(1, 0, Usage(100, 20), 1.5, 0.25),
    )
    log.add(
        "k2",
        "1/lesson",
        "openai:writer",
        [Message("user", "again")],
        Completion("stored", usage=Usage(7, 8)),
        Spending(),
    )
    log.add(
        "k3",
        "1/lesson",
        "openai:writer",
        [Message("user", "third")],
        Failure(FailureCause.REFUSED, "no \ud800"),
        Spending(2, 0, Usage(), 0.5, 0.0, unpriced=2),
    )
    with create(folder, TeachSettings(rounds=1, lesson_size=6)) as run:
        before = attempts(8, 1)
        long = replace(before[0], completion=Completion(f"{LINE} the end"), outcome=Score(1.0, {"extracted": HOSTILE}))
        run.store.add_attempts("0/test", [long, *before[1:]], cost("0/test"))
        inspection = Inspection(tuple(kept), (0, 1, 2), drops, (broken,), checks)
        run.store.add_lesson(1, Lesson(tuple(kept)), cost("1/lesson"), inspection, None, log.take())
        after = attempts(6)
        after[10:14] = [replace(a, outcome=Score(1.0)) for a in after[10:14]]
        run.store.add_attempts("1/test", after, cost("1/test"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("runs")
    write_lessons(folder / "taught")
    teach_run(folder / "old")
    several = [replace(a, sample=k) for k, right in enumerate((8, 12)) for a in attempts(right)]
    evaluate_run(folder / "measured", several)
    with TestClient(make_app([folder]), base_url="http://127.0.0.1") as client:
        yield client


def read_text(client: TestClient, path: str) -> str:
    page = client.get(path)
    assert page.status_code == 200, page.text
    assert "<script>alert" not in page.text
    assert "\x1b" not in page.text
    return unescape(re.sub("<[^>]*>", "", page.text.split("<main", 1)[1]))


def count_rows(client: TestClient, path: str) -> int:
    page = client.get(path)
    assert page.status_code == 200, page.text
    return page.text.count("data-row")


def test_examples_are_filtered(client: TestClient) -> None:
    assert "3 kept, 3 dropped, 3 withheld" in read_text(client, "/run/taught/examples")
    for query, count in {
        "": 9,
        "state=dropped": 3,
        "check=scorer": 6,
        "check=solved": 0,
        "skill=addition&subskill=carry": 9,
        "skill=clock": 0,
        "round=1&state=kept": 3,
        "round=2": 0,
        "q=Add 1": 4,
        "q=ADD 11 AND": 1,
        "q=100%25 a_b": 9,
        "q=100%25 axb": 0,
        "q=messages": 0,
        "state=nonsense": 0,
        "page=99": 9,
        "round=x": 9,
    }.items():
        assert count_rows(client, f"/run/taught/examples?{query}") == count, query
    assert count_rows(client, "/run/old/examples?round=2&skill=clock") == 4


def test_an_example_shows_the_results_of_its_checks(client: TestClient) -> None:
    dropped = read_text(client, "/run/taught/examples/1/dropped/1")
    assert "scorer: wrong answer" in dropped
    assert "got 1" in dropped
    assert re.search(r"readable\s*passed\s*picture\s*not judged\s*scorer\s*dropped it\s*Checks run", dropped)
    assert re.search(
        r"scorer\s*passed\s*solved\s*passed or not judged", read_text(client, "/run/taught/examples/1/kept/0")
    )
    withheld = read_text(client, "/run/taught/examples/1/withheld/2")
    assert "the check failed to run" in withheld
    assert "it broke" in withheld
    assert "alert(1)" in dropped
    assert client.get("/run/taught/examples/1/kept/7").status_code == 404
    assert client.get("/run/taught/examples/1/other/0").status_code == 404


def test_tables_are_exported_with_the_filters_of_the_page(client: TestClient) -> None:
    answer = client.get("/run/taught/examples?state=dropped&format=json")
    rows = answer.json()
    assert [(row["state"], row["check"], row["detail"]) for row in rows] == [
        ("dropped", "scorer", f"got {n}") for n in range(3)
    ]
    assert rows[0]["prompt"] == f"Add 10 and 1. {HOSTILE}"
    assert rows[0]["checks"] == ["readable: passed", "picture: not judged", "scorer: dropped it"]
    table = client.get("/run/taught/calls?format=csv")
    assert table.headers["content-type"].startswith("text/csv")
    calls = list(csv.DictReader(io.StringIO(table.text)))
    assert [call["money"] for call in calls] == ["0.25", "0.0", ""], "an unknown price is not 0"
    assert len(client.get("/run/taught/problems?change=turned wrong&format=json").json()) == 2
    assert [len(row["answers"]) for row in client.get("/run/measured/problems?change=mixed&format=json").json()] == [
        2
    ] * 4
    assert client.get("/run/old/calls?format=json").json() == []


def test_problems_are_filtered_by_what_became_of_them(client: TestClient) -> None:
    head = read_text(client, "/run/taught/problems")
    assert "4 turned right, 2 turned wrong, 6 still right, 7 still wrong, 1 failed" in head
    for query, count in {
        "": 20,
        "change=turned right": 4,
        "change=turned right&skill=clock": 4,
        "change=turned right&skill=addition": 0,
        "change=failed": 1,
        "from=0&to=0&change=right": 8,
        "from=1&to=1": 20,
        "q=the engine broke": 1,
        "q=Question clock": 10,
        "q=token_ids": 0,
        "change=nonsense": 20,
    }.items():
        assert count_rows(client, f"/run/taught/problems?{query}") == count, query
    assert count_rows(client, "/run/measured/problems?change=mixed") == 4
    assert "1 of 2 right" in read_text(client, "/run/measured/problems?change=mixed")
    assert "2/validation" not in read_text(client, "/run/old/problems?split=validation")
    assert count_rows(client, "/run/old/problems?split=validation&from=1&to=2&change=turned right") == 3


def test_a_problem_shows_every_answer_and_cuts_long_lines(client: TestClient) -> None:
    page = client.get("/run/taught/problem?split=test&id=addition/carry/0")
    assert len(page.text) < 200_000, "a line of 10 MB is cut"
    assert "more characters" in page.text
    text = read_text(client, "/run/taught/problem?split=test&id=addition/carry/0")
    assert "extracted: <script>alert(1)</script> red 100% a_b" in text
    assert "reference 0" in text
    assert len(client.get("/run/taught/problems").text) < 200_000
    failed = read_text(client, "/run/taught/problem?split=test&id=clock/within_hour/4")
    assert re.search(r"Round 0.*failed: engine.*the engine broke.*Round 1.*wrong.*answer 4", failed, re.DOTALL)
    assert client.get("/run/taught/problem?split=test&id=none").status_code == 404


def test_teacher_calls_show_cost_without_keys_and_images(client: TestClient) -> None:
    text = read_text(client, "/run/taught/calls")
    assert "3; 100 tokens in, 20 out, $0.25 and 2 unpriced calls" in text.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "from the cache" in text
    assert count_rows(client, "/run/taught/calls?outcome=failed") == 1
    assert count_rows(client, "/run/taught/calls?phase=1/lesson&q=AN ANSWER") == 1
    assert count_rows(client, "/run/taught/calls?phase=9/lesson") == 0
    call = read_text(client, "/run/taught/calls/1")
    assert "the key ***" in call
    assert "[image of 9022 characters]" in call
    assert "alert(1)" in call
    assert "no \N{REPLACEMENT CHARACTER}" in read_text(client, "/run/taught/calls/3")
    assert client.get("/run/taught/calls/4").status_code == 404


def test_runs_without_stored_calls_open(client: TestClient) -> None:
    assert "earlier version, which did not store the calls" in read_text(client, "/run/old/calls")
    assert client.get("/run/old/calls/1").status_code == 404


def test_tabs_follow_the_recipe(client: TestClient) -> None:
    for run, titles in {
        "taught": ["Overview", "Examples", "Problems", "Teacher calls", "Charts", "Log", "Settings"],
        "measured": ["Overview", "Problems", "Log", "Settings"],
    }.items():
        tabs = client.get(f"/run/{run}/").text.split('class="tabs"')[1].split("</span>")[0]
        assert re.findall(r">([^<>\n]+)</a>", tabs) == titles
    assert json.loads(client.get("/runs.json").text)
