"""Standings of methods from their runs: best scores, performance profiles and areas.

Best attempt@k is the best of all validations of k runs; best submission@k is the best of their submissions. A run
without a score counts as a run and never as a zero. Intervals are bootstrap intervals over runs. They have limits: no
resample can beat the best run, so a best score is the better end of its own interval, and a few runs say little about
further ones.
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
    Measure,
    MethodCell,
    Profile,
    RunScore,
    Standings,
    TaskScale,
)
from palaestra.research.tasks.task import Direction

RESAMPLES = 1000
TAIL = 0.025
"""The probability outside a 95 % interval at each end."""


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
        scales: the scale of every task. A task without runs counts as missed by all methods.
        k: the number of runs that count, those with the lowest seeds; `None` for all.
        seeds: the seeds of the bootstrap.
        resamples: the number of bootstrap resamples.

    Raises:
        UnknownNameError: the task of a run has no scale.
        RunError: two runs have the same task, method and seed.
        SettingsError: `k` or `resamples` is below 1, there is no task, or a method has the baseline's name.

    Example:
        >>> runs = [RunScore("maze", "agent", seed, submission=score) for seed, score in enumerate((10.0, 20.0))]
        >>> standings = compare_methods(runs, {"maze": TaskScale(Direction.HIGHER, 8.0)})
        >>> cell = standings.profile(Measure.SUBMISSION).cell("maze", "agent")
        >>> cell.score, cell.low, cell.high, cell.runs
        (20.0, 10.0, 20.0, 2)
    """
    if (k is not None and k < 1) or resamples < 1:
        raise SettingsError(f"`k` and `resamples` must be at least 1; got {k} and {resamples}")
    groups = _group_runs(runs, scales)
    methods = tuple(dict.fromkeys(run.method for run in runs))
    longest = max((len(ratios) for ratios in groups.values()), default=1)
    k = k or longest
    tables = [_ScoreTable.build(measure, groups, scales, methods, min(k, longest)) for measure in Measure]
    ratios = [performance_ratios(table.best(), table.baseline_T, table.higher_T) for table in tables]
    limit = threshold_limit(np.concatenate([result.penalty_T for result in ratios]))
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


def _group_runs(runs: Sequence[RunScore], scales: Mapping[str, TaskScale]) -> dict[tuple[str, str], list[RunScore]]:
    """Group the runs by task and method, in the order of their seeds."""
    if not scales:
        raise SettingsError("methods are compared over one task or more; got none")
    groups: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        if run.task not in scales:
            raise UnknownNameError("task of a run", run.task, scales)
        if run.method == BASELINE:
            raise SettingsError(f"'{BASELINE}' is the name of the tasks' own baselines; give the method another one")
        group = groups[run.task, run.method]
        if group and group[-1].seed == run.seed:
            raise RunError(
                f"a method runs once for each task and seed; {run.method} has two on {run.task} with {run.seed}"
            )
        group.append(run)
    return groups


@dataclass(frozen=True, slots=True)
class _ScoreTable:
    """The scores of one measure. The baseline is the last method and has no runs.

    Arguments:
        values_TMK: the scores of the runs, NaN for a run without a score and for padding. Runs that failed for outside
            reasons are counted but not resampled.
        drawn_TM: the number of runs to resample.
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
    def build(
        cls,
        measure: Measure,
        groups: Mapping[tuple[str, str], Sequence[RunScore]],
        scales: Mapping[str, TaskScale],
        methods: tuple[str, ...],
        k: int,
    ) -> _ScoreTable:
        tasks, named = tuple(scales), (*methods, BASELINE)
        runs = {pair: group[:k] for pair, group in groups.items()}
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
        """Return the best score over the runs as `scores_TM`, including the baseline's; a leading axis of resamples is
        allowed.
        """
        values = self.values_TMK if values_TMK is None else values_TMK
        # `fmax` and `fmin` ignore NaN unless there is nothing else.
        highest, lowest = (np.asarray(of.reduce(values, axis=-1), np.float64) for of in (np.fmax, np.fmin))
        best: Floats = np.where(self.higher_T[:, None], highest, lowest)
        best[..., -1] = self.baseline_T
        return best

    def draw(self, generator: np.random.Generator, resamples: int) -> Floats:
        """Return the best scores of bootstrap resamples as `scores_BTM`."""
        shape = (resamples, *self.values_TMK.shape)
        places = (generator.random(shape) * self.drawn_TM[..., None]).astype(np.int64)
        drawn = np.take_along_axis(np.broadcast_to(self.values_TMK, shape), places, axis=-1)
        beyond = np.arange(shape[-1]) >= self.drawn_TM[..., None]
        return self.best(np.where(beyond, np.nan, drawn))

    def profile(self, limit: float, generator: np.random.Generator, resamples: int) -> Profile:
        """Return scores, ratios and areas with their bootstrap intervals."""
        scores_TM, scores_BTM = self.best(), self.draw(generator, resamples)
        ratios = performance_ratios(scores_TM, self.baseline_T, self.higher_T)
        redrawn = performance_ratios(scores_BTM, self.baseline_T, self.higher_T)
        # A resample without a score is worse than any with one.
        missing = np.where(self.higher_T[:, None], -np.inf, np.inf)
        low_TM, high_TM = _interval(np.where(np.isnan(scores_BTM), missing, scores_BTM))
        cells = tuple(
            self._cell(t, m, *(float(table[t, m]) for table in (scores_TM, low_TM, high_TM, ratios.ratios_TM)),
                       feasible=bool(ratios.feasible_TM[t, m]))
            for t in range(len(self.tasks))
            for m in range(len(self.methods))
        )  # fmt: skip
        areas_M = area_under_profile(ratios.ratios_TM, limit)
        low_M, high_M = _interval(area_under_profile(redrawn.ratios_TM, limit))
        areas = tuple(
            self._area(m, *(float(table[m]) for table in (areas_M, low_M, high_M)), cells=cells[m :: len(self.methods)])
            for m in range(len(self.methods))
        )
        return Profile(measure=self.measure, cells=cells, areas=areas)

    def _area(self, m: int, area: float, low: float, high: float, *, cells: Sequence[MethodCell]) -> Area:
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
        """Whether resampling says something about a method's area; a single run does not."""
        if self.methods[m] == BASELINE:
            # Its own score is fixed; only the others move its area.
            return len(self.methods) > 1 and all(self._spread(other) for other in range(len(self.methods) - 1))
        drawn = self.drawn_TM[:, m]
        return bool(drawn.any() and (drawn[drawn > 0] > 1).all())

    def _cell(
        self, t: int, m: int, score: float, low: float, high: float, ratio: float, *, feasible: bool
    ) -> MethodCell:
        task, method = self.tasks[t], self.methods[m]
        direction = Direction.HIGHER if self.higher_T[t] else Direction.LOWER
        runs = self.runs.get((task, method), ())
        without = [run for run in runs if run.value(self.measure, direction) is None]
        spread = self.drawn_TM[t, m] > 1 and math.isfinite(score)
        return MethodCell(
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
    """Return the 95 % interval of resamples along the first axis, as two of the resamples, so that infinite ones are
    allowed.
    """
    ordered, outside = np.sort(drawn_B, axis=0), int(TAIL * len(drawn_B))
    return ordered[outside], ordered[-1 - outside]
