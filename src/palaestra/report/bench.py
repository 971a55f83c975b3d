"""The page of a bench: performance profiles, scores and costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from markupsafe import Markup

from palaestra.core.records import Json
from palaestra.recipes.research.bench import BenchEpisode, BenchResult
from palaestra.recipes.research.episode_player import is_silent
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.report.charts import MetricPoint, Panel, Series, draw_sample, line_chart, line_style
from palaestra.report.formatting import causes, plain, plural
from palaestra.report.parts import setting_rows
from palaestra.report.svg import Plot, Point
from palaestra.research.standings.standings import BASELINE, Measure, MethodCell, Profile, Standings
from palaestra.research.tasks.task import Direction
from palaestra.runs.provenance import read_provenance

_UNKNOWN_COSTS = ("unpriced_calls", "unmeasured_calls")
_COSTS = ("seconds", "calls", "calls_again", "prompt_tokens", "completion_tokens", "cost", *_UNKNOWN_COSTS)


def bench_page(result: BenchResult) -> Json:
    """Show the runs of a bench so far."""
    agents = [_make_agent_row(name, [e for e in result.episodes if e.agent == name]) for name in result.agents]
    standings = result.standings
    profiles = profiles_part(standings, result.silent) if standings else None
    areas = standings.profile(Measure.SUBMISSION).areas if standings else ()
    negative = {e.task for e in result.episodes if e.summary is not None and e.summary["baseline"] < 0}
    return {
        "ended": result.ended,
        "tasks": result.tasks,
        "agents": agents,
        "seeds": result.seeds,
        "runs": [_make_run(result, episode) for episode in sorted(result.episodes, key=lambda e: _order(result, e))],
        "runs_ended": sum(e.summary is not None for e in result.episodes),
        "profiles": profiles,
        "figures": [("profiles", m["title"], [m["chart"]]) for m in profiles["measures"]] if profiles else (),
        "best": max((a for a in areas if a.method != BASELINE), key=lambda area: area.area, default=None),
        "negative": [task for task in result.tasks if task in negative],
        "failures": dict(sorted(sum((Counter(row["failures"]) for row in agents), Counter[str]()).items())),
        "costs": {name: sum(row["costs"][name] for row in agents) for name in _COSTS},
        "settings": setting_rows(result.settings, ResearchSettings),
        "provenance": read_provenance(result.folder),
        "run_folders": [episode.folder for episode in result.episodes],
    }


def _make_agent_row(name: str, episodes: list[BenchEpisode]) -> Json:
    """Summarize the runs of an agent: how they ended, and their costs."""
    ended: list[Json] = [e.summary for e in episodes if e.summary is not None]
    failures: Counter[str] = sum((Counter(summary["failures"]) for summary in ended), Counter())
    return {
        "name": name,
        "ended": len(ended),
        "planned": len(episodes),
        "silent": sum(map(is_silent, ended)),
        "reasons": dict(Counter(str(summary["stop_reason"]).replace("_", " ") for summary in ended).most_common()),
        "failures": dict(sorted(failures.items())),
        "costs": {cost: sum(summary.get(cost, 0) for summary in ended) for cost in _COSTS},
    }


def _make_run(result: BenchResult, episode: BenchEpisode) -> Json:
    started = (episode.folder / "settings.json").exists()
    # The path is relative to the bench's page, so that the folder can be moved.
    address = (episode.folder / "report.html").relative_to(result.folder).as_posix() if started else ""
    return {"episode": episode, "address": address, "silent": bool(episode.summary and is_silent(episode.summary))}


def _order(result: BenchResult, episode: BenchEpisode) -> tuple[int, int, int]:
    return result.tasks.index(episode.task), result.agents.index(episode.agent), episode.seed


# Performance profiles


def profiles_part(standings: Standings, silent: Callable[[str, str], bool] = lambda task, method: False) -> Json:
    """Show standings: curves, areas (the largest first) and the scores of each task.

    Arguments:
        silent: whether a method wrote no message on a task.
    """
    samples = {method: line_sample(standings, method) for method in standings.methods}
    areas = [[profile.area(method) for profile in standings.profiles] for method in standings.methods]
    cells = [cell for profile in standings.profiles for cell in profile.cells]
    infeasible = {cell.task for cell in cells if cell.ratio is None}
    measures = []
    for profile in standings.profiles:
        rows = [_make_score_row(standings, profile, task, silent) for task in standings.tasks]
        title = f"{profile.measure}@{standings.k}".capitalize()
        measures.append({"title": title, "chart": profile_chart(standings, profile.measure), "rows": rows})
    return {
        "standings": standings,
        "samples": samples,
        "measures": measures,
        "areas": sorted(areas, key=lambda row: -row[-1].area),
        "uneven": any(cell.runs < standings.k for cell in cells if cell.method != BASELINE),
        "infeasible": [task for task in standings.tasks if task in infeasible],
    }


def profile_chart(standings: Standings, measure: Measure) -> Plot:
    """Draw a step curve for each method: the fraction of tasks on which its ratio to the best is at most 10^τ."""
    profile = standings.profile(measure)
    series = []
    # The first method is drawn last, above the others.
    for method in reversed(standings.methods):
        points = [MetricPoint(0, tau, 100 * height) for tau, height in steps(profile, method, standings.limit)]
        class_, dashes = _choose_line(standings, method)
        series.append(Series("", points, class_, "line", dashes=dashes, column=method))
    areas = "; ".join(f"{area.method} {area.area:.3f}" for area in profile.areas)
    label = f"performance profiles by {measure}, areas: {areas}"
    panel = Panel("share of tasks (%)", series, (0.0, 100.0))
    legend = tuple((line_sample(standings, method), method) for method in standings.methods)
    return line_chart([panel], "τ: within a factor of 10^τ of the best", label, legend=legend)


def steps(profile: Profile, method: str, limit: float) -> list[Point]:
    """Return the corners of a method's curve from 0 to `limit`."""
    ratios = [cell.ratio for cell in profile.cells if cell.method == method]
    inside = sorted(math.log10(ratio) for ratio in ratios if ratio is not None)
    corners: list[Point] = [(0.0, sum(tau <= 0 for tau in inside) / len(ratios))]
    for count, tau in enumerate(inside, start=1):
        if 0 < tau <= limit:
            corners += [(tau, corners[-1][1]), (tau, count / len(ratios))]
    return [*corners, (limit, corners[-1][1])]


def line_sample(standings: Standings, method: str) -> Markup:
    """Draw a short sample of a method's line, for legends."""
    return draw_sample(method, *_choose_line(standings, method))


def _choose_line(standings: Standings, method: str) -> tuple[str, str]:
    """Return the color and the dash pattern of a method's line."""
    return ("s6", "4 4") if method == BASELINE else line_style(standings.methods.index(method))


def _make_score_row(standings: Standings, profile: Profile, task: str, silent: Callable[[str, str], bool]) -> Json:
    """Make the row of a task: the best score of each method with its interval and a note about its runs."""
    direction, baseline = standings.directions[task], profile.cell(task, BASELINE).score or 0.0
    cells = []
    for method in standings.methods:
        cell = profile.cell(task, method)
        note = _describe_cell(cell, direction, baseline, silent(task, method))
        cells.append({"cell": cell, "interval": _format_interval(cell), "note": note})
    return {"task": task, "metric": standings.metrics[task], "direction": direction, "cells": cells}


def _describe_cell(cell: MethodCell, direction: Direction, baseline: float, silent: bool) -> str:
    notes = [] if cell.method == BASELINE else [plural(cell.runs, "run")]
    if silent:
        notes.append("0 messages")
    if cell.failures:
        notes.append(f"failed: {causes(cell.failures)}")
    if without := cell.runs - cell.scored - sum(cell.failures.values()):
        notes.append(f"{without} without a score")
    if cell.score is not None and not cell.feasible:
        worse = cell.score < baseline if direction is Direction.HIGHER else cell.score > baseline
        notes.append("worse than the baseline" if worse else "no ratio to the best: negative, or one of the two is 0")
    return "; ".join(notes)


def _format_interval(cell: MethodCell) -> str:
    """Format an interval. An end of "none" means that runs like these may have no score at all."""
    if cell.low is None and cell.high is None:
        return "" if cell.method == BASELINE or cell.score is None else "no interval"
    size = max(abs(end) for end in (cell.low, cell.high) if end is not None)
    low, high = ("none" if end is None else plain(end, size) for end in (cell.low, cell.high))
    return f"{low} to {high}"
