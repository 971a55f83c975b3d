"""The reward of every skill: the paired change of its validation accuracy in a round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from palaestra.core.records import Attempt
from palaestra.core.statistics import Gain, measure_gain


def skill_rewards(rounds: Sequence[Sequence[Attempt]]) -> dict[str, tuple[Gain, ...]]:
    """The gain of each round by skill, in points with its interval.

    They equal `Branch.rewards` if every problem was scored both times. Here a problem with an infrastructure failure either
    time does not count.

    Arguments:
        rounds: the attempts on validation problems before the first round, and after each.
    """
    skills = dict.fromkeys(attempt.problem.skill for attempts in rounds for attempt in attempts)
    return {
        skill: tuple(
            measure_gain(_select_skill(before, skill), _select_skill(after, skill))
            for before, after in pairwise(rounds)
        )
        for skill in skills
    }


def _select_skill(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]
