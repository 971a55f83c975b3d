"""The viewer over runs that were written by the store, without training."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from stored_runs import mark_running, write_train_run

from palaestra.runs.run import Run
from palaestra.view import make_app
from palaestra.view.runs import RunIndex, file_state
from palaestra.view.server import _watch


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_train_run(folder / "first")
    write_train_run(folder / "inner" / "second", seed=1, ended=False)
    mark_running(folder / "inner" / "second")
    (folder / "broken").mkdir()
    (folder / "broken" / "settings.json").write_text('{"recipe": "train", "settings"')
    return folder


@pytest.fixture
def client(runs: Path) -> Iterator[TestClient]:
    with TestClient(make_app([runs]), base_url="http://127.0.0.1") as client:
        yield client


def test_the_list_has_every_run_with_its_status_and_main_metric(client: TestClient) -> None:
    rows = {row["id"]: row for row in client.get("/runs.json").json()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "first": "ended",
        "inner/second": "running",
        "broken": "failed",
    }
    assert rows["first"]["figure"] == [12.5, 10.0, 15.0]
    assert rows["first"]["figure_name"] == "accuracy gain (points)"
    assert rows["inner/second"]["figure"][0] == pytest.approx(0.3), "a run without a summary shows its last reward"
    page = client.get("/").text
    assert page.count("data-row") == 3
    assert "12.5" in page
    assert "running" in page
    assert client.get("/?q=inner train").text.count("data-row") == 1
    grouped = client.get("/?group=status&sort=seconds&order=up").text
    assert re.findall(r"<h2>(\w+)", grouped) == ["failed", "running", "ended"]
    assert "No run matches" in client.get("/?q=nothing-like-it").text


def test_pages_of_a_run_link_to_its_episodes_and_settings(client: TestClient) -> None:
    page = client.get("/run/inner/second/").text
    assert "The run has not ended" in page
    assert 'href="/run/inner/second/episodes"' in page
    assert client.get("/run/inner/second/report.html").url.path == "/run/inner/second/"
    compared = client.get("/settings?run=first&run=inner/second").text
    assert re.search(
        r'<tr class="strong"><th scope="row"><code>seed</code></th><td[^>]*>0</td><td[^>]*>1</td>', compared
    )
    assert compared.count('class="strong"') == 1


def test_texts_of_models_are_only_shown(client: TestClient) -> None:
    for path in ("/run/first/", "/run/first/episodes", "/run/first/episodes/1/0"):
        page = client.get(path)
        assert "<script>alert" not in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        links = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert all(link.startswith(("/", "#", "?")) for link in links), "no address of another machine"
        assert "alert(1)" in unescape(re.sub("<[^>]*>", "", page.text))


def test_only_the_holder_of_the_token_reads(runs: Path) -> None:
    app = make_app([runs], "secret", frozenset({"127.0.0.1"}))
    client = TestClient(app, base_url="http://127.0.0.1")
    assert client.get("/").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    answer = client.get("/run/first/episodes?token=secret&iteration=2")
    assert answer.status_code == 200
    assert str(answer.url) == "http://127.0.0.1/run/first/episodes?iteration=2", "the token leaves the address"
    assert client.get("/runs.json").status_code == 200, "by the cookie"
    assert client.get("/", headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert client.get("/", headers={"host": "elsewhere.example"}).status_code == 403
    assert client.put("/").status_code == 405
    assert client.post("/").status_code == 403, "a form needs its origin"
    for path in ("/run/..%2f..%2fetc/", "/static/..%2fserver.py", "/run//etc/"):
        assert client.get(path).status_code == 404, path


def test_a_change_of_the_store_is_pushed(tmp_path: Path) -> None:
    write_train_run(tmp_path / "run", ended=False)

    class Reader:
        async def is_disconnected(self) -> bool:
            return False

    async def watch() -> list[str]:
        reader: Any = Reader()
        events = _watch(reader, lambda: file_state(tmp_path / "run"))
        first = [await anext(events), await anext(events)]
        with Run.open(tmp_path / "run") as run:
            run.store.add_metrics(3, {"test_reward": 0.5})
        return [*first, await anext(events)]

    assert [event.split("\n")[0] for event in asyncio.run(watch())] == ["retry: 2000", ": still here", "event: change"]


def test_cards_are_read_again_only_after_a_change(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.view import runs as module

    index, read = RunIndex([runs / "first"]), []
    original = module.read_card
    monkeypatch.setattr(module, "read_card", lambda folder, name: read.append(name) or original(folder, name))  # type: ignore[func-returns-value]
    assert [card.id for card in index.cards() + index.cards()] == ["first", "first"]
    assert read == ["first"]
    summary = json.loads((runs / "first" / "summary.json").read_text())
    (runs / "first" / "summary.json").write_text(json.dumps({**summary, "gain": 13.0}))
    card = index.find("first")
    assert card is not None
    assert card.figure == (13.0, 10.0, 15.0)
    (runs / "first" / "summary.json").write_text(json.dumps(summary))


def test_chosen_runs_are_compared_and_parts_of_the_page_saved(client: TestClient) -> None:
    address = "/compare?run=first&run=inner/second"
    page = client.get(address).text
    assert "2 runs compared" in page
    assert "no paired test" in page
    assert page.count("<polyline") >= 2
    assert f'href="{address}&save=curves-1.png"' in unescape(page)
    for kind, start in (("svg", b"<svg xmlns"), ("png", b"\x89PNG")):
        answer = client.get(f"{address}&save=curves-1.{kind}")
        assert answer.content.startswith(start)
        assert answer.headers["content-disposition"] == f'attachment; filename="curves-1.{kind}"'
    assert client.get(f"{address}&save=runs-1.csv").text.startswith("Run,Status,Subject")
    assert client.get(f"{address}&save=nothing.svg").status_code == 404
    assert client.get("/compare?run=first").status_code == 404
    assert client.get("/compare?run=first&run=../etc").status_code == 404
