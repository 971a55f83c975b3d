"""Curves of runs along a chosen axis, and groups of runs as means with their intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from stored_runs import teach_run, write_train_run

from palaestra.core.statistics import mean_interval
from palaestra.report.charts import MetricPoint, Panel, Series, line_chart
from palaestra.report.overlay import ChartChoice, RunCurves, draw_metric, read_curves
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run


def curves(values: list[float], title: str = "training reward", step: float = 10.0) -> RunCurves:
    points = [MetricPoint(k, k, value) for k, value in enumerate(values, 1)]
    places = {point.iteration: point.x for point in points}
    return RunCurves({"iteration": places, "steps": {k: step * k for k in places}}, {title: points})


def read_series(plot: object) -> list[dict[str, object]]:
    series: list[dict[str, object]] = json.loads(getattr(plot, "data", ""))["series"]
    return series


def test_a_train_run_has_its_axes_and_metrics(tmp_path: Path) -> None:
    write_train_run(tmp_path / "run")
    with Run.open(tmp_path / "run") as run:
        run.store.add_metrics(
            1, {"total_actions": 50.0, "reward_low": 0.0, "reward_high": 0.2, "system/memory_gb": 1.0}
        )
        run.store.add_metrics(2, {"total_actions": 110.0})
        run.store.add_cost(LedgerEntry("2/train", seconds=3.0, money=0.5))
        run.store.add_cost(LedgerEntry("rest", seconds=99.0))
    read = read_curves(tmp_path / "run")
    assert list(read.axes) == ["iteration", "tokens", "seconds", "dollars"]
    assert read.axes["tokens"] == {0: 0.0, 1: 50.0, 2: 110.0}
    assert read.axes["seconds"] == {1: 1.0, 2: 5.0, 3: 6.0}, "the end of each iteration"
    assert read.axes["dollars"][2] == 0.5
    assert list(read.metrics)[:2] == ["training reward", "memory of the process (GB)"], "the main metrics come first"
    assert "reward low" not in read.metrics
    assert read.place("training reward", "tokens")[0] == MetricPoint(1, 50.0, 0.1, 0.0, 0.2)
    assert read.place("training reward", "examples") == []


def test_a_teach_run_has_a_curve_of_each_skill(tmp_path: Path) -> None:
    read = read_curves(teach_run(tmp_path / "run"))
    assert list(read.axes) == ["round", "training examples so far", "seconds", "dollars"]
    assert [r.value for r in read.metrics["validation accuracy (%)"]] == [40.0, 50.0, 65.0]
    assert [r.x for r in read.place("validation accuracy, addition (%)", "training examples so far")] == [0, 6, 12]


def test_a_group_is_the_mean_of_its_runs_with_an_interval() -> None:
    group = {"seeds": [curves([1.0, 2.0], step=10.0), curves([3.0, 4.0], step=20.0), curves([2.0])]}
    (series,) = read_series(draw_metric("training reward", group, ChartChoice("steps")))
    mean = mean_interval([1.0, 3.0, 2.0])
    assert series["points"][0] == pytest.approx([40 / 3, 2.0, mean.low, mean.high], rel=1e-4)  # type: ignore[index]
    assert series["points"][1][:2] == [30.0, 3.0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("title", "values", "low", "high"),
    [
        ("test accuracy (%)", [99.0, 80.0], 0, 100),
        ("clip fraction", [0.9, 0.1], 0, 1),
        ("tokens per second", [1.0, 9.0], 0, math.inf),
    ],
)
def test_no_interval_leaves_the_range_of_its_metric(title: str, values: list[float], low: float, high: float) -> None:
    group = {"two": [curves([value], title) for value in values]}
    (series,) = read_series(draw_metric(title, group, ChartChoice()))
    ((_, _, start, end),) = series["points"]  # type: ignore[misc]
    assert (start, min(end, high)) == (low, end)
    own = RunCurves({"iteration": {1: 1.0}}, {title: [MetricPoint(1, 1, values[0], -500.0, 500.0)]})
    (series,) = read_series(draw_metric(title, {"one": [own]}, ChartChoice()))
    assert series["points"][0][2:] == [low, min(500.0, high)]  # type: ignore[index]


def test_an_accuracy_axis_ends_at_one_hundred() -> None:
    points = [MetricPoint(k, k, 99.0, 90.0, 100.0) for k in (1, 2)]
    plot = line_chart([Panel("accuracy (%)", [Series("a", points)])], "iteration", "accuracy")
    assert read_series(plot)[0]["scale"][1] == 100.0  # type: ignore[index]


def test_a_part_of_the_axis_is_shown_and_smoothed() -> None:
    run = {"run": [curves([float(k % 2) for k in range(20)])]}
    plot = draw_metric("training reward", run, ChartChoice(start=5, end=12, smoothing=0.8))
    assert plot is not None
    axis = json.loads(plot.data)["x"]["scale"]
    (series,) = read_series(plot)
    assert axis[:2] == [5.0, 12.0]
    values = [value for _, value in series["points"]]  # type: ignore[attr-defined]
    assert len(values) == 8
    assert all(0 < value < 1 for value in values[1:])
    assert 'class="line raw s1"' in plot.content, "the values themselves are faint"


def test_a_logarithmic_axis_leaves_out_what_is_not_positive() -> None:
    plot = draw_metric("training reward", {"run": [curves([0.0, -1.0, 0.01, 1.0, 100.0])]}, ChartChoice(log=True))
    (series,) = read_series(plot)
    assert [value for _, value in series["points"]] == [0.01, 1.0, 100.0]  # type: ignore[attr-defined]
    assert all(f">{tick}</text>" in getattr(plot, "content", "") for tick in ("0.01", "0.1", "1", "10", "100"))
    assert draw_metric("training reward", {"run": [curves([-1.0])]}, ChartChoice(log=True)) is None
