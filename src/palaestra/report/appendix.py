"""The appendix of every report: costs, settings and provenance."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.recipes.settings import list_settings
from palaestra.report.formatting import NOTHING
from palaestra.runs.ledger import LedgerTotal, describe_cost
from palaestra.runs.provenance import read_provenance
from palaestra.runs.run import Run


@dataclass(frozen=True, slots=True)
class ResumeRow:
    """A resume: when, by which command, and what differed from the start (name, before, then)."""

    time: str
    command: str
    changes: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class ProvenancePart:
    """What `provenance.json` says: facts by name, the files of each model with their hashes, packages, resumes."""

    facts: tuple[tuple[str, str], ...]
    models: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
    packages: tuple[tuple[str, str], ...]
    resumed: tuple[ResumeRow, ...]


def read_provenance_part(folder: Path) -> ProvenancePart | None:
    """The provenance of the run in `folder`; `None` if it was made by a version that wrote none."""
    provenance = read_provenance(folder)
    if provenance is None:
        return None
    started = provenance["started"]
    facts = (
        ("Palaestra", _describe_checkout(started.get("palaestra", {}))),
        ("Python", str(started.get("python", NOTHING))),
        ("Platform", str(started.get("platform", NOTHING))),
        ("Accelerator", str(started.get("accelerator") or "none")),
        ("Started", str(started.get("time", NOTHING))),
        ("Command", shlex.join(started.get("command", ()))),
    )
    models = tuple(
        (
            name,
            hashes["sha256"] if hashes else "the files are not on this machine",
            _pairs(hashes["files"] if hashes else {}),
        )
        for name, hashes in started.get("models", {}).items()
    )
    resumed = tuple(
        ResumeRow(
            str(entry["time"]),
            shlex.join(entry["command"]),
            tuple(
                (name, _format_change(before), _format_change(then))
                for name, (before, then) in entry["changed"].items()
            ),
        )
        for entry in provenance["resumed"]
    )
    return ProvenancePart(facts, models, _pairs(started.get("packages", {})), resumed)


def _describe_checkout(palaestra: Mapping[str, Any]) -> str:
    version, commit = palaestra.get("version", NOTHING), palaestra.get("commit")
    if not commit:
        return f"{version}, not from a git checkout"
    return f"{version}, commit {commit}" + (", with uncommitted changes" if palaestra.get("dirty") else "")


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in values.items())


def _format_change(value: Any) -> str:
    return NOTHING if value is None else str(value)


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


def make_appendix(run: Run, kind: type[Any], unpriced_phases: tuple[str, ...] = ()) -> Appendix:
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
    return Appendix(costs, total, setting_rows(run.settings, kind), read_provenance_part(run.folder), unpriced)


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
        rows.append(SettingRow(name, _format_value(value), help_, name in known and value != plain))
    return tuple(rows)


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(part) for part in value) or "(none)"
    return "(empty)" if value == "" else str(value)
