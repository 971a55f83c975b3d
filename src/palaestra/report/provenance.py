"""The part of a report that shows what a run was made with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.report.figures import NOTHING
from palaestra.runs.provenance import read_provenance


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


def provenance_part(folder: Path) -> ProvenancePart | None:
    """The provenance of the run in `folder`; `None` if it was made by a version that wrote none."""
    found = read_provenance(folder)
    if found is None:
        return None
    started = found["started"]
    facts = (
        ("Palaestra", _checkout(started.get("palaestra", {}))),
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
            tuple((name, _write(before), _write(then)) for name, (before, then) in entry["changed"].items()),
        )
        for entry in found["resumed"]
    )
    return ProvenancePart(facts, models, _pairs(started.get("packages", {})), resumed)


def _checkout(palaestra: Mapping[str, Any]) -> str:
    version, commit = palaestra.get("version", NOTHING), palaestra.get("commit")
    if not commit:
        return f"{version}, not from a git checkout"
    return f"{version}, commit {commit}" + (", with uncommitted changes" if palaestra.get("dirty") else "")


def _pairs(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in values.items())


def _write(value: Any) -> str:
    return NOTHING if value is None else str(value)
