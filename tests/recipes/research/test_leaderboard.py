"""Leaderboards: agents by tasks over all runs below a folder, as data and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import RunError
from palaestra.recipes.research.leaderboard import read_leaderboard
from palaestra.report import write_leaderboard


def write_run(folder: Path, task: str, agent: str, reward: float | None, **values: Any) -> None:
    """Write the files of a finished run that a leaderboard reads."""
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"recipe": "research"}))
    score = None if reward is None else 10 + reward
    summary = {
        "task": task, "agent": agent, "model": "", "metric": "points", "direction": "higher", "baseline": 10.0, "reward": reward,
        "best_submission": score, "outcome": "failed" if reward is None else "scored", "silent": False, "steps": 3,
        "seconds": 2.0, "cost": 0.5, "calls": 1, "prompt_tokens": 7, "completion_tokens": 3, "scores": {}, **values,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))


def write_runs(root: Path, task: str, agent: str, rewards: Sequence[float | None], **values: Any) -> None:
    for number, reward in enumerate(rewards):
        write_run(root / f"{task}-{agent}-{number}", task, agent, reward, **values)


def test_agents_are_ordered_by_their_tasks_and_mean_rewards(tmp_path: Path) -> None:
    write_runs(tmp_path, "game", "good", [1.0, 1.2, 0.8])
    write_runs(tmp_path / "bench", "maze", "good", [0.5, 0.3])
    write_runs(tmp_path, "game", "poor", [0.1, -0.1])
    write_runs(tmp_path, "maze", "poor", [0.0, None])
    write_runs(tmp_path, "game", "narrow", [3.0])
    board = read_leaderboard(tmp_path)
    assert board.tasks == ("game", "maze")
    good, poor, narrow = board.rows
    assert [row.agent for row in board.rows] == ["good", "poor", "narrow"]
    assert (good.mean, good.runs, good.costs["cost"]) == (pytest.approx(0.7), 5, 2.5)
    assert good.low is not None
    assert good.high is not None
    assert good.low < 0.7 < good.high
    assert (poor.mean, poor.low) == (0.0, None)
    assert poor.outcomes == {"scored": 3, "failed": 1}
    assert narrow.cells["game"].best == 13.0


def test_runs_to_look_at_are_counted(tmp_path: Path) -> None:
    write_runs(tmp_path, "game", "model", [0.0, 0.0], silent=True, model="openai:tiny")
    write_runs(tmp_path, "maze", "model", [0.0], scores={"accepted": 0.0}, format_errors=2, model="openai:tiny")
    (row,) = read_leaderboard(tmp_path).rows
    assert row.agent == "model (openai:tiny)"
    assert row.findings == {"silent": 2, "format errors": 1, "not accepted": 1}


def test_versions_of_a_task_are_apart(tmp_path: Path) -> None:
    write_runs(tmp_path, "game", "old", [1.0], baseline=4.0)
    write_runs(tmp_path, "game", "new", [1.0])
    (tmp_path / "running").mkdir()
    (tmp_path / "running" / "settings.json").write_text('{"recipe": "research"}')
    board = read_leaderboard(tmp_path)
    assert board.tasks == ("game (baseline 10)", "game (baseline 4)")
    assert board.unfinished == 1


def test_page_shows_every_cell(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", "game", "good", [1.0, 1.2])
    write_runs(tmp_path / "runs", "maze", "<b>poor</b>", [None])
    page = write_leaderboard(tmp_path / "runs", tmp_path / "board.html").read_text()
    assert "2 agents on 2 tasks" in page
    assert "&lt;b&gt;poor&lt;/b&gt;" in page
    assert "none with a reward" in page
    with pytest.raises(RunError, match="none"):
        write_leaderboard(tmp_path / "board.html", tmp_path / "other.html")
