"""`palaestra compare`: of two runs, whose model is better on the same problems?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt, Split
from palaestra.core.statistics import Comparison
from palaestra.core.statistics import compare as compare_attempts
from palaestra.runs.run import Run

QUIET = ("device", "engine_batch", "model", "problems", "limit", "skills", "threads")
"""Settings that may differ between two evaluations without their problems being asked in another way."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: whose answers are compared, and whether there will be more of them."""

    folder: Path
    recipe: str
    task: str
    model: str
    settings: dict[str, Any]
    ended: bool
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The comparison of two runs.

    Arguments:
        notes: what a reader must know: settings that differ, problems that were asked differently or of one only.
    """

    first: Side
    second: Side
    comparison: Comparison
    notes: tuple[str, ...]


def compare(first: str | Path, second: str | Path) -> CompareResult:
    """Compare the answers of two runs, problem by problem.

    An evaluation gives all of its answers; a run that trained gives those of its last test. Nothing is asked again.

    Raises:
        RunError: a folder holds no run or no answers, or the two share no problem.

    Example:
        >>> from palaestra import compare                                   # doctest: +SKIP
        >>> compare("runs/base", "runs/tuned").comparison.gain.points       # doctest: +SKIP
    """
    one, other = _side(Path(first)), _side(Path(second))
    if one.task and other.task and one.task != other.task:
        raise RunError(f"the runs are of different tasks: {one.folder} of {one.task}, {other.folder} of {other.task}")
    comparison = compare_attempts(one.attempts, other.attempts)
    if not comparison.gain.count:
        raise RunError(
            f"{one.folder} and {other.folder} share no problem with a score; were split, seed and skills the same?"
        )
    return CompareResult(one, other, comparison, tuple(_notes(one, other, comparison)))


def _side(folder: Path) -> Side:
    with Run.open(folder, read_only=True) as run:
        ended = run.summary is not None
        phases = run.store.phases()
        tested = [phase for phase in phases if phase.rpartition("/")[2] == Split.TEST]
        chosen = phases if run.recipe == "evaluate" else tested[-1:]
        if ended and run.recipe == "teach":  # Every round may have been tested; the one that is kept counts.
            chosen = [f"{(run.summary or {})['kept_round']}/{Split.TEST}"]
        attempts = tuple(attempt for phase in chosen for attempt in run.store.attempts(phase))
        if not attempts:
            raise RunError(f"{folder} holds no answers to compare: the {run.recipe} run has not tested its model")
        settings = run.settings
        task = str(settings.get("task") or "")
        model = str(settings.get("model") or settings.get("student") or "")
        return Side(folder, run.recipe, task, model, settings, ended, attempts)


def _notes(one: Side, other: Side, comparison: Comparison) -> list[str]:
    notes = [f"{side.folder} has not ended: its answers so far are compared" for side in (one, other) if not side.ended]
    asked = {attempt.problem.id: attempt.problem.messages for attempt in one.attempts}
    differently = {
        a.problem.id for a in other.attempts if a.problem.id in asked and asked[a.problem.id] != a.problem.messages
    }
    if differently:
        notes.append(f"{len(differently)} problems were asked in other words, or with other examples before them")
    if one.recipe == other.recipe == "evaluate":
        names = [name for name in one.settings if name in other.settings and name not in QUIET]
        notes += [
            f"setting '{name}' differs: {one.settings[name]!r} and {other.settings[name]!r}"
            for name in names
            if one.settings[name] != other.settings[name]
        ]
    notes += [f"left out: {count} problems ({reason})" for reason, count in comparison.unpaired.items()]
    return notes
