"""What each round brought to each skill, beside what the teacher did about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from palaestra.core.records import Attempt, Decision, Lesson
from palaestra.core.statistics import Gain, measure_gain
from palaestra.report.allocation import Allocation
from palaestra.teachers.tree.rewards import skill_rewards


@dataclass(frozen=True, slots=True)
class Cell:
    """A skill in a round.

    Arguments:
        reward: the change of its validation accuracy in points; `None` as long as the round is not over.
        examples: what it was given.
        actions: what the teacher did with it, and why.
    """

    reward: Gain | None
    examples: int
    actions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RewardRow:
    """A skill with its rounds in order."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RoundDecisions:
    """What a teacher decided for one lesson, and why, with what came of it.

    Arguments:
        rows: each decision, beside the first of a skill its reward.
        idle: the skills without a decision, with their rewards.
    """

    round: int
    examples: int
    actions: Mapping[str, int]
    rows: tuple[tuple[Decision, Gain | None], ...]
    idle: tuple[tuple[str, Gain], ...]


Rewards = Sequence[Mapping[str, Gain]]
"""By round, from the first on, the reward of each skill. `""` is the whole: problems without a skill have none of their own."""


def rewards_by_round(measured: Sequence[Sequence[Attempt]]) -> list[dict[str, Gain]]:
    """The rewards of all rounds that are over.

    Arguments:
        measured: the attempts on the validation problems before the first round, and after each.
    """
    skills = skill_rewards(measured)
    return [
        {skill: gains[place] for skill, gains in skills.items()} | {"": measure_gain(before, after)}
        for place, (before, after) in enumerate(pairwise(measured))
    ]


def reward_rows(
    rewards: Rewards, lessons: Mapping[int, Lesson], allocation: Allocation, skills: Sequence[str]
) -> tuple[RewardRow, ...]:
    """A row for all skills together, then one for each skill."""
    rounds = range(1, max([*lessons, len(rewards)], default=0) + 1)

    def cell(skill: str, round_: int) -> Cell:
        reward = rewards[round_ - 1].get(skill) if round_ <= len(rewards) else None
        given = allocation.get(round_, {})
        lesson = lessons.get(round_)
        actions = [(d.action, d.reason) for d in lesson.decisions if skill and d.skill == skill] if lesson else []
        return Cell(reward, sum(n for (s, _), n in given.items() if not skill or s == skill), tuple(actions))

    named = [skill for skill in skills if skill]
    return tuple(RewardRow(skill, tuple(cell(skill, round_) for round_ in rounds)) for skill in ("", *named))


def decisions_by_round(rewards: Rewards, lessons: Mapping[int, Lesson]) -> tuple[RoundDecisions, ...]:
    """Every round whose lesson has been written."""
    found = []
    for round_, lesson in sorted(lessons.items()):
        earned = dict(rewards[round_ - 1]) if round_ <= len(rewards) else {}
        earned.pop("", None)
        rows = tuple((decision, earned.pop(decision.skill, None)) for decision in lesson.decisions)
        actions = dict(sorted(Counter(decision.action for decision in lesson.decisions).items()))
        found.append(RoundDecisions(round_, len(lesson.examples), actions, rows, tuple(earned.items())))
    return tuple(found)
