"""No judged submission of a task is rewarded less than one that cannot be judged."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from research_judges import judge_submission, measure_solution

from palaestra.research.tasks.task import Direction, Grade, InvalidSubmission, Metric, load_task, task_names

NUMBERS = st.floats(-1e9, 1e9)
WORST = {
    "prisoners_dilemma": "def choose(mine, theirs):\n    return 'D' if len(mine) < 60 else 'C'\n",
    "battle_of_sexes": "def choose(mine, theirs):\n    return 'B' if theirs and theirs[-1] == 'A' else 'A'\n",
    "colonel_blotto": "def allocate(mine, theirs):\n    return [100, 0, 0, 0, 0]\n",
}
"""The worst players that we know."""


@cache
def load_metric(name: str) -> Metric:
    return load_task(name).metric


@settings(deadline=None)
@given(name=st.sampled_from(task_names()), baseline=NUMBERS, score=NUMBERS)
def test_no_score_of_a_task_is_rewarded_less_than_none(name: str, baseline: float, score: float) -> None:
    metric = load_metric(name)
    low, high = -math.inf if metric.low is None else metric.low, math.inf if metric.high is None else metric.high
    baseline, score = (min(max(value, low), high) for value in (baseline, score))
    floor = metric.reward(None, baseline)
    assert floor <= min(0.0, metric.reward(score, baseline))
    assert metric.reward(baseline, baseline) == 0.0


@given(
    direction=st.sampled_from(Direction),
    scale=st.floats(1e-3, 1e3),
    baseline=NUMBERS,
    score=NUMBERS,
    floor=st.none() | NUMBERS,
)
def test_an_unbounded_metric_has_a_floor(
    direction: Direction, scale: float, baseline: float, score: float, floor: float | None
) -> None:
    metric = Metric(name="loss", direction=direction, scale=scale, floor=floor)
    lowest = metric.reward(None, baseline)
    assert math.isfinite(lowest)
    assert lowest <= metric.reward(score, baseline) == max(lowest, metric.gain(score, baseline))


@pytest.mark.parametrize("name", WORST)
def test_the_worst_player_is_rewarded_no_less_than_a_broken_one(name: str) -> None:
    worst, broken = judge_submission(name, WORST[name]), judge_submission(name, "def choose(): raise ValueError\n")
    assert isinstance(worst, Grade), worst
    assert isinstance(broken, InvalidSubmission), broken
    metric, baseline = load_metric(name), measure_solution(name, "baseline").validation.score
    assert metric.reward(None, baseline) <= metric.reward(worst.score, baseline) < 0.0
