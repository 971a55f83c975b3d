"""The reward of every skill: what a round changed of its validation accuracy, problem by problem."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from palaestra.core.records import Attempt
from palaestra.core.statistics import Gain, measure_gain


def skill_rewards(rounds: Sequence[Sequence[Attempt]]) -> dict[str, tuple[Gain, ...]]:
    """For each skill the gain of each round, in points with its interval.

    A teacher sees the same figures as `Branch.rewards`, without the attempts. They agree wherever every problem was
    scored both times; a problem that failed around the model either time counts here for nothing.

    Arguments:
        rounds: the attempts on the validation problems before the first round, and after each.
    """
    skills = dict.fromkeys(attempt.problem.skill for attempts in rounds for attempt in attempts)
    return {
        skill: tuple(measure_gain(_of(before, skill), _of(after, skill)) for before, after in pairwise(rounds))
        for skill in skills
    }


def _of(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]
