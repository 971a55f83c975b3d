"""From the runs of methods on tasks to their standings: best scores, performance profiles, areas, each with its runs.

Best attempt@k is the best of all validations of k runs; best submission@k is the best of what those runs handed in.
A run without a score counts as a run and never as a zero. Intervals come from drawing the runs anew (bootstrap). They
have limits that a reader must know: no draw can beat the best run that there was, so a best score is the better end
of its own interval; and a few runs show little of what further ones would do.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palaestra.core.errors import RunError, SettingsError, UnknownNameError
from palaestra.core.seeding import Seeds
from palaestra.research.standings.profiles import Floats, Marks, area_under_profile, performance_ratios, threshold_limit
from palaestra.research.standings.scores import (
    BASELINE,
    Area,
    Cell,
    Measure,
    Profile,
    RunScore,
    Standings,
    TaskScale,
)
from palaestra.research.tasks.task import Direction

RESAMPLES = 1000
TAIL = 0.025
"""What a 95 % interval leaves out at each end."""


def compare_methods(
    runs: Sequence[RunScore],
    scales: Mapping[str, TaskScale],
    *,
    k: int | None = None,
    seeds: Seeds = Seeds(0),
    resamples: int = RESAMPLES,
) -> Standings:
    """Compare the methods of `runs` with each other and with the tasks' baselines, by both measures.

    Arguments:
        scales: of every task. One on which there are no runs counts as missed by all.
        k: of more runs than that, those with the lowest seeds count; `None` for all.
        seeds: what the draws for the intervals come from.
        resamples: how many draws.

    Raises:
        UnknownNameError: a run is of a task that has no scale.
        RunError: two runs have the same task, method and seed.
        SettingsError: `k` or `resamples` is below 1, there is no task, or a method has the baseline's name.

    Example:
        >>> runs = [RunScore("maze", "agent", seed, submission=score) for seed, score in enumerate((10.0, 20.0))]
        >>> found = compare_methods(runs, {"maze": TaskScale(Direction.HIGHER, 8.0)})
        >>> cell = found.profile(Measure.SUBMISSION).cell("maze", "agent")
        >>> cell.score, cell.low, cell.high, cell.runs
        (20.0, 10.0, 20.0, 2)
    """
    if (k is not None and k < 1) or resamples < 1:
        raise SettingsError(f"`k` and `resamples` must be at least 1; got {k} and {resamples}")
    grouped = _grouped(runs, scales)
    methods = tuple(dict.fromkeys(run.method for run in runs))
    longest = max((len(found) for found in grouped.values()), default=1)
    k = k or longest
    tables = [_ScoreTable.of(measure, grouped, scales, methods, min(k, longest)) for measure in Measure]
    found = [performance_ratios(table.best(), table.baseline_T, table.higher_T) for table in tables]
    limit = threshold_limit(np.concatenate([ratios.penalty_T for ratios in found]))
    return Standings(
        tasks=tuple(scales),
        methods=(*methods, BASELINE),
        directions={task: scale.direction for task, scale in scales.items()},
        metrics={task: scale.metric for task, scale in scales.items()},
        k=k,
        limit=limit,
        profiles=tuple(
            table.profile(limit, seeds.derive("standings", table.measure).generator(), resamples) for table in tables
        ),
    )


def _grouped(runs: Sequence[RunScore], scales: Mapping[str, TaskScale]) -> dict[tuple[str, str], list[RunScore]]:
    """The runs by task and method, in the order of their seeds."""
    if not scales:
        raise SettingsError("methods are compared over one task or more; got none")
    grouped: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        if run.task not in scales:
            raise UnknownNameError("task of a run", run.task, scales)
        if run.method == BASELINE:
            raise SettingsError(f"'{BASELINE}' is the name of the tasks' own baselines; give the method another one")
        group = grouped[run.task, run.method]
        if group and group[-1].seed == run.seed:
            raise RunError(
                f"a method runs once for each task and seed; {run.method} has two on {run.task} with {run.seed}"
            )
        group.append(run)
    return grouped


@dataclass(frozen=True, slots=True)
class _ScoreTable:
    """The scores of one measure. The baseline is the last method, and has no runs.

    Arguments:
        values_TMK: the scores of the runs that say something of the method, NaN for one without a score, and beyond
            the last. A run that something around it broke says nothing: it is counted, and not drawn.
        drawn_TM: how many those are.
    """

    measure: Measure
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    runs: Mapping[tuple[str, str], Sequence[RunScore]]
    baseline_T: Floats
    higher_T: Marks
    values_TMK: Floats
    drawn_TM: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        measure: Measure,
        grouped: Mapping[tuple[str, str], Sequence[RunScore]],
        scales: Mapping[str, TaskScale],
        methods: tuple[str, ...],
        k: int,
    ) -> _ScoreTable:
        tasks, named = tuple(scales), (*methods, BASELINE)
        runs = {pair: found[:k] for pair, found in grouped.items()}
        values_TMK = np.full((len(tasks), len(named), k), np.nan)
        drawn_TM = np.zeros((len(tasks), len(named)), np.int64)
        for t, task in enumerate(tasks):
            for m, method in enumerate(methods):
                scores = [(run, run.value(measure, scales[task].direction)) for run in runs.get((task, method), ())]
                kept = [score for run, score in scores if score is not None or run.failure is None]
                values_TMK[t, m, : len(kept)] = [np.nan if score is None else score for score in kept]
                drawn_TM[t, m] = len(kept)
        return cls(
            measure=measure,
            tasks=tasks,
            methods=named,
            runs=runs,
            baseline_T=np.array([scale.reference(measure) for scale in scales.values()]),
            higher_T=np.array([scale.direction is Direction.HIGHER for scale in scales.values()]),
            values_TMK=values_TMK,
            drawn_TM=drawn_TM,
        )

    def best(self, values_TMK: Floats | None = None) -> Floats:
        """The best over the runs as `scores_TM`, the baseline's among them; draws may be an axis before these."""
        values = self.values_TMK if values_TMK is None else values_TMK
        # `fmax` and `fmin` pass over NaN, and give it where there is nothing else.
        highest, lowest = (np.asarray(of.reduce(values, axis=-1), np.float64) for of in (np.fmax, np.fmin))
        best: Floats = np.where(self.higher_T[:, None], highest, lowest)
        best[..., -1] = self.baseline_T
        return best

    def draw(self, generator: np.random.Generator, resamples: int) -> Floats:
        """The best scores of runs that were drawn anew, as `scores_BTM`: of each cell as many as it has."""
        shape = (resamples, *self.values_TMK.shape)
        places = (generator.random(shape) * self.drawn_TM[..., None]).astype(np.int64)
        drawn = np.take_along_axis(np.broadcast_to(self.values_TMK, shape), places, axis=-1)
        beyond = np.arange(shape[-1]) >= self.drawn_TM[..., None]
        return self.best(np.where(beyond, np.nan, drawn))

    def profile(self, limit: float, generator: np.random.Generator, resamples: int) -> Profile:
        """Scores, ratios and areas, with the intervals of their draws."""
        scores_TM, scores_BTM = self.best(), self.draw(generator, resamples)
        found = performance_ratios(scores_TM, self.baseline_T, self.higher_T)
        redrawn = performance_ratios(scores_BTM, self.baseline_T, self.higher_T)
        # A draw without a score is worse than any with one.
        missing = np.where(self.higher_T[:, None], -np.inf, np.inf)
        low_TM, high_TM = _interval(np.where(np.isnan(scores_BTM), missing, scores_BTM))
        cells = tuple(
            self._cell(t, m, *(float(table[t, m]) for table in (scores_TM, low_TM, high_TM, found.ratios_TM)),
                       feasible=bool(found.feasible_TM[t, m]))
            for t in range(len(self.tasks))
            for m in range(len(self.methods))
        )  # fmt: skip
        areas_M = area_under_profile(found.ratios_TM, limit)
        low_M, high_M = _interval(area_under_profile(redrawn.ratios_TM, limit))
        areas = tuple(
            self._area(m, *(float(table[m]) for table in (areas_M, low_M, high_M)), cells=cells[m :: len(self.methods)])
            for m in range(len(self.methods))
        )
        return Profile(measure=self.measure, cells=cells, areas=areas)

    def _area(self, m: int, area: float, low: float, high: float, *, cells: Sequence[Cell]) -> Area:
        spread = self._spread(m)
        return Area(
            method=self.methods[m],
            area=area,
            low=low if spread else None,
            high=high if spread else None,
            runs=sum(cell.runs for cell in cells),
            scored=sum(cell.scored for cell in cells),
            failed=sum(sum(cell.failures.values()) for cell in cells),
            feasible=sum(cell.feasible for cell in cells),
        )

    def _spread(self, m: int) -> bool:
        """Whether draws say something of a method's area: of a single run they say nothing."""
        if self.methods[m] == BASELINE:
            # Its own score stands; what moves its area are the others.
            return len(self.methods) > 1 and all(self._spread(other) for other in range(len(self.methods) - 1))
        drawn = self.drawn_TM[:, m]
        return bool(drawn.any() and (drawn[drawn > 0] > 1).all())

    def _cell(self, t: int, m: int, score: float, low: float, high: float, ratio: float, *, feasible: bool) -> Cell:
        task, method = self.tasks[t], self.methods[m]
        direction = Direction.HIGHER if self.higher_T[t] else Direction.LOWER
        runs = self.runs.get((task, method), ())
        without = [run for run in runs if run.value(self.measure, direction) is None]
        spread = self.drawn_TM[t, m] > 1 and math.isfinite(score)
        return Cell(
            task=task,
            method=method,
            score=score if math.isfinite(score) else None,
            low=low if spread and math.isfinite(low) else None,
            high=high if spread and math.isfinite(high) else None,
            runs=len(runs),
            scored=len(runs) - len(without),
            failures=dict(sorted(Counter(str(run.failure.cause) for run in without if run.failure).items())),
            feasible=feasible,
            ratio=ratio if math.isfinite(ratio) else None,
        )


def _interval(drawn_B: Floats) -> tuple[Floats, Floats]:
    """The 95 % interval of draws along their first axis: two of the draws, so that infinite ones do no harm."""
    ordered, outside = np.sort(drawn_B, axis=0), int(TAIL * len(drawn_B))
    return ordered[outside], ordered[-1 - outside]
