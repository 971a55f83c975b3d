"""The curves of several runs in common charts, and the paired tests between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.records import Split
from palaestra.recipes.evaluate.compare import CompareResult, compare
from palaestra.report.charts import (
    MetricPoint,
    Panel,
    Series,
    accuracy_point,
    draw_sample,
    line_chart,
    line_style,
    metric_points,
)
from palaestra.report.evaluate import compare_page
from palaestra.report.research import list_validations
from palaestra.report.teach import accuracy_by_round
from palaestra.research.workspace.step_record import Step
from palaestra.runs.run import Run

TRAIN_CURVES = {
    "test_accuracy": "test accuracy (%)", "test_reward": "held-out reward", "reward": "training reward",
    "recent_return": "mean return of the last 100 episodes", "reference_kl": "KL to the reference (nats per response)", "entropy": "entropy (nats)",
    "clip_fraction": "clip fraction", "approx_kl": "KL of the update (nats)", "length": "length of an episode", "tokens_per_second": "tokens per second",
    "steps_per_second": "steps per second",
}  # fmt: skip
"""The metrics of a train run that are compared, with the names of their axes."""
BANDS = 3
"""Maximum runs whose intervals are drawn; more bands would hide each other. The tables have all."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of one run.

    Arguments:
        y_label: what it shows; curves of several runs with the same name share a chart.
    """

    y_label: str
    x_label: str
    points: Sequence[MetricPoint]


def read_curves(folder: Path) -> list[Curve]:
    """Read the curves of a run: metrics by iteration, accuracy by examples, or scores by message.

    Raises:
        RunError: the folder contains no run or is damaged.
    """
    with Run.open(folder, read_only=True) as run:
        if run.recipe == "train":
            table = run.store.metrics()
            # A control policy's episodes span iterations, so its recent return says more; that of a language model is noise.
            names = [name for name in TRAIN_CURVES if name != "recent_return" or run.settings.get("policy") != "lm"]
            curves = [
                Curve(TRAIN_CURVES[name], "iteration", metric_points(table, name, count="test_count" if name.startswith("test") else ""))
                for name in names
            ]  # fmt: skip
        elif run.recipe == "teach":
            phases = {phase: run.store.outcomes(phase) for phase in run.store.phases()}
            curves = [
                Curve(f"{split} accuracy (%)", "training examples so far", [accuracy_point(m) for m in accuracy_by_round(phases, run.store.allocation(), split)])
                for split in (Split.VALIDATION, Split.TEST)
            ]  # fmt: skip
        elif run.recipe == "research":
            curves = [
                Curve("validation score", "message", list_validations(run.store.steps(Step, number)))
                for number in run.store.episodes()[-1:]
            ]
        else:
            curves = []
        return [curve for curve in curves if curve.points]


def compare_curves(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Draw the curves of runs, by name, in common charts."""
    charts: dict[str, dict[int, Curve]] = {}
    for place, folder in enumerate(folders.values()):
        for curve in read_curves(folder) if (folder / "settings.json").exists() else ():
            charts.setdefault(curve.y_label, {})[place] = curve
    names, parts = list(folders), []
    for y_label, curves in charts.items():
        style = "band" if len(curves) <= BANDS else "line"
        series = []
        for place, curve in curves.items():
            colour, dashes = line_style(place)
            series.append(Series(names[place], curve.points, colour, style, dashes=dashes))  # type: ignore[arg-type]
        x_label = next(iter(curves.values())).x_label
        chart = line_chart([Panel(y_label, series)], x_label, y_label)
        parts.append({"title": y_label, "chart": chart})
    return parts


def draw_legend(names: Sequence[str]) -> dict[str, Any]:
    """A sample of the line of each run."""
    return {name: draw_sample(name, *line_style(place)) for place, name in enumerate(names)}


def compare_to_first(folders: Mapping[str, Path]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Compare each run with the first, problem by problem.

    Returns:
        a row for each run after the first, with its paired test or the reason why there is none; and for two runs with
        such a test, the whole comparison.
    """
    (_, first), *others = folders.items()
    rows: list[dict[str, Any]] = []
    result: CompareResult | None = None
    for name, folder in others:
        try:
            result = compare(first, folder)
            rows.append({"name": name, "comparison": result.comparison, "notes": result.notes, "reason": ""})
        except RunError as error:
            rows.append({"name": name, "comparison": None, "notes": (), "reason": str(error)})
    whole = compare_page(result) if result is not None and len(others) == 1 else None
    return rows, whole
