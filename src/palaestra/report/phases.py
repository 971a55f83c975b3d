"""Where the seconds of a train run went, and what it cost, by the kind of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from palaestra.report.appendix import Appendix, CostRow
from palaestra.report.lines import Metrics, stacked
from palaestra.runs.ledger import LedgerTotal

PHASES = {
    "model": "the policy acts", "environment": "environment: steps and rewards", "reference": "log-probs of the reference",
    "update": "learning", "evaluate": "held-out evaluation",
}  # fmt: skip
COSTS = {"load": "loading", "train": "collecting and learning", "test": "held-out evaluation", "rest": "the rest"}


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The seconds of a part of the work; `class_` is its colour in the chart, empty where it is not in it."""

    name: str
    class_: str
    seconds: float
    share: float


def is_phase(name: str) -> bool:
    return name.startswith("seconds_")


def seconds_by_phase(table: Metrics, ledger: float) -> tuple[float, tuple[PhaseRow, ...]]:
    """All seconds, and where they went, in the order in which the work is done."""
    sums: dict[str, float] = {}
    for row in table.values():
        for name, value in row.items():
            if is_phase(name):
                sums[name.removeprefix("seconds_")] = sums.get(name.removeprefix("seconds_"), 0.0) + value
    order = sorted(sums, key=lambda name: (list(PHASES).index(name) if name in PHASES else len(PHASES), name))
    # The ledger of a run that goes on lacks what is booked at its end.
    total = max(ledger, sum(sums.values()))
    rows, colour = [], 0
    for name in order:
        colour += name != "evaluate"
        class_ = "" if name == "evaluate" else f"s{(colour - 1) % 6 + 1}"
        rows.append(PhaseRow(PHASES.get(name, name), class_, sums[name], sums[name] / total if total else 0.0))
    rest = total - sum(sums.values())
    if rows and rest > 0:
        rows.append(PhaseRow("the rest: loading, checkpoints, the store", "", rest, rest / total))
    return total, tuple(rows)


def phase_chart(trained: Metrics, phases: Sequence[PhaseRow]) -> Markup | None:
    keys = {words: name for name, words in PHASES.items()}
    names = {f"seconds_{keys.get(row.name, row.name)}": row.class_ for row in phases if row.class_}
    if not names or not trained:
        return None
    label = "seconds of an iteration by phase; in all " + ", ".join(
        f"{row.name} {row.seconds:.1f}" for row in phases if row.class_
    )
    return stacked(trained, names, "seconds an iteration", label)


def costs_by_kind(appendix: Appendix) -> Appendix:
    """The costs of all iterations together: a row each would be hundreds."""
    sums: dict[str, LedgerTotal] = {}
    for row in appendix.costs:
        kind = COSTS.get(row.phase.rpartition("/")[2], row.phase)
        known = sums.get(kind)
        sums[kind] = row.total if known is None else _added(known, row.total)
    seconds = appendix.total.seconds
    costs = tuple(CostRow(kind, total, total.seconds / seconds if seconds else 0.0) for kind, total in sums.items())
    return replace(appendix, costs=costs)


def _added(one: LedgerTotal, other: LedgerTotal) -> LedgerTotal:
    return LedgerTotal(*(getattr(one, n) + getattr(other, n) for n in LedgerTotal.__dataclass_fields__))
