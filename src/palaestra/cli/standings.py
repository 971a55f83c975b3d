"""Print the standings of a bench on a terminal. Long names are wrapped; numbers are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from palaestra.research.standings.scores import Area, MethodCell, Standings

GAP = 2
"""Columns between two table columns."""
NAMES = range(20, 9, -1)
"""Candidate widths of a method's name; the one that needs the fewest tables is used."""
SILENT = "°"
STYLE: dict[str, Any] = {
    "title_justify": "left", "box": None, "padding": (0, GAP, 0, 0), "pad_edge": False, "header_style": "underline",
}  # fmt: skip


def standings_tables(
    standings: Standings, width: int, silent: Callable[[str, str], bool] = lambda task, method: False
) -> list[Table | str]:
    """Return tables of every method's best submission on every task, as many as `width` requires, and the areas.

    Arguments:
        silent: whether a method wrote nothing on a task.
    """
    from palaestra.research.standings.scores import Measure

    profile = standings.profile(Measure.SUBMISSION)
    columns = {
        method: [_score(cell, silent(cell.task, method)) for cell in profile.cells if cell.method == method]
        for method in standings.methods
    }
    tasks = min(max(map(len, ("task", *standings.tasks))), width // 2)
    figures = {method: max(map(len, cells)) for method, cells in columns.items()}
    choices = [{m: max(most, min(len(m), name)) for m, most in figures.items()} for name in NAMES]
    widths = min(choices, key=lambda choice: len(_groups(choice, width - tasks)))
    tables: list[Table | str] = []
    for methods in _groups(widths, width - tasks):
        title = None if tables else f"best submission of {standings.k}, test split; * marks the best of a task"
        scores = Table(title=title, **STYLE)
        scores.add_column("task", width=tasks, overflow="fold")
        for method in methods:
            scores.add_column(method, justify="right", width=widths[method], overflow="fold")
        for place, task in enumerate(standings.tasks):
            scores.add_row(task, *(columns[method][place] for method in methods))
        tables.append(scores)
    if any(SILENT in cell for cells in columns.values() for cell in cells):
        tables.append(f"{SILENT} 0 messages: the agent wrote nothing; its score is that of the starter files")
    return [*tables, _areas(standings)]


def figure(score: float | None) -> str:
    """Format a score."""
    return "none" if score is None else f"{score:.5g}"


def _areas(standings: Standings) -> Table:
    from palaestra.research.standings.scores import Measure

    areas = Table(title=f"area under the performance profile, at most {standings.limit:.1f}", **STYLE)
    areas.add_column("method", overflow="fold")
    for column in ("submission, 95 %", "best attempt, 95 %", "feasible"):
        areas.add_column(column, justify="right", no_wrap=True)
    attempts = standings.profile(Measure.ATTEMPT)
    for area in sorted(standings.profile(Measure.SUBMISSION).areas, key=lambda area: -area.area):
        feasible = f"{area.feasible} of {len(standings.tasks)}"
        areas.add_row(area.method, _area(area), _area(attempts.area(area.method)), feasible)
    return areas


def _groups(widths: dict[str, int], room: int) -> list[list[str]]:
    """Group methods that fit side by side, at least one per group."""
    groups: list[list[str]] = []
    left = 0
    for method, width in widths.items():
        if not groups or width + GAP > left:
            groups.append([])
            left = room
        groups[-1].append(method)
        left -= width + GAP
    return groups


def _score(cell: MethodCell, silent: bool) -> str:
    return figure(cell.score) + ("*" if cell.ratio == 1.0 else "") + (SILENT if silent else "")


def _area(area: Area) -> str:
    interval = "" if area.low is None or area.high is None else f" [{area.low:.3f}, {area.high:.3f}]"
    return f"{area.area:.3f}{interval}"
