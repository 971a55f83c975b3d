"""What every report ends with: what the run cost, and how it was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.recipes.settings import list_settings
from palaestra.report.provenance import ProvenancePart, provenance_part
from palaestra.runs.ledger import LedgerTotal, describe_cost
from palaestra.runs.run import Run


@dataclass(frozen=True, slots=True)
class CostRow:
    """The cost of a phase, its share of all seconds, and whether some of its calls have no known price."""

    phase: str
    total: LedgerTotal
    share: float
    unpriced: bool = False


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as the run used it; `changed` where that is not the default."""

    name: str
    value: str
    help: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Appendix:
    """Costs by phase with their sum, the settings, and what the run was made with."""

    costs: tuple[CostRow, ...]
    total: LedgerTotal
    settings: tuple[SettingRow, ...]
    provenance: ProvenancePart | None
    unpriced: int = 0
    """Calls of services whose price is not known: the money does not include them."""

    @property
    def money(self) -> str:
        calls = self.unpriced or sum(row.total.calls for row in self.costs if row.unpriced)
        return describe_cost({"cost": self.total.money, "unpriced_calls": calls})


def appendix_of(run: Run, kind: type[Any], unpriced_phases: tuple[str, ...] = ()) -> Appendix:
    """The appendix of a run whose settings are of `kind`, a dataclass.

    Arguments:
        unpriced_phases: endings of the phases with calls whose price is not known.
    """
    total = run.store.total()
    costs = tuple(
        CostRow(
            phase,
            cost,
            cost.seconds / total.seconds if total.seconds else 0.0,
            bool(cost.calls) and phase.endswith(unpriced_phases),
        )
        for phase, cost in run.store.costs().items()
    )
    unpriced = int((run.summary or {}).get("unpriced_calls") or 0)
    return Appendix(costs, total, setting_rows(run.settings, kind), provenance_part(run.folder), unpriced)


def setting_rows(settings: Mapping[str, Any], kind: type[Any]) -> tuple[SettingRow, ...]:
    """Settings beside what the fields of `kind` say of them."""
    known = {name: (default, help_) for name, default, help_ in list_settings(kind)}
    rows = []
    # Hyperparameters are documented by the config of the algorithm; here each is a row of its own.
    values = {**settings, **settings.get("hyperparameters", {})}
    values.pop("hyperparameters", None)
    for name, value in values.items():
        default, help_ = known.get(name, (None, ""))
        plain = list(default) if isinstance(default, tuple) else default
        rows.append(SettingRow(name, _written(value), help_, name in known and value != plain))
    return tuple(rows)


def _written(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value) or "(none)"
    return "(empty)" if value == "" else str(value)
