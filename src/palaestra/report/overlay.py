"""The curves of several runs in common charts, along a chosen axis, and the paired tests between them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Literal

from markupsafe import Markup

from palaestra.core.errors import RunError
from palaestra.core.records import Json, Split
from palaestra.core.statistics import mean_interval
from palaestra.recipes.evaluate.compare import CompareResult, compare
from palaestra.recipes.progress import METRICS
from palaestra.report.charts import (
    MetricPoint,
    Panel,
    Series,
    accuracy_point,
    draw_sample,
    line_chart,
    line_style,
    metric_points,
    smooth,
)
from palaestra.report.evaluate import compare_page
from palaestra.report.research import list_validations
from palaestra.report.svg import Plot
from palaestra.report.teach import accuracy_by_round
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

_TITLES: Mapping[str, str] = METRICS["axes"]
"""The main metrics of a train run with the names of their axes."""
_SHARES = {"clip fraction", "frac reward zero std", "truncated"}
"""Metrics from 0 to 1."""
_AMOUNTS = re.compile(r"per second|\(GB\)|length|norm|turns|staleness|episodes|failures|actions|seconds")
"""Metrics that are at least 0."""
_ENDS = re.compile("(.*)_(?:low|high|count)")
_MAX_BANDS = 3
"""Maximum runs whose intervals are drawn; more bands would hide each other. The tables have all."""
_SPENT = """
SELECT CAST(phase AS INTEGER), SUM(seconds), SUM(money) FROM ledger WHERE phase GLOB '[0-9]*' GROUP BY 1 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class RunCurves:
    """The metrics of a run by its steps: iterations, rounds or messages.

    Arguments:
        axes: the position of each step, by the name of the axis; the first one is the number of the step.
        metrics: the points of each metric by its title; several runs' metrics with one title share a chart.
    """

    axes: Mapping[str, Mapping[int, float]]
    metrics: Mapping[str, Sequence[MetricPoint]]

    def place(self, title: str, axis: str) -> list[MetricPoint]:
        """The points of a metric along an axis; none if the run lacks either."""
        places = self.axes.get(axis, {})
        return [replace(r, x=places[r.iteration]) for r in self.metrics.get(title, ()) if r.iteration in places]


@dataclass(frozen=True, slots=True)
class ChartChoice:
    """How curves are drawn.

    Arguments:
        axis: the x axis, one of `RunCurves.axes`.
        smoothing: the weight of the past in an exponential mean, from 0 to below 1.
        log: whether the y axis is logarithmic; values of 0 and below are left out.
        start, end: the part of the x axis that is shown; `None`: all.
    """

    axis: str = "iteration"
    smoothing: float = 0.0
    log: bool = False
    start: float | None = None
    end: float | None = None


def read_curves(folder: Path) -> RunCurves:
    """Read the curves of a run.

    Raises:
        RunError: the folder contains no run or is damaged.
    """
    with Run.open(folder, read_only=True) as run:
        read = {"train": _read_training, "teach": _read_teaching, "research": _read_validations}.get(run.recipe)
        return RunCurves({}, {}) if read is None else read(run)


def _read_training(run: Run) -> RunCurves:
    table, language = run.store.metrics(), run.settings.get("policy") == "lm"
    own = {name for row in table.values() for name in row} - {"total_actions"}
    # A control policy's episodes span iterations, so its recent return says more; that of a language model is noise.
    hidden = {"recent_return"} if language else set()
    names = own - hidden - {name for name in own if (end := _ENDS.fullmatch(name)) and end[1] in own}
    order = [*_TITLES, *sorted(names - set(_TITLES))]
    counts = {name: "test_count" if name.startswith("test") else "" for name in order if name in names}
    metrics = {
        _TITLES.get(name, name.replace("_", " ")): metric_points(table, name, count=count)
        for name, count in counts.items()
    }
    actions = {k: row["total_actions"] for k, row in table.items() if "total_actions" in row}
    axes = {"iteration": {k: float(k) for k in table}, "tokens" if language else "steps": {0: 0.0, **actions}}
    return RunCurves({**axes, **_read_spent(run)}, metrics)


def _read_teaching(run: Run) -> RunCurves:
    phases = {phase: run.store.outcomes(phase) for phase in run.store.phases()}
    moments = {
        split: accuracy_by_round(phases, run.store.allocation(), split) for split in (Split.VALIDATION, Split.TEST)
    }
    metrics: dict[str, list[MetricPoint]] = {}
    for split, listed in moments.items():
        for moment in listed:
            for part in (moment.report, *moment.report.slices):
                skill = "" if part is moment.report else f", {part.name or 'no skill'}"
                point = accuracy_point(replace(moment, report=part))
                metrics.setdefault(f"{split} accuracy{skill} (%)", []).append(point)
    examples = {moment.round: float(moment.examples) for listed in moments.values() for moment in listed}
    rounds = {round_: float(round_) for round_ in examples}
    return RunCurves({"round": rounds, "training examples so far": examples, **_read_spent(run)}, metrics)


def _read_validations(run: Run) -> RunCurves:
    points = list_validations(run.store.steps(Step, max(run.store.episodes(), default=0)))
    return RunCurves({"message": {r.iteration: r.x for r in points}}, {"validation score": points})


def _read_spent(run: Run) -> dict[str, dict[int, float]]:
    """The seconds and dollars of a run until the end of each step. Without any cost there are no dollars."""
    rows = run.store.select(_SPENT)
    steps = [step for step, *_ in rows]
    sums = {name: list(accumulate(row[k] for row in rows)) for k, name in ((1, "seconds"), (2, "dollars"))}
    return {name: dict(zip(steps, values, strict=True)) for name, values in sums.items() if values and values[-1] > 0}


def draw_metric(title: str, groups: Mapping[str, Sequence[RunCurves]], choice: ChartChoice) -> Plot | None:
    """Draw a metric of several groups of runs: the curve of a single run, or the mean of several with its 95 % interval.

    Returns:
        the chart; `None` if no run has the metric along the axis.
    """
    start, end = (-math.inf if choice.start is None else choice.start), (math.inf if choice.end is None else choice.end)
    series, several = [], len(groups) > _MAX_BANDS
    for place, (name, runs) in enumerate(groups.items()):
        points = _merge_curves([run.place(title, choice.axis) for run in runs], title)
        shown = [r for r in points if start <= r.x <= end and (r.value > 0 or not choice.log)]
        color, dashes = line_style(place)
        style: Literal["band", "line"] = "line" if several and len(runs) == 1 else "band"
        if choice.smoothing and len(shown) > 2:
            series.append(Series("", shown, f"raw {color}", "line"))
            shown = smooth(shown, choice.smoothing)
        series.append(Series(name, shown, color, style, dashes=dashes))
    if not any(line.points for line in series):
        return None
    legend = tuple((sample, name) for name, sample in draw_legend(list(groups)).items()) if len(groups) > 1 else ()
    places, x_range = [r.x for line in series for r in line.points], None
    if math.isfinite(start) or math.isfinite(end):
        low, high = max(start, min(places)), min(end, max(places))
        x_range = low, high if high > low else low + 1
    panel = Panel(title, series, log=choice.log)
    return line_chart([panel], choice.axis, title, x_range=x_range, legend=legend)


def _merge_curves(curves: Sequence[Sequence[MetricPoint]], title: str) -> list[MetricPoint]:
    """The mean of several runs at each step, with its interval over the runs. A single run keeps its own intervals.

    No interval leaves the range of the metric.
    """
    steps: dict[int, list[MetricPoint]] = {}
    for r in (r for curve in curves for r in curve):
        steps.setdefault(r.iteration, []).append(r)
    low = 0.0 if title.endswith("(%)") or title in _SHARES or _AMOUNTS.search(title) else -math.inf
    high = 100.0 if title.endswith("(%)") else 1.0 if title in _SHARES else math.inf
    merged = []
    for step, points in sorted(steps.items()):
        point = points[0]
        if len(curves) > 1:
            mean = mean_interval([r.value for r in points], low, high)
            start, end = (mean.low, mean.high) if mean.count > 1 else (None, None)
            point = MetricPoint(step, fmean(r.x for r in points), mean.value, start, end, mean.count)
        elif point.low is not None and point.high is not None:
            point = replace(point, low=max(low, point.low), high=min(high, point.high))
        merged.append(point)
    return sorted(merged, key=lambda r: r.x)


def compare_curves(folders: Mapping[str, Path]) -> dict[str, Plot]:
    """Draw the main curves of runs, by name, in common charts. Returns the charts by what they show."""
    runs = {name: [read_curves(folder)] for name, folder in folders.items() if (folder / "settings.json").exists()}
    axes = list(dict.fromkeys(axis for [run] in runs.values() for axis in run.axes))
    titles = dict.fromkeys(title for [run] in runs.values() for title in run.metrics if is_main(title))
    charts = {title: draw_metric(title, runs, ChartChoice(axis)) for title in titles for axis in axes[:1]}
    return {title: chart for title, chart in charts.items() if chart is not None}


def is_main(title: str) -> bool:
    """Whether a metric is shown without being chosen."""
    return title in _TITLES.values() or title.endswith(" accuracy (%)") or title == "validation score"


def draw_legend(names: Sequence[str]) -> dict[str, Markup]:
    """A sample of the line of each run."""
    return {name: draw_sample(name, *line_style(place)) for place, name in enumerate(names)}


def compare_to_first(folders: Mapping[str, Path]) -> tuple[list[Json], Json | None]:
    """Compare each run with the first, problem by problem.

    Returns:
        a row for each run after the first, with its paired test or the reason why there is none; and for two runs with
        such a test, the whole comparison.
    """
    (_, first), *others = folders.items()
    rows: list[Json] = []
    result: CompareResult | None = None
    for name, folder in others:
        try:
            result = compare(first, folder)
            rows.append({"name": name, "comparison": result.comparison, "notes": result.notes, "reason": ""})
        except RunError as error:
            rows.append({"name": name, "comparison": None, "notes": (), "reason": str(error)})
    whole = compare_page(result) if result is not None and len(others) == 1 else None
    return rows, whole
