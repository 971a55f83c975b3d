"""The page of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from palaestra.core.statistics import Gain
from palaestra.recipes.teach.lessons import add_up
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import COSTS, StudyArm, StudyResult
from palaestra.report.charts import round_colour
from palaestra.report.diagrams import difference_scale, format_tick, seed_points
from palaestra.report.parts import setting_rows
from palaestra.report.svg import mean_bar, scale_axis, ticks
from palaestra.runs.ledger import describe_cost
from palaestra.runs.provenance import read_provenance


def study_page(result: StudyResult) -> dict[str, Any]:
    """Show the runs of a study so far."""
    arms = [_make_arm(result, row) for row in result.rows]
    scale = difference_scale([pair.difference for pair in result.pairs])
    pairs: list[dict[str, Any]] = [{"pair": pair, "picture": mean_bar(pair.difference, scale)} for pair in result.pairs]
    runs = [_make_run(result, row, seed) for row in result.rows for seed in result.seeds]
    first = result.rows[0].name
    costs = {name: sum(row.cost[name] for row in result.rows) for name in COSTS}
    unpriced = sorted({model for row in result.rows for model in row.unpriced})
    return {
        "ended": result.ended,
        "runs_ended": sum(run["summary"] is not None for run in runs),
        "task": result.settings.get("task", ""),
        "student": result.settings.get("student", ""),
        "seeds": result.seeds,
        "several": result.several,
        "first": arms[0],
        "best": _find_best(arms),
        "arms": arms,
        "figure": seed_points(result.rows, result.seeds, lambda row, seed: _address(result, row, seed)),
        "seed_colours": [(seed, round_colour(place)) for place, seed in enumerate(result.seeds, 1)],
        "axis": scale_axis(scale, ticks(scale.low, scale.high, 4), format_tick, "scale in points"),
        "against_first": [row for row in pairs if row["pair"].first == first],
        "other_pairs": [row for row in pairs if row["pair"].first != first],
        "runs": runs,
        "failures": dict(sorted(sum((Counter(row.failures) for row in result.rows), Counter[str]()).items())),
        "notes": result.notes,
        "without_gain": [run for run in runs if run["summary"] is not None and run["gain"] is None],
        "lessons": add_up([row.lessons for row in result.rows]),
        "costs": costs,
        "money": describe_cost({**costs, "unpriced": unpriced}),
        "examples": sum(row.examples for row in result.rows),
        "settings": setting_rows(result.settings, TeachSettings),
        "provenance": read_provenance(result.folder),
    }


def _make_arm(result: StudyResult, row: StudyArm) -> dict[str, Any]:
    """Make the row of an arm: means over its seeds, the number of ended runs, and the pair with the first arm."""
    names = result.rows[0].name, row.name
    return {
        "row": row,
        "before": row.mean("before"),
        "after": row.mean("after"),
        "ended": sum(run is not None for run in row.runs.values()),
        "planned": len(row.runs),
        "money": describe_cost({**row.cost, "unpriced": row.unpriced}),
        "pair": next((pair for pair in result.pairs if (pair.first, pair.second) == names), None),
    }


def _find_best(arms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Find the arm with the largest mean gain. While runs are missing, only the arms with the most runs count."""
    most = max(arm["row"].gain.count for arm in arms)
    complete = [arm for arm in arms if arm["row"].gain.count == most]
    return max(complete, key=lambda arm: arm["row"].gain.value if most else 0.0)


def _make_run(result: StudyResult, row: StudyArm, seed: int) -> dict[str, Any]:
    summary, gain = row.runs[seed], None
    if summary is not None and summary["gain"] is not None:
        gain = Gain(summary["gain"], summary["gain_low"], summary["gain_high"], summary["problems"])
    address = _address(result, row, seed)
    return {"arm": row.name, "seed": seed, "address": address, "summary": summary, "gain": gain}


def _address(result: StudyResult, row: StudyArm, seed: int) -> str:
    """Return the path of a run's report, relative to the study's page; empty if the run has not begun."""
    folder = result.run_folder(row, seed)
    return f"{quote(folder.name)}/report.html" if (folder / "settings.json").exists() else ""
