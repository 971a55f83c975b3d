"""The charts of runs: what can be chosen is part of the address, without a script."""

from __future__ import annotations

import re
from html import unescape

import pytest
from starlette.testclient import TestClient
from stored_runs import evaluate_run, teach_run, write_train_run

from palaestra.view import make_app


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1, 2):
        write_train_run(folder / f"seed-{seed}", seed=seed)
    teach_run(folder / "taught")
    evaluate_run(folder / "measured", [])
    return TestClient(make_app([folder]), base_url="http://127.0.0.1")


def list_titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_run_has_a_page_of_charts(client: TestClient) -> None:
    page = client.get("/run/seed-0/charts").text
    assert list_titles(page) == ["training reward"]
    assert "data-chart=" in page
    assert ">Values</summary>" in page, "the values can be read without a script"
    chosen = client.get("/run/seed-0/charts?metric=seconds+update&metric=episodes&axis=seconds&log=on&smooth=0.9").text
    assert list_titles(chosen) == ["seconds update", "episodes"]
    assert "<option selected>seconds</option>" in chosen
    assert "data-chart=" not in client.get("/run/seed-0/charts?from=50&to=60").text
    for query in ("from=x&to=nan&smooth=7&axis=none&metric=none", "from=1e999&to=-1e999"):
        assert client.get(f"/run/seed-0/charts?{query}").status_code == 200


def test_runs_are_grouped_by_all_but_the_seed(client: TestClient) -> None:
    runs = "&".join(f"run={name}" for name in ("seed-0", "seed-1", "seed-2", "taught", "measured"))
    page = client.get(f"/charts?{runs}&group=all+but+the+seed").text
    assert "Charts of 4 runs" in page, "an evaluation has no curves"
    assert "seed-0, 3 runs" in page
    assert list_titles(page) == ["training reward"], "along the iterations"
    assert list_titles(client.get(f"/charts?{runs}&axis=round").text) == [
        "validation accuracy (%)",
        "test accuracy (%)",
    ]
    assert "CoT-v0, 3 runs" in client.get(f"/charts?{runs}&group=subject").text
    assert client.get("/charts?run=nothing").status_code == 404


def test_the_whole_range_keeps_the_other_choices(client: TestClient) -> None:
    page = client.get("/run/seed-0/charts?metric=episodes&metric=training+reward&from=1&to=2&axis=seconds").text
    (link,) = re.findall(r'id="whole" href="([^"]*)"', page)
    assert unescape(link) == "?metric=episodes&metric=training+reward&axis=seconds"
    saved = client.get("/run/seed-0/charts?metric=episodes&save=charts-1.svg")
    assert saved.content.startswith(b"<svg")
    assert b"data-chart" not in saved.content
