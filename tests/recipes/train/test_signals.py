"""A run whose returns were all equal says so, and no more: in its summary, table and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from palaestra import train
from palaestra.cli.terminal import outcome_table
from palaestra.recipes.train.recipe import describe_equal_returns
from palaestra.report import write_report


def row(low: float, high: float, cut: int, count: int, prefix: str = "") -> dict[str, float]:
    name = "test_count" if prefix else "episodes"
    return {f"{prefix}reward_min": low, f"{prefix}reward_max": high, f"{prefix}cut_episodes": cut, name: count}


@pytest.mark.parametrize(
    ("table", "description"),
    [
        ({0: row(-200, -200, 20, 20, "test_"), 1: row(-200, -200, 9, 9)}, "every episode had the return -200 and reached a limit"),
        ({1: row(0, 0, 0, 9), 2: row(0, 0, 0, 9)}, "every episode had the return 0"),
        ({1: row(1, 1, 4, 4)}, "every episode had the return 1 and reached a limit"),
        ({1: row(-200, -200, 9, 9), 2: row(-200, -163, 8, 9)}, ""),
        ({0: row(-200, -200, 20, 20, "test_"), 1: row(-200, -200, 9, 9) | row(-180, -120, 0, 20, "test_")}, ""),
        ({1: row(0, 0, 0, 9), 2: row(1, 1, 0, 9)}, ""),
        ({1: {"episodes": 0.0}}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_equal_returns_are_told_from_returns_that_differ(table: dict[int, Any], description: str) -> None:
    assert describe_equal_returns(table) == description


def test_mountain_car_reports_that_all_returns_were_equal(tmp_path: Path) -> None:
    result = train(
        env="MountainCar-v0",
        iterations=2,
        num_envs=2,
        n_steps=200,
        evaluation=2,
        normalize_observations=False,
        out=tmp_path / "run",
    )
    description = "every episode had the return -200 and reached a limit"
    assert result.summary["equal_returns"] == description
    console = Console(record=True, width=200)
    console.print(outcome_table(result.summary))
    assert console.export_text().strip() == f"{result.summary['algorithm']} in MountainCar-v0: {description}"
    page = write_report(result.folder).read_text()
    assert "Every episode had the return -200 and reached a limit." in page
    assert "Held-out reward before" not in page


def test_different_returns_are_shown_as_a_table(tmp_path: Path) -> None:
    result = train(env="CartPole-v1", iterations=1, num_envs=4, n_steps=64, evaluation=2, out=tmp_path / "run")
    assert result.summary["equal_returns"] == ""
    console = Console(record=True, width=200)
    console.print(outcome_table(result.summary))
    assert "held out, after: reward" in console.export_text()
