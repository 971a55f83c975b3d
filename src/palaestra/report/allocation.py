"""Where the data went: examples by skill and round, with the subskills inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from palaestra.report.figures import plural, shorten
from palaestra.report.svg import drawing, element, line, text

Allocation = Mapping[int, Mapping[tuple[str, str], int]]
"""Examples by round, and in it by skill and subskill."""

LABEL, TOTAL, ROW = 150, 46, 22


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """The examples of a subskill by round, in the order of the rounds."""

    skill: str
    subskill: str
    by_round: tuple[int, ...]
    heat: tuple[int, ...]
    """Each of `by_round` as a step from 0 (none) to 5 (the most of all)."""

    @property
    def total(self) -> int:
        return sum(self.by_round)


def examples_of(allocation: Allocation, skill: str, subskill: str | None = None) -> int:
    """Examples of a skill (of one of its subskills, if given) over all rounds."""
    return sum(
        n for parts in allocation.values() for (s, p), n in parts.items() if s == skill and subskill in (None, p)
    )


def allocation_rows(allocation: Allocation) -> list[AllocationRow]:
    """A row for each subskill that was given an example."""
    keys = sorted({key for parts in allocation.values() for key in parts})
    table = {key: tuple(allocation[round_].get(key, 0) for round_ in sorted(allocation)) for key in keys}
    most = max((n for row in table.values() for n in row), default=1)
    return [AllocationRow(*key, row, tuple(-(-5 * n // most) for n in row)) for key, row in table.items()]


def allocation_bars(allocation: Allocation, skills: Sequence[str]) -> Markup:
    """A bar for each skill and round, as long as its examples are many, cut at its subskills."""
    rounds = sorted(allocation)
    sums = {(skill, r): sum(n for (s, _), n in allocation[r].items() if s == skill) for skill in skills for r in rounds}
    column_width = 130 if len(rounds) <= 5 else 84
    unit = (column_width - 34) / max([1, *sums.values()])
    width, height = LABEL + column_width * len(rounds) + TOTAL, 26 + ROW * len(skills) + 24
    parts = [text(width - 4, 15, "all", "head", "end")]
    for column, round_ in enumerate(rounds):
        left = LABEL + column_width * column
        parts += [text(left, 15, f"round {round_}", "head"), line((left, 22), (left, 26 + ROW * len(skills)), "axis")]
        parts.append(text(left, height - 6, plural(sum(allocation[round_].values()), "example"), "tick"))
    parts.append(text(width - 4, height - 6, str(sum(sums.values())), "tick", "end"))
    for row, skill in enumerate(skills):
        top = 26 + ROW * row
        parts.append(text(0, top + 15, shorten(skill or "no skill", 20), "label"))
        for column, round_ in enumerate(rounds):
            x, count = LABEL + column_width * column + 1.0, sums[skill, round_]
            inside = sorted((p, n) for (s, p), n in allocation[round_].items() if s == skill)
            for k, (subskill, n) in enumerate(inside):
                hint = element(
                    "title", f"{skill}: {subskill or 'no subskill'}: {plural(n, 'example')} in round {round_}"
                )
                # A gap of one unit between neighbours shows where a subskill ends.
                size = {"x": x, "y": top + 4.0, "width": max(0.8, n * unit - 1), "height": ROW - 8.0}
                parts.append(element("rect", hint, class_=f"part{k % 2}", **size))
                x += n * unit
            parts.append(text(x + 4, top + 15, str(count) if count else "·", "tick"))
        parts.append(text(width - 4, top + 15, str(sum(sums[skill, r] for r in rounds)), "label", "end"))
    label = "examples by skill and round: " + "; ".join(
        f"{skill} {', '.join(str(sums[skill, r]) for r in rounds)}" for skill in skills
    )
    return drawing(width, height, label, *parts, class_="chart wide")
