"""Studies and benches on executors: the same runs as in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import SettingsError
from palaestra.core.records import Event
from palaestra.recipes.research.bench import bench
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import study


def read_table(folder: Path) -> list[list[str]]:
    """The table of a bench without its last column, the seconds."""
    return [line.split(",")[:-1] for line in (folder / "table.csv").read_text().splitlines()]


@pytest.mark.backends
def test_a_bench_survives_a_killed_node(tmp_path: Path, two_nodes: Any) -> None:
    notices: list[str] = []

    def kill(event: Event) -> None:
        notices.append(str(event.data.get("text")))
        # One run of four is done, so both nodes are at work.
        if event.phase == "bench" and event.done == 1:
            two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)

    plan: dict[str, Any] = {"tasks": ["prisoners_dilemma"], "agents": ["baseline", "reference"], "seeds": 2}
    bench(ResearchSettings(), **plan, out=tmp_path / "inline", progress=False)
    bench(ResearchSettings(), **plan, executor="ray", out=tmp_path / "ray", listener=kill)
    assert read_table(tmp_path / "ray") == read_table(tmp_path / "inline")
    assert any("a worker died" in text for text in notices)


def test_a_shared_budget_needs_one_process(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'inline', .*'processes'"):
        bench(
            ResearchSettings(), tasks=["prisoners_dilemma"], agents=["baseline"], total_cost=1.0, executor="processes"
        )


@pytest.mark.backends  # Half a minute.
def test_a_study_on_processes_has_the_same_runs_as_inline(tmp_path: Path) -> None:
    settings = TeachSettings(rounds=1, lesson_size=8, validation=1, test=1, epochs=1, skills=("clock", "groups"))
    events: list[Event] = []
    results = [
        study(settings, {}, 2, out=tmp_path / name, executor=name, listener=events.append)
        for name in ("inline", "processes:2")
    ]
    gains = [[dict(arm.gains) for arm in result.rows] for result in results]
    assert gains[0] == gains[1]
    weights = [
        [
            json.loads((tmp_path / name / f"skill_tree-seed{seed}" / "summary.json").read_text())["weights_sha256"]
            for seed in (0, 1)
        ]
        for name in ("inline", "processes:2")
    ]
    assert weights[0] == weights[1]
    assert [event.data["text"] for event in events if event.phase == "study"][-1].startswith("2/2 ")
