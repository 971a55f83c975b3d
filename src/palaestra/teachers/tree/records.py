"""The tree of a skill-tree teacher, built from the student's state; its actions; and the rewards of skills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from palaestra.core.records import Attempt, Report
from palaestra.core.statistics import Gain, measure_gain

if TYPE_CHECKING:
    from palaestra.envs.lesson.state import StudentState


MASTERED = 0.9
"""The accuracy from which a skill counts as mastered."""
PRIOR_COUNT = 4.0
"""The weight of the skill's accuracy in the estimate of a subskill's, in observations."""
UNKNOWN = 0.5
"""The assumed accuracy if nothing was scored."""


@dataclass(frozen=True, slots=True)
class Count:
    """Correct answers among the scored ones."""

    correct: int = 0
    count: int = 0

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A subskill.

    Arguments:
        given: examples in each finished round.
        measured: validation counts before the first round, and after each.
        open: it has data, or its skill is mastered.
    """

    name: str
    given: tuple[int, ...]
    measured: tuple[Count, ...]
    open: bool

    @property
    def total(self) -> int:
        return sum(self.given)


@dataclass(frozen=True, slots=True)
class Branch:
    """A skill with its subskills; a skill without subskills has one with the name `""`."""

    name: str
    given: tuple[int, ...]
    measured: tuple[Count, ...]
    leaves: tuple[Leaf, ...]

    @property
    def total(self) -> int:
        return sum(self.given)

    @property
    def accuracy(self) -> float:
        """Current validation accuracy; `UNKNOWN` if nothing was scored."""
        return _fill_unknown(self.measured[-1].accuracy)

    @property
    def before(self) -> float:
        """Validation accuracy before the first round."""
        return _fill_unknown(self.measured[0].accuracy)

    @property
    def mastered(self) -> bool:
        return self.accuracy >= MASTERED

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The change of the skill's validation accuracy in each round; `None` if nothing was scored."""
        changes: list[float | None] = []
        for first, second in pairwise(self.measured):
            scored = first.accuracy is not None and second.accuracy is not None
            changes.append(_fill_unknown(second.accuracy) - _fill_unknown(first.accuracy) if scored else None)
        return tuple(changes)

    @property
    def opened(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.open)

    @property
    def closed(self) -> tuple[Leaf, ...]:
        """Subskills without data, the lowest accuracy first."""
        closed = (leaf for leaf in self.leaves if not leaf.open)
        return tuple(sorted(closed, key=lambda leaf: (self.estimate_accuracy(leaf), leaf.name)))

    def leaf(self, name: str) -> Leaf | None:
        return next((leaf for leaf in self.leaves if leaf.name == name), None)

    def estimate_accuracy(self, leaf: Leaf, place: int = -1) -> float:
        """Estimate a subskill's accuracy, shrunk towards its skill's, because it has few problems.

        Arguments:
            place: the measurement; 0: before the first round, -1: the last.
        """
        parent, own = _fill_unknown(self.measured[place].accuracy), leaf.measured[place]
        return (own.correct + PRIOR_COUNT * parent) / (own.count + PRIOR_COUNT)


@dataclass(frozen=True, slots=True)
class TreeState:
    """All skills of a task with their history, as a teacher sees them.

    Arguments:
        round: the number of finished rounds.
        budget: examples that may still be given, including this lesson.
    """

    branches: tuple[Branch, ...]
    round: int = 0
    budget: int = 0

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.branches)

    def branch(self, name: str) -> Branch | None:
        return next((branch for branch in self.branches if branch.name == name), None)

    @property
    def weak(self) -> tuple[Branch, ...]:
        """Skills that are not mastered."""
        return tuple(branch for branch in self.branches if not branch.mastered)


@dataclass(frozen=True, slots=True)
class TreeAction:
    """Examples for the subskills of one skill.

    Arguments:
        allocation: examples by subskill.
        kind: `explore` may open subskills; `exploit` gives examples to open ones.
    """

    skill: str
    allocation: Mapping[str, int]
    reason: str
    kind: Literal["explore", "exploit"] = "exploit"


def build_tree(
    state: StudentState,
    skills: Mapping[str, Sequence[str]],
    more: Mapping[str, Sequence[str]] | None = None,
) -> TreeState:
    """Build the tree of a state.

    Arguments:
        skills: the task's skills with their subskills.
        more: further subskills by skill. Those with data are in the history.
    """
    reports = (state.before, *(past.report for past in state.history[:-1]), state.report)
    reports = reports if state.history else (state.report,)
    given = [past.allocation for past in state.history]
    return grow(skills, reports, given, state.budget, more)


def grow(
    skills: Mapping[str, Sequence[str]],
    reports: Sequence[Report],
    given: Sequence[Mapping[str, Mapping[str, int]]],
    budget: int = 0,
    more: Mapping[str, Sequence[str]] | None = None,
) -> TreeState:
    """Build the tree of an episode from its reports.

    Arguments:
        reports: validation before the first round, and after each.
        given: examples by skill and subskill in each round.
    """
    return TreeState(
        tuple(_branch(skill, parts, reports, given, (more or {}).get(skill, ())) for skill, parts in skills.items()),
        len(given),
        budget,
    )


def _branch(
    skill: str,
    parts: Sequence[str],
    reports: Sequence[Report],
    given: Sequence[Mapping[str, Mapping[str, int]]],
    more: Sequence[str],
) -> Branch:
    rounds = [allocation.get(skill, {}) for allocation in given]
    seen = [part for allocation in rounds for part in allocation if part]
    names = tuple(dict.fromkeys((*parts, *seen, *more))) or ("",)
    whole = [_slice(report, skill) for report in reports]
    measured = tuple(_count(report) for report in whole)
    mastered = _fill_unknown(measured[-1].accuracy) >= MASTERED
    leaves = []
    for name in names:
        counts = tuple(allocation.get(name, 0) for allocation in rounds)
        # The only leaf of a skill without subskills has the counts of the skill.
        own = tuple(_count(_slice(report, name)) for report in whole) if name else measured
        leaves.append(Leaf(name, counts, own, mastered or any(counts)))
    return Branch(skill, tuple(sum(allocation.values()) for allocation in rounds), measured, tuple(leaves))


def _slice(report: Report | None, name: str) -> Report | None:
    if report is None:
        return None
    return next((part for part in report.slices if part.name == name), None)


def _count(report: Report | None) -> Count:
    return Count(report.correct, report.count) if report is not None else Count()


def _fill_unknown(accuracy: float | None) -> float:
    return UNKNOWN if accuracy is None else accuracy


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
