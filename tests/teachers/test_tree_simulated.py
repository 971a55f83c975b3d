"""Tree policies with simulated students: the mean result of three lessons, without any training.

A simulated student masters some skills, partly knows others, and cannot learn the rest. A policy sees 12 fixed validation
problems per skill. The students differ from the curves that the bandits assume: learning starts slowly, subskills help
each other, teaching other skills causes forgetting, and trainings are random.

    python tests/teachers/test_tree_simulated.py 200     compares all policies over 200 episodes
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from palaestra.core.records import Report
from palaestra.teachers.simple import share_out
from palaestra.teachers.tree.policies import TreePolicy, make_policy
from palaestra.teachers.tree.records import TreeAction, TreeLimits, TreeState, enforce, grow

ROUNDS, SIZE, PROBLEMS = 3, 160, 12
Given = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Subskill:
    """How one subskill answers to data."""

    kind: str
    base: float
    top: float
    pace: float
    bend: float
    loss: float

    def accuracy(self, examples: float, taught: int) -> float:
        if not taught:
            return self.base
        left = float(np.exp(-((examples / self.pace) ** self.bend)))
        if self.kind == "known":
            return self.base * (1 - self.loss * min(1.5, taught / (ROUNDS * SIZE)) * left)
        start = 0.7 * self.base
        return start + (self.top - start) * (1 - left)


class Student:
    """A simulated student.

    Arguments:
        mix: the chances that a skill is mastered, known in part, out of reach.
        pace: examples after which most subskills have closed most of their gap.
        noise: by how much two trainings differ, in the logit of a subskill's accuracy.
        luck: how often the answer to a validation problem says something new in the next round.
    """

    def __init__(
        self,
        seed: int,
        mix: tuple[float, float, float] = (0.39, 0.44, 0.17),
        pace: float = 8.0,
        noise: float = 0.3,
        luck: float = 0.3,
    ) -> None:
        self.spread, self.luck = noise, luck
        draw = np.random.default_rng([seed, 1])
        self.noise = np.random.default_rng([seed, 2])
        self.skills: dict[str, dict[str, Subskill]] = {}
        for k in range(18):
            sort, count = draw.choice(["mastered", "part", "out"], p=mix), int(draw.integers(2, 5))
            known = {"mastered": count, "part": int(draw.integers(0, count)), "out": 0}[sort]
            self.skills[f"skill{k}"] = {f"part{p}": _subskill(draw, sort, p < known, pace) for p in range(count)}
        self.difficulty = {
            (s, p): draw.random(-(-PROBLEMS // len(parts))) for s, parts in self.skills.items() for p in parts
        }

    def accuracy(self, given: Given) -> dict[tuple[str, str], float]:
        taught = sum(n for parts in given.values() for n in parts.values())
        result = {}
        for skill, parts in self.skills.items():
            whole = sum(given.get(skill, {}).values())
            for name, part in parts.items():
                own = given.get(skill, {}).get(name, 0)
                result[skill, name] = part.accuracy(own + 0.1 * (whole - own), taught)
        return result

    def mean(self, given: Given) -> float:
        """The expected accuracy on a test with as many problems of each skill."""
        accuracy = self.accuracy(given)
        return float(np.mean([np.mean([accuracy[s, p] for p in parts]) for s, parts in self.skills.items()]))

    def validate(self, given: Given) -> Report:
        accuracy, slices = self.accuracy(given), []
        for skill, parts in self.skills.items():
            leaves = []
            for name in parts:
                rate = min(0.999, max(0.001, accuracy[skill, name]))
                odds = np.log(rate / (1 - rate)) + self.noise.normal(0, self.spread) * bool(given)
                hard = self.difficulty[skill, name]
                again = self.noise.random(hard.size)
                right = np.where(again < self.luck, self.noise.random(hard.size), hard) < 1 / (1 + np.exp(-odds))
                leaves.append(_report(name, int(right.sum()), hard.size))
            slices.append(_report(skill, sum(x.correct for x in leaves), sum(x.count for x in leaves), tuple(leaves)))
        return _report("validation", sum(x.correct for x in slices), sum(x.count for x in slices), tuple(slices))


def _subskill(draw: np.random.Generator, sort: str, known: bool, pace: float) -> Subskill:
    if sort == "out":
        base = float(draw.choice([0.0, 0.0, 0.05, 0.2]))
        return Subskill("out", base, base + 0.08, 40.0, 1.0, 0.0)
    if known:
        loss = draw.uniform(0.0, 0.15) if sort == "mastered" else draw.uniform(0.1, 0.6)
        return Subskill("known", draw.uniform(0.93, 1.0), 1.0, draw.uniform(2, 6), 1.0, loss)
    base = float(draw.choice([0.0, 0.0, 0.1, 0.3, 0.5]))
    return Subskill("learned", base, draw.uniform(0.8, 1), pace * draw.lognormal(0, 0.4), draw.uniform(1, 1.6), 0.0)


def _report(name: str, correct: int, count: int, slices: tuple[Report, ...] = ()) -> Report:
    return Report(name, correct / count, 0.0, 1.0, count, correct, {}, slices)


class Uniform:
    """The same for every skill and subskill: what `no_state` does."""

    open_at_once = 0

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        names = [(b.name, leaf.name) for b in tree for leaf in b.leaves]
        share = {b.name: 1.0 / len(b.leaves) for b in tree}
        order = [names[int(place)] for place in generator.permutation(len(names))]
        given: Given = {}
        for (skill, part), count in share_out(size, {key: share[key[0]] for key in order}).items():
            given.setdefault(skill, {})[part] = count
        return [TreeAction(skill, parts, "every skill gets the same", "explore") for skill, parts in given.items()]


def run_rounds(policy: TreePolicy, seed: int, **student: Any) -> float:
    """The gain of one episode, in points."""
    pupil, generator = Student(seed, **student), np.random.default_rng([seed, 3])
    limits = TreeLimits(open_at_once=policy.open_at_once)
    skills = {skill: tuple(parts) for skill, parts in pupil.skills.items()}
    reports, rounds, total = (
        [pupil.validate({})],
        [],
        {skill: dict.fromkeys(parts, 0) for skill, parts in skills.items()},
    )
    for k in range(ROUNDS):
        tree = grow(skills, reports, rounds, SIZE * (ROUNDS - k))
        actions = enforce(tree, policy.decide(tree, SIZE, limits, generator), SIZE, limits)
        rounds.append({action.skill: dict(action.allocation) for action in actions})
        for skill, parts in rounds[-1].items():
            for part, count in parts.items():
                total[skill][part] += count
        assert sum(n for parts in rounds[-1].values() for n in parts.values()) == SIZE
        reports.append(pupil.validate(total))
    return 100 * (pupil.mean(total) - pupil.mean({}))


def gains(policy: TreePolicy, episodes: int, **student: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([run_rounds(policy, seed, **student) for seed in range(episodes)])


@pytest.fixture(scope="module")
def chance() -> np.ndarray[Any, np.dtype[np.float64]]:
    return gains(make_policy("random"), 12)


@pytest.mark.parametrize("name", ["response", "threshold", "ucb", "thompson"])
def test_a_policy_that_looks_at_the_student_beats_chance(name: str, chance: Any) -> None:
    assert gains(make_policy(name), 12).mean() >= chance.mean()


@pytest.mark.parametrize("student", [{"pace": 5.0}, {"pace": 16.0}, {"mix": (0.0, 0.75, 0.25)}])
def test_a_bandit_beats_even_shares_whatever_the_student(student: dict[str, Any]) -> None:
    difference = gains(make_policy("ucb"), 8, **student) - gains(Uniform(), 8, **student)
    assert difference.mean() > 1.96 * difference.std() / len(difference) ** 0.5


SETTINGS: dict[str, dict[str, Any]] = {
    "as math-skills with nano": {},
    "slow": {"pace": 20.0},
    "fast, and noisy": {"pace": 5.0, "noise": 0.8, "luck": 0.1},
    "nothing out of reach": {"mix": (0.3, 0.7, 0.0)},
    "half out of reach": {"mix": (0.2, 0.3, 0.5)},
    "nothing known": {"mix": (0.0, 0.75, 0.25)},
}


def main(episodes: int) -> None:
    names = ["random", "threshold", "alternating", "balanced", "response", "thompson", "ucb"]
    for title, student in SETTINGS.items():
        even = gains(Uniform(), episodes, **student)
        print(f"{title}: even shares {even.mean():+.1f}")  # noqa: T201
        for name in names:
            difference = gains(make_policy(name), episodes, **student) - even
            half = 1.96 * difference.std() / episodes**0.5
            print(f"  {name:<12} {difference.mean():+.2f} +- {half:.2f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
