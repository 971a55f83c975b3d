"""Many `teach` runs in one command: several seeds, several teachers, the state shown and hidden; then one table.

Every run has its own folder below the study's, and is an ordinary run. A study that was stopped goes on where it was:
finished runs are read, one that was under way is resumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.events import Listener, ignore
from palaestra.core.statistics import Mean, mean_interval
from palaestra.recipes import teach
from palaestra.recipes.settings import build, to_plain
from palaestra.recipes.teach import TeachSettings
from palaestra.runs.files import write_json
from palaestra.runs.run import Run, new_folder

SEVERAL = ("teacher", "state", "writer", "learning", "start")
"""Settings that a study may have several values of."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of run: its settings, and what came of it over the seeds.

    Arguments:
        gain: the mean of the runs' gains in points, with a t interval over the seeds.
        ahead: how much that is above the first row's, paired by seed; none for the first row.
        cost: dollars, tokens in and out, and seconds of all its runs.
    """

    name: str
    values: Mapping[str, str]
    gains: Mapping[int, float]
    gain: Mean
    ahead: Mean | None
    examples: int
    cost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The outcome of a study: its folder and its table."""

    folder: Path
    rows: tuple[Row, ...]


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
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    made = [build(TeachSettings, {**to_plain(settings), **cell}) for cell in cells]
    for one in made:  # Before the first of them costs anything.
        teach.check(one)
    folder = Path(out) if out else new_folder("study")
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for seed in range(settings.seed, settings.seed + seeds):
        for place, (cell, one) in enumerate(zip(cells, made, strict=True)):
            where = folder / f"{_name(cell) or one.teacher}-seed{seed}"
            found[place, seed] = _run(replace(one, seed=seed), where, listener)
    result = StudyResult(folder, tuple(_rows(cells, made, found)))
    write_json(
        folder / "summary.json", {"recipe": "study", "seeds": seeds, "rows": [_plain(row) for row in result.rows]}
    )
    return result


def _run(settings: TeachSettings, folder: Path, listener: Listener) -> dict[str, Any]:
    if not (folder / "settings.json").exists():
        return teach.teach(settings, out=folder, listener=listener).summary
    with Run.open(folder) as run:
        if run.settings != to_plain(settings):
            raise RunError(f"{folder} holds a run with other settings; choose another --out")
        return run.summary or teach.resume(run, listener=listener).summary


def _rows(
    cells: Sequence[Mapping[str, str]], made: Sequence[TeachSettings], found: Mapping[tuple[int, int], dict[str, Any]]
) -> list[Row]:
    rows: list[Row] = []
    for place, cell in enumerate(cells):
        runs = {seed: summary for (where, seed), summary in found.items() if where == place}
        gains = {seed: float(summary["gain"]) for seed, summary in runs.items() if summary["gain"] is not None}
        paired = [gain - rows[0].gains[seed] for seed, gain in gains.items() if rows and seed in rows[0].gains]
        cost = {
            name: float(sum(summary[name] for summary in runs.values()))
            for name in ("cost", "prompt_tokens", "completion_tokens", "seconds")
        }
        examples = sum(summary["examples"] for summary in runs.values())
        name = _name(cell) or made[place].teacher
        ahead = mean_interval(paired) if rows else None
        rows.append(Row(name, cell, gains, mean_interval(list(gains.values())), ahead, examples, cost))
    return rows


def _name(cell: Mapping[str, str]) -> str:
    plain = (value if name != "state" else f"state_{value}" for name, value in cell.items())
    return "-".join("".join(sign if sign.isalnum() or sign in "_." else "_" for sign in value) for value in plain)


def _plain(row: Row) -> dict[str, Any]:
    def mean(found: Mean | None) -> dict[str, Any] | None:
        known = found is not None and found.count > 1
        return {"value": found.value, "low": found.low if known else None, "high": found.high if known else None,
                "count": found.count} if found is not None and found.count else None  # fmt: skip

    return {
        "name": row.name, "values": dict(row.values), "gains": {str(seed): gain for seed, gain in row.gains.items()},
        "gain": mean(row.gain), "ahead": mean(row.ahead), "examples": row.examples, **row.cost,
    }  # fmt: skip
