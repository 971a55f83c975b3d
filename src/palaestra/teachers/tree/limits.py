"""Enforce limits on the actions of a policy: no negative count, none above a cap, and the exact size of the lesson.

The reason of a changed action says what was changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from palaestra.core.errors import SettingsError
from palaestra.teachers.simple import share_out
from palaestra.teachers.tree.records import Branch, TreeAction, TreeState

MOST_ASKED = 1_000_000
"""Larger requests are reduced to this, so that proportions can be computed."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """The limits of one lesson.

    Arguments:
        cap: the maximum fraction of a lesson for one skill. It applies only if there are enough skills that are not
            mastered to fill a lesson.
        subskill_cap: the maximum fraction for one subskill; the excess stays unspent.
        max_subskills: maximum open subskills per skill; 0: no limit.
        open_at_once: maximum subskills that a skill opens per round; 0: no limit.
    """

    cap: float = 0.2
    subskill_cap: float = 1.0
    max_subskills: int = 0
    open_at_once: int = 2

    def __post_init__(self) -> None:
        if not (0 < self.cap <= 1 and 0 < self.subskill_cap <= 1):
            raise SettingsError(
                f"cap and subskill_cap must be above 0 and at most 1; got {self.cap} and {self.subskill_cap}"
            )
        if self.max_subskills < 0 or self.open_at_once < 0:
            raise SettingsError(
                "max_subskills and open_at_once must be at least 0 (0: no limit); "
                f"got {self.max_subskills} and {self.open_at_once}"
            )

    def most(self, tree: TreeState, size: int) -> int:
        """Maximum examples of one skill."""
        return math.ceil(size * self.cap) if self.cap * len(tree.weak or tree.branches) >= 1 else size

    def most_of_subskill(self, size: int) -> int:
        """Maximum examples of one subskill."""
        return math.ceil(size * self.subskill_cap)

    def room(self, branch: Branch) -> int:
        """The number of subskills of a skill that may be opened now."""
        closed = len(branch.closed)
        at_once = self.open_at_once or closed
        left = self.max_subskills - len(branch.opened) if self.max_subskills else closed
        return max(0, min(closed, at_once, left))


def enforce(tree: TreeState, actions: Sequence[TreeAction], size: int, limits: TreeLimits) -> list[TreeAction]:
    """Change actions to comply with the limits: at most one per skill, `size` examples in total.

    Unknown skills and subskills, and subskills that may not be opened, are refused; negative counts become 0. The
    rest is scaled to the size of the lesson under the caps. Remaining examples are spread evenly over other subskills.
    Fewer than `size` examples result only if `subskill_cap` or `max_subskills` leave no room.
    """
    asked, refused = _read_actions(tree, actions, limits)
    most, leaf_most = limits.most(tree, size), limits.most_of_subskill(size)
    shares = share_out(
        size,
        {name: float(sum(request.counts.values())) for name, request in asked.items()},
        {name: min(most, leaf_most * sum(1 for n in request.counts.values() if n)) for name, request in asked.items()},
    )
    for name, share in shares.items():
        asked[name].take(share, leaf_most)
    _spend_rest(size - sum(shares.values()), asked, most, leaf_most, limits)
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

    def take(self, share: int, leaf_most: int) -> None:
        counts = {name: float(count) for name, count in self.counts.items()}
        self.given = share_out(share, counts, leaf_most)

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
        count = max(0, min(MOST_ASKED, wanted))
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


def _spend_rest(rest: int, asked: Mapping[str, _Request], most: int, leaf_most: int, limits: TreeLimits) -> None:
    """Spread remaining examples evenly over weak skills (open subskills, then new ones), then over all skills."""
    weak = {name: request for name, request in asked.items() if not request.branch.mastered}
    for several, opening in ((weak, False), (weak, True), (asked, True)):
        if rest <= 0:
            return
        usable = {name: _usable(request, limits, opening) for name, request in several.items()}
        room = {
            name: min(most - request.spent, sum(leaf_most - request.given.get(part, 0) for part in usable[name]))
            for name, request in several.items()
        }
        for name, share in share_out(rest, dict.fromkeys(several, 1.0), room).items():
            request = several[name]
            left = {part: leaf_most - request.given.get(part, 0) for part in usable[name]}
            for part, count in share_out(share, dict.fromkeys(left, 1.0), left).items():
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
