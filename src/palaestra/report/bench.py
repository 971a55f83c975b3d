"""The page of a bench: performance profiles, scores and costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from palaestra.recipes.research.bench import BenchEpisode, BenchResult
from palaestra.recipes.research.episode_player import is_silent
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.report.appendix import ProvenancePart, SettingRow, read_provenance_part, setting_rows
from palaestra.report.charts import FOOT, LEFT, PLOT, RIGHT, TOP, WIDTH, frame
from palaestra.report.formatting import NOTHING, causes, plain, plural, share, tick_words
from palaestra.report.svg import Point, Scale, drawing, polyline, ticks
from palaestra.research.standings.standings import BASELINE, Area, Measure, MethodCell, Profile, Standings
from palaestra.research.tasks.task import Direction

COLOURS = 5
"""Of the style sheet, for methods; its sixth is the baseline's."""
DASHES = ("", "8 3", "2 3", "9 3 2 3")
"""One after the other, when the colours begin anew."""
BASELINE_DASHES = "4 4"
SAMPLE = 34


@dataclass(frozen=True, slots=True)
class Key:
    """A method and a sample of its line."""

    method: str
    sample: Markup


@dataclass(frozen=True, slots=True)
class AreaRow:
    """A method with its areas, by measure, each with its interval in words."""

    key: Key
    areas: tuple[tuple[Area, str], ...]


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """A best score in words: the figure, its interval, and the runs behind it with what is to be said of them."""

    figure: str
    interval: str
    note: str
    best: bool


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A task with the best scores of all methods."""

    task: str
    metric: str
    direction: str
    cells: tuple[ScoreCell, ...]


@dataclass(frozen=True, slots=True)
class MeasurePart:
    """One measure: its curves, and the table of its scores."""

    title: str
    chart: Markup
    rows: tuple[ScoreRow, ...]


@dataclass(frozen=True, slots=True)
class ProfilesPart:
    """Everything of the standings that a page shows; `areas` with the largest area of a submission first."""

    k: int
    limit: float
    tasks: int
    methods: int
    keys: tuple[Key, ...]
    measures: tuple[MeasurePart, ...]
    areas: tuple[AreaRow, ...]
    uneven: bool
    """Whether some method has fewer runs than k on some task."""
    nobody: tuple[str, ...]
    """Tasks on which no method is feasible by one of the measures."""


def profiles_part(
    standings: Standings, silent: Callable[[str, str], bool] = lambda task, method: False
) -> ProfilesPart:
    """Put standings on a page.

    Arguments:
        silent: whether a method said nothing on a task.
    """
    keys = tuple(Key(method, line_sample(standings, method)) for method in standings.methods)
    rows = [
        AreaRow(key, tuple((area, area_interval(area)) for area in (p.area(key.method) for p in standings.profiles)))
        for key in keys
    ]
    cells = [cell for profile in standings.profiles for cell in profile.cells]
    nobody = {cell.task for cell in cells if cell.ratio is None}
    return ProfilesPart(
        k=standings.k,
        limit=standings.limit,
        tasks=len(standings.tasks),
        methods=len(standings.methods),
        keys=keys,
        measures=tuple(
            MeasurePart(
                f"{profile.measure}@{standings.k}".capitalize(),
                profile_chart(standings, profile.measure),
                tuple(_make_score_row(standings, profile, task, silent) for task in standings.tasks),
            )
            for profile in standings.profiles
        ),
        areas=tuple(sorted(rows, key=lambda row: -row.areas[-1][0].area)),
        uneven=any(cell.runs < standings.k for cell in cells if cell.method != BASELINE),
        nobody=tuple(task for task in standings.tasks if task in nobody),
    )


def profile_chart(standings: Standings, measure: Measure) -> Markup:
    """A step curve a method: the share of tasks on which it is within a factor of the best, by that factor's log."""
    profile = standings.profile(measure)
    x, y = Scale(0, standings.limit, LEFT, WIDTH - RIGHT), Scale(0, 1, TOP + PLOT, TOP)
    x_ticks, y_ticks = ticks(0, standings.limit, 6), ticks(0, 1, 5)
    parts = frame(
        x, y, x_ticks, y_ticks, "τ: within a factor of 10^τ of the best", "share of tasks", TOP + PLOT + FOOT - 8,
        tick_words(x_ticks), share,
    )  # fmt: skip
    # The first method is drawn last, above the others.
    for method in reversed(standings.methods):
        points = [(x(tau), y(height)) for tau, height in steps(profile, method, standings.limit)]
        parts.append(_draw_line(points, standings, method))
    areas = "; ".join(f"{area.method} {area.area:.3f}" for area in profile.areas)
    label = f"performance profiles by {measure}, areas: {areas}"
    return drawing(WIDTH, TOP + PLOT + FOOT, label, *parts, class_="chart")


def steps(profile: Profile, method: str, limit: float) -> list[Point]:
    """The corners of a method's curve from 0 to `limit`."""
    ratios = [cell.ratio for cell in profile.cells if cell.method == method]
    inside = sorted(math.log10(ratio) for ratio in ratios if ratio is not None)
    corners: list[Point] = [(0.0, sum(tau <= 0 for tau in inside) / len(ratios))]
    for count, tau in enumerate(inside, start=1):
        if 0 < tau <= limit:
            corners += [(tau, corners[-1][1]), (tau, count / len(ratios))]
    return [*corners, (limit, corners[-1][1])]


def line_sample(standings: Standings, method: str) -> Markup:
    """A short piece of a method's line, for legends."""
    return drawing(SAMPLE, 12, method, _draw_line([(0, 6), (SAMPLE, 6)], standings, method), class_="inline")


def _draw_line(points: Sequence[Point], standings: Standings, method: str) -> Markup:
    if method == BASELINE:
        return polyline(points, "line s6", stroke_dasharray=BASELINE_DASHES)
    place = standings.methods.index(method)
    dashes = DASHES[place // COLOURS % len(DASHES)]
    return polyline(points, f"line s{place % COLOURS + 1}", **({"stroke_dasharray": dashes} if dashes else {}))


def _make_score_row(standings: Standings, profile: Profile, task: str, silent: Callable[[str, str], bool]) -> ScoreRow:
    cells = [profile.cell(task, method) for method in standings.methods]
    direction, baseline = standings.directions[task], profile.cell(task, BASELINE).score or 0.0
    written = tuple(_make_score_cell(cell, direction, baseline, silent(task, cell.method)) for cell in cells)
    return ScoreRow(task, standings.metrics[task], f"{direction} is better", written)


def _make_score_cell(cell: MethodCell, direction: Direction, baseline: float, silent: bool) -> ScoreCell:
    notes = [] if cell.method == BASELINE else [plural(cell.runs, "run")]
    if silent:
        notes.append("0 messages")
    if cell.failures:
        notes.append(f"failed: {causes(cell.failures)}")
    if without := cell.runs - cell.scored - sum(cell.failures.values()):
        notes.append(f"{without} without a score")
    if cell.score is not None and not cell.feasible:
        worse = cell.score < baseline if direction is Direction.HIGHER else cell.score > baseline
        notes.append("worse than the baseline" if worse else "no ratio to the best: negative, or 0 is one of the two")
    return ScoreCell(
        figure=plain(cell.score),
        interval=_format_interval(cell),
        note="; ".join(notes),
        best=cell.ratio == 1.0,
    )


def _format_interval(cell: MethodCell) -> str:
    """An interval in words; an end that is open means that there might have been no score at all."""
    if cell.low is None and cell.high is None:
        return "" if cell.method == BASELINE or cell.score is None else "no interval"
    size = max(abs(end) for end in (cell.low, cell.high) if end is not None)
    low, high = ("none" if end is None else plain(end, size) for end in (cell.low, cell.high))
    return f"{low} to {high}"


def area_interval(area: Area) -> str:
    """The 95 % interval of an area.

    >>> area_interval(Area(method="agent", area=1.0, low=0.9, high=1.05, runs=8, scored=8, failed=0, feasible=2))
    '0.900 to 1.050'
    """
    return NOTHING if area.low is None or area.high is None else f"{area.low:.3f} to {area.high:.3f}"


COSTS = (
    "seconds",
    "calls",
    "calls_again",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "unpriced_calls",
    "unmeasured_calls",
)


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run; `address` is that of its own report."""

    episode: BenchEpisode
    address: str
    started: bool
    silent: bool
    """Whether the agent said nothing."""


@dataclass(frozen=True, slots=True)
class AgentRow:
    """What an agent has used over all its runs, and how they ended; `silent` of them without a message of its own."""

    name: str
    ended: int
    planned: int
    silent: int
    reasons: dict[str, int]
    failures: dict[str, int]
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BenchPage:
    """Everything on the page of a bench."""

    ended: bool
    tasks: tuple[str, ...]
    agents: tuple[AgentRow, ...]
    seeds: tuple[int, ...]
    runs: tuple[BenchRun, ...]
    runs_ended: int
    profiles: ProfilesPart | None
    best: Area | None
    negative: tuple[str, ...]
    """Tasks whose baseline is negative: no ratio can be made there."""
    failures: dict[str, int]
    costs: Mapping[str, float]
    settings: tuple[SettingRow, ...]
    provenance: ProvenancePart | None


def bench_page(result: BenchResult) -> BenchPage:
    """Put a bench on a page, as far as it has come."""
    agents = tuple(_make_agent_row(name, [e for e in result.episodes if e.agent == name]) for name in result.agents)
    standings = result.standings
    areas = (
        [] if standings is None else [a for a in standings.profile(Measure.SUBMISSION).areas if a.method != BASELINE]
    )
    failures: Counter[str] = Counter()
    for row in agents:
        failures.update(row.failures)
    negative = {e.task for e in result.episodes if e.summary is not None and e.summary["baseline"] < 0}
    return BenchPage(
        ended=result.ended,
        tasks=result.tasks,
        agents=agents,
        seeds=result.seeds,
        runs=tuple(_make_run(result, e) for e in sorted(result.episodes, key=lambda e: _order(result, e))),
        runs_ended=sum(e.summary is not None for e in result.episodes),
        profiles=None if standings is None else profiles_part(standings, result.silent),
        best=max(areas, key=lambda area: area.area, default=None),
        negative=tuple(task for task in result.tasks if task in negative),
        failures=dict(sorted(failures.items())),
        costs={name: sum(row.costs[name] for row in agents) for name in COSTS},
        settings=setting_rows(result.settings, ResearchSettings),
        provenance=read_provenance_part(result.folder),
    )


def _make_agent_row(name: str, episodes: list[BenchEpisode]) -> AgentRow:
    ended: list[dict[str, Any]] = [e.summary for e in episodes if e.summary is not None]
    failures: Counter[str] = Counter()
    for summary in ended:
        failures.update(summary["failures"])
    return AgentRow(
        name=name,
        ended=len(ended),
        planned=len(episodes),
        silent=sum(map(is_silent, ended)),
        reasons=dict(Counter(str(summary["stop_reason"]).replace("_", " ") for summary in ended).most_common()),
        failures=dict(sorted(failures.items())),
        costs={cost: float(sum(summary.get(cost, 0) for summary in ended)) for cost in COSTS},
    )


def _make_run(result: BenchResult, episode: BenchEpisode) -> BenchRun:
    started = (episode.folder / "settings.json").exists()
    # Beside the bench's own page, so that the folder can be moved.
    address = (episode.folder / "report.html").relative_to(result.folder).as_posix() if started else ""
    return BenchRun(episode, address, started, episode.summary is not None and is_silent(episode.summary))


def _order(result: BenchResult, episode: BenchEpisode) -> tuple[int, int, int]:
    return result.tasks.index(episode.task), result.agents.index(episode.agent), episode.seed
