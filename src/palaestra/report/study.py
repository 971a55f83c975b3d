"""What the page of a study shows, read from the folders of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from palaestra.core.statistics import Gain, Mean, mean_interval
from palaestra.recipes.teach.lesson_order import Delivery, add_up
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import COSTS, ArmPair, StudyArm, StudyResult
from palaestra.report.appendix import ProvenancePart, SettingRow, read_provenance_part, setting_rows
from palaestra.report.diagrams import difference_axis, difference_bar, difference_scale, seed_points, seed_series
from palaestra.runs.ledger import describe_cost


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm with the means over its seeds, each with its t interval, and how many of its runs have ended."""

    row: StudyArm
    before: Mean
    after: Mean
    ended: int
    planned: int
    money: str
    pair: ArmPair | None
    """Against the first arm."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two arms, with the picture of their difference."""

    pair: ArmPair
    picture: Markup


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run: what its summary says, `None` as long as it has not ended; `address` is that of its own report."""

    arm: str
    seed: int
    started: bool
    address: str
    summary: Mapping[str, Any] | None
    gain: Gain | None
    failures: int


@dataclass(frozen=True, slots=True)
class StudyPage:
    """Everything on the page of a study."""

    ended: bool
    runs_ended: int
    runs_planned: int
    task: str
    student: str
    seeds: tuple[int, ...]
    several: tuple[str, ...]
    first: ArmRow
    best: ArmRow
    arms: tuple[ArmRow, ...]
    figure: Markup | None
    seed_series: tuple[tuple[int, str], ...]
    axis: Markup | None
    against_first: tuple[PairRow, ...]
    other_pairs: tuple[PairRow, ...]
    runs: tuple[RunRow, ...]
    failures: dict[str, int]
    notes: tuple[str, ...]
    without_gain: tuple[RunRow, ...]
    lessons: Delivery
    costs: Mapping[str, float]
    money: str
    examples: int
    settings: tuple[SettingRow, ...]
    provenance: ProvenancePart | None


def study_page(result: StudyResult) -> StudyPage:
    """Put a study on a page, as far as it has come."""
    arms = tuple(_arm(result, row) for row in result.rows)
    scale = difference_scale([pair.difference for pair in result.pairs]) if result.pairs else None
    pairs = [PairRow(pair, difference_bar(pair.difference, scale)) for pair in result.pairs] if scale else []
    runs = tuple(_run(result, row, seed) for row in result.rows for seed in result.seeds)
    failures: Counter[str] = Counter()
    for row in result.rows:
        failures.update(row.failures)
    first = result.rows[0].name
    return StudyPage(
        ended=result.ended,
        runs_ended=sum(run.summary is not None for run in runs),
        runs_planned=len(runs),
        task=str(result.settings.get("task", "")),
        student=str(result.settings.get("student", "")),
        seeds=result.seeds,
        several=result.several,
        first=arms[0],
        best=_best(arms),
        arms=arms,
        figure=seed_points(result.rows, result.seeds, lambda row, seed: _address(result, row, seed)),
        seed_series=tuple((seed, seed_series(place)) for place, seed in enumerate(result.seeds)),
        axis=difference_axis(scale) if scale else None,
        against_first=tuple(row for row in pairs if row.pair.first == first),
        other_pairs=tuple(row for row in pairs if row.pair.first != first),
        runs=runs,
        failures=dict(sorted(failures.items())),
        notes=tuple(result.notes),
        without_gain=tuple(run for run in runs if run.summary is not None and run.gain is None),
        lessons=add_up([row.lessons for row in result.rows]),
        costs={name: sum(row.cost[name] for row in result.rows) for name in COSTS},
        money=describe_cost(
            {
                **{name: sum(row.cost[name] for row in result.rows) for name in ("cost", "unmeasured_calls")},
                "unpriced": sorted({model for row in result.rows for model in row.unpriced}),
            }
        ),
        examples=sum(row.examples for row in result.rows),
        settings=setting_rows(result.settings, TeachSettings),
        provenance=read_provenance_part(result.folder),
    )


def _arm(result: StudyResult, row: StudyArm) -> ArmRow:
    ended = [run for run in row.runs.values() if run is not None]

    def mean(name: str) -> Mean:
        return mean_interval([float(run[name]) for run in ended if run[name] is not None])

    names = result.rows[0].name, row.name
    pair = next((pair for pair in result.pairs if (pair.first, pair.second) == names), None)
    return ArmRow(
        row,
        mean("before"),
        mean("after"),
        len(ended),
        len(row.runs),
        describe_cost({**row.cost, "unpriced": row.unpriced}),
        pair,
    )


def _best(arms: Sequence[ArmRow]) -> ArmRow:
    """The arm with the largest mean gain, of equals the first; as long as runs are missing, among those with the most."""
    most = max(arm.row.gain.count for arm in arms)
    return max((arm for arm in arms if arm.row.gain.count == most), key=lambda arm: arm.row.gain.value if most else 0.0)


def _run(result: StudyResult, row: StudyArm, seed: int) -> RunRow:
    summary = row.runs[seed]
    gain = None
    if summary is not None and summary["gain"] is not None:
        gain = Gain(summary["gain"], summary["gain_low"], summary["gain_high"], summary["problems"])
    failures = sum(summary["failures"].values()) if summary is not None else 0
    started = (result.run_folder(row, seed) / "settings.json").exists()
    return RunRow(row.name, seed, started, _address(result, row, seed), summary, gain, failures)


def _address(result: StudyResult, row: StudyArm, seed: int) -> str:
    """Beside the study's own page, so that the folder can be moved; empty where there is no run yet."""
    folder = result.run_folder(row, seed)
    return f"{quote(folder.name)}/report.html" if (folder / "settings.json").exists() else ""
