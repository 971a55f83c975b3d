"""The tree of a skill-tree teacher, its actions within their limits, and the rewards of skills.

The reason of an action that a limit changed says what was changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from palaestra.core.records import Attempt, Report
from palaestra.core.settings import check_ranges, setting
from palaestra.core.statistics import Gain, measure_gain
from palaestra.envs.lesson.state import StudentState
from palaestra.teachers.simple import share_out

_MASTERED = 0.9
"""The accuracy from which a skill counts as mastered."""
_PRIOR_COUNT = 4.0
"""The weight of the skill's accuracy in the estimate of a subskill's, in observations."""
_UNKNOWN = 0.5
"""The assumed accuracy if nothing was scored."""
_MAX_REQUESTED = 1_000_000
"""Larger requests are reduced to this, so that proportions can be computed."""


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
        """Current validation accuracy; `_UNKNOWN` if nothing was scored."""
        return _fill_unknown(self.measured[-1].accuracy)

    @property
    def before(self) -> float:
        """Validation accuracy before the first round."""
        return _fill_unknown(self.measured[0].accuracy)

    @property
    def mastered(self) -> bool:
        return self.accuracy >= _MASTERED

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The change of the skill's validation accuracy in each round; `None` if nothing was scored."""
        pairs = pairwise(count.accuracy for count in self.measured)
        return tuple(None if old is None or new is None else new - old for old, new in pairs)

    @property
    def opened(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.leaves if leaf.open)

    @property
    def closed(self) -> tuple[Leaf, ...]:
        """Subskills without data, the lowest accuracy first; equal ones in the task's order, which begins with easy ones."""
        return tuple(sorted((leaf for leaf in self.leaves if not leaf.open), key=self.estimate_accuracy))

    def leaf(self, name: str) -> Leaf | None:
        return next((leaf for leaf in self.leaves if leaf.name == name), None)

    def estimate_accuracy(self, leaf: Leaf, place: int = -1) -> float:
        """Estimate a subskill's accuracy, shrunk towards its skill's, because it has few problems.

        Arguments:
            place: the measurement; 0: before the first round, -1: the last.
        """
        parent, own = _fill_unknown(self.measured[place].accuracy), leaf.measured[place]
        return (own.correct + _PRIOR_COUNT * parent) / (own.count + _PRIOR_COUNT)


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
    state: StudentState, skills: Mapping[str, Sequence[str]], more: Mapping[str, Sequence[str]] | None = None
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
    whole = [_find(report, skill) for report in reports]
    measured = tuple(Count(report.correct, report.count) for report in whole)
    mastered = _fill_unknown(measured[-1].accuracy) >= _MASTERED
    leaves = []
    for name in names:
        counts = tuple(allocation.get(name, 0) for allocation in rounds)
        # The only leaf of a skill without subskills has the counts of the skill.
        parts_of_skill = [_find(report, name) for report in whole]
        own = tuple(Count(part.correct, part.count) for part in parts_of_skill) if name else measured
        leaves.append(Leaf(name, counts, own, mastered or any(counts)))
    return Branch(skill, tuple(sum(allocation.values()) for allocation in rounds), measured, tuple(leaves))


def _find(report: Report, name: str) -> Report:
    """The slice of a report; an empty one if nothing was asked."""
    return next((part for part in report.slices if part.name == name), Report(name, None, 0.0, 1.0, 0, 0))


def _fill_unknown(accuracy: float | None) -> float:
    return _UNKNOWN if accuracy is None else accuracy


def skill_rewards(rounds: Sequence[Sequence[Attempt]]) -> dict[str, tuple[Gain, ...]]:
    """The gain of each round by skill, in points with its interval.

    They equal `Branch.rewards` if every problem was scored both times. Here a problem with an infrastructure failure either
    time does not count.

    Arguments:
        rounds: the attempts on validation problems before the first round, and after each.
    """
    gains = {}
    for skill in dict.fromkeys(attempt.problem.skill for attempts in rounds for attempt in attempts):
        own = [[attempt for attempt in attempts if attempt.problem.skill == skill] for attempts in rounds]
        gains[skill] = tuple(measure_gain(before, after) for before, after in pairwise(own))
    return gains


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The limits of one lesson.

    Arguments:
        cap: the maximum fraction of a lesson for one skill. It applies only if there are enough skills that are not
            mastered to fill a lesson.
        open_at_once: maximum subskills that a skill opens per round; 0: no limit.
    """

    cap: float = setting(0.2, above=0, high=1)
    """Maximum fraction of a lesson for one skill."""
    open_at_once: int = setting(2, low=0)
    """Maximum subskills that a skill opens per round; 0: no limit."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def most(self, tree: TreeState, size: int) -> int:
        """Maximum examples of one skill."""
        return math.ceil(size * self.cap) if self.cap * len(tree.weak or tree.branches) >= 1 else size

    def room(self, branch: Branch) -> int:
        """The number of subskills of a skill that may be opened now."""
        closed = len(branch.closed)
        return min(closed, self.open_at_once or closed)


def enforce(tree: TreeState, actions: Sequence[TreeAction], size: int, limits: TreeLimits) -> list[TreeAction]:
    """Change actions to comply with the limits: at most one per skill, `size` examples in total.

    Unknown skills and subskills, and subskills that may not be opened, are refused; negative counts become 0. The
    rest is scaled to the size of the lesson under the cap. Remaining examples are spread evenly over other subskills.
    """
    asked, refused = _read_actions(tree, actions, limits)
    most = limits.most(tree, size)
    shares = share_out(size, {name: float(sum(request.counts.values())) for name, request in asked.items()}, most)
    for name, share in shares.items():
        asked[name].given = share_out(share, {part: float(n) for part, n in asked[name].counts.items()})
    _spend_rest(size - sum(shares.values()), asked, most, limits)
    taken = [request.action(size) for request in asked.values() if request.spent]
    if refused and taken:
        first = taken[0]
        taken[0] = replace(first, reason=f"{first.reason}; refused: {'; '.join(refused)}")
    return taken


@dataclass(slots=True)
class _Request:
    """The request of a policy for one skill, and the examples that it gets."""

    branch: Branch
    reason: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    total: int = 0
    notes: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)

    @property
    def spent(self) -> int:
        return sum(self.given.values())

    @property
    def new(self) -> tuple[str, ...]:
        """Subskills that the given examples open."""
        closed = {leaf.name for leaf in self.branch.closed}
        return tuple(name for name, count in self.given.items() if count and name in closed)

    def action(self, size: int) -> TreeAction:
        given = {name: count for name, count in self.given.items() if count}
        if self.total != self.spent or any(self.counts.get(name, 0) != count for name, count in given.items()):
            self.notes.append(f"{self.spent} of the lesson's {size} examples instead of {self.total}")
        limits = f"limits: {', '.join(self.notes)}" if self.notes else ""
        reason = "; ".join(part for part in (self.reason, limits) if part)
        return TreeAction(self.branch.name, given, reason, "explore" if self.new else "exploit")


def _read_actions(
    tree: TreeState, actions: Iterable[TreeAction], limits: TreeLimits
) -> tuple[dict[str, _Request], list[str]]:
    """Read the requests for each skill of the tree. Returns them with the refusals."""
    asked = {branch.name: _Request(branch) for branch in tree}
    seen: set[str] = set()
    refused: list[str] = []
    for action in actions:
        if action.skill not in asked:
            refused.append(f"there is no skill '{action.skill}'")
        elif action.skill in seen:
            refused.append(f"a second action for '{action.skill}'")
        else:
            seen.add(action.skill)
            _read(asked[action.skill], action, limits)
    # Notes of an action without examples would not appear in any reason.
    lost = [request for request in asked.values() if request.notes and not request.total]
    return asked, refused + [f"{request.branch.name}: {', '.join(request.notes)}" for request in lost]


def _read(request: _Request, action: TreeAction, limits: TreeLimits) -> None:
    """Read the valid part of an action into the request."""
    request.reason = action.reason
    room = limits.room(request.branch)
    for name, wanted in action.allocation.items():
        leaf = request.branch.leaf(name)
        count = max(0, min(_MAX_REQUESTED, wanted))
        opens = leaf is not None and not leaf.open and count > 0
        if wanted < 0:
            request.notes.append(f"{wanted} for {name} counts as 0")
        if leaf is None:
            request.notes.append(f"there is no subskill '{name}'")
        elif opens and (action.kind != "explore" or not room):
            request.notes.append(f"{name} may not be opened now")
        else:
            room -= opens
            request.counts[name] = count
    request.total = sum(request.counts.values())


def _spend_rest(rest: int, asked: Mapping[str, _Request], most: int, limits: TreeLimits) -> None:
    """Spread remaining examples evenly over weak skills (open subskills, then new ones), then over all skills."""
    weak = {name: request for name, request in asked.items() if not request.branch.mastered}
    for several, opening in ((weak, False), (weak, True), (asked, True)):
        if rest <= 0:
            return
        parts = {name: _usable(request, limits, opening) for name, request in several.items()}
        room = {name: most - several[name].spent if parts[name] else 0 for name in parts}
        for name, share in share_out(rest, dict.fromkeys(several, 1.0), room).items():
            request = several[name]
            for part, count in share_out(share, dict.fromkeys(parts[name], 1.0)).items():
                request.given[part] = request.given.get(part, 0) + count
            rest -= share
            if share and not request.reason:
                request.reason = "no action requested these examples"


def _usable(request: _Request, limits: TreeLimits, opening: bool) -> list[str]:
    """The subskills that may get data: open ones, those being opened, and as many more as the limits allow."""
    usable = [leaf.name for leaf in request.branch.opened] + list(request.new)
    if opening:
        others = [leaf.name for leaf in request.branch.closed if leaf.name not in request.new]
        usable += others[: max(0, limits.room(request.branch) - len(request.new))]
    return usable
