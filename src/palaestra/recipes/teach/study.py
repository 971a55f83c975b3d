"""Many `teach` runs in one command: several seeds, several teachers, the state shown and hidden; then one table.

Every run has its own folder below the study's, and is an ordinary run. A study that was stopped goes on where it was:
finished runs are read, one that was under way is resumed.

study.json        the arms (the combinations of settings), the seeds, and what all runs have in common
ARM-seedN/        a run
summary.json      the table, once all runs have ended
report.html       the same to look at
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

from palaestra.core.errors import EngineError, LessonError, RunError, SettingsError
from palaestra.core.events import Listener, ignore
from palaestra.core.statistics import Mean, holm, mean_interval, sign_flip_test, t_test
from palaestra.recipes.provenance import hash_models
from palaestra.recipes.settings import build, to_plain
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.delivery import Delivery, add_up
from palaestra.recipes.teach.recipe import TeachSettings
from palaestra.runs.files import read_json, write_json
from palaestra.runs.guard import storage_errors
from palaestra.runs.provenance import record_provenance
from palaestra.runs.run import Run, new_folder

SEVERAL = ("teacher", "state", "writer", "learning", "start", "keep")
"""Settings that a study may have several values of."""
PLAN = "study.json"
COSTS = ("cost", "calls", "unmeasured_calls", "prompt_tokens", "completion_tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: its settings, and what came of it over the seeds.

    Arguments:
        runs: by seed what each run's summary says; `None` for a run that has not ended.
        gains: of the runs that have ended and measured one.
        gain: the mean of the runs' gains in points, with a t interval over the seeds.
        without_gain: the runs that have ended without one, counted by cause.
        ahead: how much that is above the first row's, paired by seed; none for the first row.
        failures: attempts without a score in all its runs, by cause.
        cost: dollars, calls, those without a token count, tokens in and out, and seconds of all its runs.
        tasks: the mean gain on each test task, where the runs have several.
        lessons: what was ordered, delivered, dropped and failed in all its runs.
        unpriced: the models whose calls are missing from the dollars.
    """

    name: str
    values: Mapping[str, str]
    runs: Mapping[int, dict[str, Any] | None]
    gains: Mapping[int, float]
    gain: Mean
    ahead: Mean | None
    examples: int
    failures: Mapping[str, int]
    cost: Mapping[str, float]
    lessons: Delivery
    unpriced: tuple[str, ...]
    without_gain: Mapping[str, int]
    tasks: Mapping[str, Mean] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms, over the seeds that both have a gain for.

    Arguments:
        first, second: their names.
        difference: the gain of the second less that of the first, in points, with a t interval.
        p_value: of the paired t-test; `None` with fewer than two seeds.
        adjusted: the same, adjusted for the number of pairs in the study (Holm).
        exact: of the sign-flip test, which assumes nothing of how gains are spread; cannot be below 2 / 2^seeds.
    """

    first: str
    second: str
    difference: Mean
    p_value: float | None
    adjusted: float | None
    exact: float


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A study: its folder, its table, and its arms compared in pairs.

    Arguments:
        settings: what all runs have in common.
        several: the settings that its arms differ in.
    """

    folder: Path
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    settings: Mapping[str, Any]
    several: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What a reader must know before arms are compared: runs without a gain, and unequal amounts of data."""
        notes = []
        for row in self.rows:
            for cause, count in row.without_gain.items():
                notes.append(f"{row.name}: no gain: {cause} ({count} of {len(row.runs)} runs)")
            if row.lessons.delivered < row.lessons.ordered:
                why = row.lessons.explain()
                notes.append(
                    f"{row.name}: {row.lessons.delivered} of {row.lessons.ordered} ordered examples were delivered"
                    + (f"; {why}" if why else "")
                )
        for seed in self.seeds:
            taught = {
                row.name: run["examples"]
                for row in self.rows
                if (run := row.runs[seed]) is not None and run["gain"] is not None
            }
            if len(set(taught.values())) > 1:
                amounts = ", ".join(f"{name} {count}" for name, count in taught.items())
                notes.append(f"seed {seed}: the arms were taught on unequal data: {amounts} examples")
        return notes

    @property
    def failed(self) -> int:
        """How many runs ended with an error."""
        return sum(bool(run and run.get("error")) for row in self.rows for run in row.runs.values())

    @property
    def ended(self) -> bool:
        return all(run is not None for row in self.rows for run in row.runs.values())

    def where(self, row: Row, seed: int) -> Path:
        """The folder of a run."""
        return self.folder / f"{row.name}-seed{seed}"


def study(
    settings: TeachSettings,
    grid: Mapping[str, Sequence[str]],
    seeds: int,
    *,
    out: str | Path = "",
    listener: Listener = ignore,
) -> StudyResult:
    """Run `settings` with every combination of `grid` and with `seeds` seeds from its own on, and compare.

    Raises:
        SettingsError: a value cannot be, or `grid` names a setting that a study has one value of.
        RunError: the folder holds something else.
    """
    if seeds < 1:
        raise SettingsError(f"a study needs at least 1 seed; got {seeds}")
    for name in grid:
        if name not in SEVERAL:
            raise SettingsError(f"a study has one value of '{name}'; several may be given of {', '.join(SEVERAL)}")
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    made = [build(TeachSettings, {**to_plain(settings), **cell}) for cell in cells]
    for one in made:  # Before the first of them costs anything.
        teach.check(one)
        for seed in range(settings.seed + 1, settings.seed + seeds) if one.skills_file else ():
            teach.check(replace(one, seed=seed))  # Other seeds may draw other problems.
    folder = Path(out) if out else new_folder("study")
    names = [_name(cell) or one.teacher for cell, one in zip(cells, made, strict=True)]
    every = range(settings.seed, settings.seed + seeds)
    common = {name: value for name, value in to_plain(settings).items() if name != "seed" and name not in grid}
    arms = [{"name": name, "values": cell} for name, cell in zip(names, cells, strict=True)]
    if (folder / "settings.json").exists():
        raise RunError(f"{folder} holds a run and no study; choose another --out")
    for name, one in zip(names, made, strict=True):
        for seed in every:
            _check(replace(one, seed=seed), folder / f"{name}-seed{seed}")
    with storage_errors(folder, "making the study's folder"):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, {"recipe": "study", "seeds": list(every), "arms": arms, "settings": common})
    record_provenance(folder, hash_models(settings.student), ended=(folder / "summary.json").exists())
    for seed in every:
        for name, one in zip(names, made, strict=True):
            # A run that ends with an error has written why to its summary; the others go on.
            with suppress(LessonError, EngineError):
                _run(replace(one, seed=seed), folder / f"{name}-seed{seed}", listener)
    result = read_study(folder)
    write_json(
        folder / "summary.json",
        {
            "recipe": "study",
            "seeds": seeds,
            "rows": [_plain(row) for row in result.rows],
            "pairs": [_plain_pair(pair) for pair in result.pairs],
            "notes": result.notes,
        },
    )
    return result


def read_study(folder: Path) -> StudyResult:
    """What there is of a study so far, whether all of its runs have ended or not.

    Raises:
        RunError: the folder holds no study, or is damaged.
    """
    plan = read_json(folder / PLAN)
    if not isinstance(plan, dict) or not {"seeds", "arms", "settings"} <= set(plan):
        raise RunError(f"the study is damaged: {folder / PLAN} lacks seeds, arms or settings")
    rows: list[Row] = []
    for arm in plan["arms"]:
        runs = {seed: _summary(folder / f"{arm['name']}-seed{seed}") for seed in plan["seeds"]}
        rows.append(_row(arm["name"], arm["values"], runs, rows[0] if rows else None))
    several = tuple(plan["arms"][0]["values"])
    return StudyResult(folder, tuple(plan["seeds"]), tuple(rows), tuple(_pairs(rows)), plan["settings"], several)


def _check(settings: TeachSettings, folder: Path) -> None:
    """Raise if the folder holds a run with other settings, its limits apart: those may be raised to go on."""
    if (folder / "settings.json").exists():
        with Run.open(folder, read_only=True) as run:
            if {**run.settings, **_limits(settings)} != to_plain(settings):
                raise RunError(f"{folder} holds a run with other settings; choose another --out")


def _run(settings: TeachSettings, folder: Path, listener: Listener) -> None:
    if not (folder / "settings.json").exists():
        teach.teach(settings, out=folder, listener=listener)
        return
    with Run.open(folder) as run:
        if run.summary is None or run.summary.get("error"):
            teach.resume(run, listener=listener, **_limits(settings))


def _limits(settings: TeachSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("max_cost", "max_calls", "max_tokens")}


def _summary(folder: Path) -> dict[str, Any] | None:
    if not (folder / "summary.json").exists():
        return None
    summary = read_json(folder / "summary.json")
    if not isinstance(summary, dict) or summary.get("recipe") != teach.RECIPE:
        raise RunError(f"the run folder is damaged: {folder / 'summary.json'} is no summary of a teach run")
    return summary


def _row(name: str, values: Mapping[str, str], runs: Mapping[int, dict[str, Any] | None], first: Row | None) -> Row:
    ended = {seed: summary for seed, summary in runs.items() if summary is not None}
    gains = {seed: float(summary["gain"]) for seed, summary in ended.items() if summary["gain"] is not None}
    ahead = None if first is None else mean_interval(_differences(first.gains, gains))
    failures: Counter[str] = Counter()
    for summary in ended.values():
        failures.update(summary["failures"])
    examples = sum(summary["examples"] for summary in ended.values())
    cost = {name: float(sum(summary.get(name, 0) for summary in ended.values())) for name in COSTS}
    gain = mean_interval(list(gains.values()))
    by_task: dict[str, list[float]] = {}
    for summary in ended.values():
        for task, figures in summary.get("test_tasks", {}).items():
            by_task.setdefault(task, []).extend([] if figures["gain"] is None else [float(figures["gain"])])
    tasks = {task: mean_interval(several) for task, several in by_task.items()}
    lessons = add_up([_lessons(summary) for summary in ended.values()])
    unpriced = tuple(sorted({model for summary in ended.values() for model in summary.get("unpriced", ())}))
    none = Counter(
        summary.get("failed") or "no problem was scored both before and after"
        for summary in ended.values()
        if summary["gain"] is None
    )
    counts = dict(sorted(failures.items()))
    return Row(name, values, runs, gains, gain, ahead, examples, counts, cost, lessons, unpriced, dict(none), tasks)


def _lessons(summary: Mapping[str, Any]) -> Delivery:
    """What a summary says of its lessons; those of older versions only know what was taught."""
    taught = summary["examples"]
    return Delivery(
        summary.get("ordered", taught), summary.get("delivered", taught), summary.get("dropped", {}),
        summary.get("withheld", 0), summary.get("writer_failures", {}), {}, summary.get("ordered_again", 0),
    )  # fmt: skip


def _differences(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Seed by seed, free of the dust that binary fractions leave behind a gain's two decimals."""
    return [round(gain - first[seed], 6) for seed, gain in second.items() if seed in first]


def _pairs(rows: Sequence[Row]) -> list[Pair]:
    """Every arm against each one before it, as far as they share a seed."""
    every = [(one.name, other.name, _differences(one.gains, other.gains)) for one, other in combinations(rows, 2)]
    every = [(first, second, paired) for first, second, paired in every if paired]
    tested = [t_test(paired) for _, _, paired in every]
    adjusted = iter(holm([p_value for p_value in tested if p_value is not None]))
    found = []
    for (first, second, paired), p_value in zip(every, tested, strict=True):
        exact = sign_flip_test([Fraction(value).limit_denominator(100) for value in paired])
        holms = None if p_value is None else next(adjusted)
        found.append(Pair(first, second, mean_interval(paired), p_value, holms, exact))
    return found


def _name(cell: Mapping[str, str]) -> str:
    plain = (f"{name}_{value}" if name in ("state", "keep") else value for name, value in cell.items())
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else "_" for sign in value) for value in plain)


def _plain(row: Row) -> dict[str, Any]:
    return {
        "name": row.name, "values": dict(row.values), "gains": {str(seed): gain for seed, gain in row.gains.items()},
        "gain": _plain_mean(row.gain), "ahead": _plain_mean(row.ahead), "examples": row.examples,
        **({"tasks": {task: _plain_mean(gain) for task, gain in row.tasks.items()}} if row.tasks else {}),
        "failures": dict(row.failures), **row.cost, "ordered": row.lessons.ordered, "delivered": row.lessons.delivered,
        "dropped": dict(row.lessons.dropped), "withheld": row.lessons.withheld,
        "writer_failures": dict(row.lessons.failures), "ordered_again": row.lessons.asked_again,
        "unpriced": list(row.unpriced), "without_gain": dict(row.without_gain),
    }  # fmt: skip


def _plain_pair(pair: Pair) -> dict[str, Any]:
    return {
        "first": pair.first, "second": pair.second, "difference": _plain_mean(pair.difference), "p_value": pair.p_value,
        "adjusted": pair.adjusted, "exact": pair.exact,
    }  # fmt: skip


def _plain_mean(found: Mean | None) -> dict[str, Any] | None:
    if found is None or not found.count:
        return None
    known = found.count > 1
    low, high = (found.low, found.high) if known else (None, None)
    return {"value": found.value, "low": low, "high": high, "count": found.count}
