"""The tree of a skill-tree teacher, grown from the student's state alone, and the actions on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from palaestra.core.records import Report

if TYPE_CHECKING:
    # Only the types: a list of policies is to load no torch.
    from palaestra.envs.lesson.state import StudentState

MASTERED = 0.9
"""Accuracy from which a skill only needs to be kept alive."""
PRIOR_COUNT = 4.0
"""How many imagined observations weigh against the few real ones of a subskill."""
UNKNOWN = 0.5
"""The accuracy that is assumed where nothing was scored."""


@dataclass(frozen=True, slots=True)
class Count:
    """Answers that were right, of those that were scored."""

    correct: int = 0
    count: int = 0

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.count if self.count else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A subskill.

    Arguments:
        given: examples in each round that is over.
        measured: validation before the first round, and after each.
        open: it has been given data, or belongs to a skill that is mastered.
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
    """A skill with its subskills; a skill without any has one, called `""`."""

    name: str
    given: tuple[int, ...]
    measured: tuple[Count, ...]
    leaves: tuple[Leaf, ...]

    @property
    def total(self) -> int:
        return sum(self.given)

    @property
    def accuracy(self) -> float:
        """On validation, now; `UNKNOWN` where nothing was scored."""
        return _fill_unknown(self.measured[-1].accuracy)

    @property
    def before(self) -> float:
        """The same before the first round."""
        return _fill_unknown(self.measured[0].accuracy)

    @property
    def mastered(self) -> bool:
        return self.accuracy >= MASTERED

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """What each round changed of the skill's validation accuracy; `None` where nothing was scored."""
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
        """Subskills without data, the weakest first."""
        closed = (leaf for leaf in self.leaves if not leaf.open)
        return tuple(sorted(closed, key=lambda leaf: (self.estimate_accuracy(leaf), leaf.name)))

    def leaf(self, name: str) -> Leaf | None:
        return next((leaf for leaf in self.leaves if leaf.name == name), None)

    def estimate_accuracy(self, leaf: Leaf, place: int = -1) -> float:
        """A subskill's accuracy, drawn towards its skill's, being counted on few problems.

        Arguments:
            place: which measurement; 0 is before the first round, -1 the last.
        """
        parent, own = _fill_unknown(self.measured[place].accuracy), leaf.measured[place]
        return (own.correct + PRIOR_COUNT * parent) / (own.count + PRIOR_COUNT)


@dataclass(frozen=True, slots=True)
class TreeState:
    """All skills of a task, as far as a teacher knows them.

    Arguments:
        round: rounds that are over.
        budget: examples that may still be given, this lesson's included.
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
        """The skills that are not mastered."""
        return tuple(branch for branch in self.branches if not branch.mastered)


@dataclass(frozen=True, slots=True)
class Explore:
    """Open subskills of a skill.

    Arguments:
        allocation: examples for the new subskills, and for open ones beside them.
        subskills: the new ones.
    """

    skill: str
    allocation: Mapping[str, int]
    reason: str
    subskills: tuple[str, ...] = ()
    kind: str = "explore"


@dataclass(frozen=True, slots=True)
class Exploit:
    """Give examples to subskills of a skill that are open."""

    skill: str
    allocation: Mapping[str, int]
    reason: str
    kind: str = "exploit"


Action = Explore | Exploit


def build_tree(
    state: StudentState,
    skills: Mapping[str, Sequence[str]],
    more: Mapping[str, Sequence[str]] | None = None,
) -> TreeState:
    """The tree in a state.

    Arguments:
        skills: the task's skills with their subskills.
        more: subskills beyond the task's, by skill. Those that were given data are found in the history.
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
    """The tree of an episode: for a state, and for a report from a run's store.

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
        # A skill without subskills is its own leaf, measured as it is.
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
