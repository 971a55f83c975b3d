"""A run with constant returns reports that nothing was learned: in its summary, table and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palaestra import train
from palaestra.cli.tables import outcome_table
from palaestra.recipes.train.recipe import describe_no_signal
from palaestra.report import write_report


def row(low: float, high: float, cut: int, count: int, prefix: str = "") -> dict[str, float]:
    name = "test_count" if prefix else "episodes"
    return {f"{prefix}reward_min": low, f"{prefix}reward_max": high, f"{prefix}cut_episodes": cut, name: count}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({0: row(-200, -200, 20, 20, "test_"), 1: row(-200, -200, 9, 9)}, "no episode reached the goal; every return was -200"),
        ({1: row(0, 0, 0, 9), 2: row(0, 0, 0, 9)}, "every return was 0"),
        ({1: row(1, 1, 4, 4)}, "every episode was truncated; every return was 1"),
        ({1: row(-200, -200, 9, 9), 2: row(-200, -163, 8, 9)}, ""),
        ({0: row(-200, -200, 20, 20, "test_"), 1: row(-200, -200, 9, 9) | row(-180, -120, 0, 20, "test_")}, ""),
        ({1: row(0, 0, 0, 9), 2: row(1, 1, 0, 9)}, ""),
        ({1: {"episodes": 0.0}}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_equal_returns_are_told_from_returns_that_differ(table: dict[int, Any], told: str) -> None:
    assert describe_no_signal(table) == (f"nothing was learned: {told}" if told else "")


def test_mountain_car_says_that_no_episode_reached_the_goal(tmp_path: Path) -> None:
    result = train(
        env="MountainCar-v0", iterations=2, num_envs=2, n_steps=200, evaluation=2, normalize_observations=False, out=tmp_path / "run"
    )  # fmt: skip
    told = "nothing was learned: no episode reached the goal; every return was -200"
    assert result.summary["nothing_learned"] == told
    console = Console(record=True, width=200)
    console.print(outcome_table(result.summary))
    assert console.export_text().strip() == f"{result.summary['algorithm']} in MountainCar-v0: {told}"
    page = write_report(result.folder).read_text()
    assert "Nothing was learned: no episode reached the goal; every return was -200." in page
    assert "Held-out reward before" not in page


def test_a_run_that_learns_from_different_returns_says_nothing_of_it(tmp_path: Path) -> None:
    result = train(env="CartPole-v1", iterations=1, num_envs=4, n_steps=64, evaluation=2, out=tmp_path / "run")
    assert result.summary["nothing_learned"] == ""
    console = Console(record=True, width=200)
    console.print(outcome_table(result.summary))
    assert "held out, after: reward" in console.export_text()
