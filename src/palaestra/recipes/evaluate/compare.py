"""`palaestra compare`: compare the models of two runs on the same problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt, Json, Split
from palaestra.core.statistics import Comparison
from palaestra.core.statistics import compare as compare_attempts
from palaestra.recipes.runs import PERCENT, NotebookResult, name_interval, to_percent
from palaestra.runs.run import Run

IGNORED = (
    "device", "engine_batch", "model", "problems", "limit", "skills", "threads", "executor", "worker_cpus", "worker_gpus",
    "worker_memory", "tags",
)  # fmt: skip
"""Settings of two evaluations that may differ without changing how a problem is asked."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs, with the attempts that are compared."""

    folder: Path
    recipe: str
    task: str
    model: str
    settings: Json
    ended: bool
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CompareResult(NotebookResult):
    """The comparison of two runs.

    Arguments:
        notes: caveats: settings that differ, problems that were asked differently or in one run only.
    """

    first: ComparedRun
    second: ComparedRun
    comparison: Comparison
    notes: tuple[str, ...]

    @property
    def summary(self) -> Json:
        """The comparison with the keys of a run's summary: accuracies in percent, the gain in percentage points."""
        before, after, gain = self.comparison.first, self.comparison.second, self.comparison.gain
        return {
            "recipe": "compare",
            "before": to_percent(before.accuracy),
            "after": to_percent(after.accuracy),
            **name_interval("gain", *(round(value, 2) for value in (gain.points, gain.low, gain.high))),
            "unit": PERCENT,
            "seconds": None,
            "problems": gain.count,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        numbers = {name: self.summary[name] for name in ("before", "after", "gain", "gain_low", "gain_high")}
        return f"CompareResult({', '.join(f'{name}={value!r}' for name, value in numbers.items())})"


def compare(first: str | Path, second: str | Path) -> CompareResult:
    """Compare the stored answers of two runs, problem by problem. No model is called.

    All answers of an evaluation are compared; of a training run, those of its last test.

    Raises:
        RunError: a folder contains no run or no answers, or the runs have no problem in common.

    Example:
        >>> from palaestra import compare                                   # doctest: +SKIP
        >>> compare("runs/base", "runs/tuned").comparison.gain.points       # doctest: +SKIP
    """
    before, after = _read(Path(first)), _read(Path(second))
    if before.task and after.task and before.task != after.task:
        raise RunError(
            f"expected two runs on one task; {before.folder} is on {before.task}, {after.folder} on {after.task}"
        )
    comparison = compare_attempts(before.attempts, after.attempts)
    if not comparison.gain.count:
        raise RunError(
            f"{before.folder} and {after.folder} have no scored problem in common; use the same split, seed and skills"
        )
    return CompareResult(before, after, comparison, tuple(_list_notes(before, after, comparison)))


def _read(folder: Path) -> ComparedRun:
    with Run.open(folder, read_only=True) as run:
        ended = run.summary is not None
        phases = run.store.phases()
        tests = [phase for phase in phases if phase.rpartition("/")[2] == Split.TEST]
        selected = phases if run.recipe == "evaluate" else tests[-1:]
        if ended and run.recipe == "teach":  # Every round may have been tested; the kept round is compared.
            selected = [f"{(run.summary or {})['kept_round']}/{Split.TEST}"]
        attempts = tuple(attempt for phase in selected for attempt in run.store.attempts(phase))
        if not attempts:
            raise RunError(f"{folder} contains no answers to compare: it has not been tested on the problems of a task")
        settings = run.settings
        task = str(settings.get("task") or "")
        model = str(settings.get("model") or settings.get("student") or "")
        return ComparedRun(folder, run.recipe, task, model, settings, ended, attempts)


def _list_notes(before: ComparedRun, after: ComparedRun, comparison: Comparison) -> list[str]:
    notes = [f"{run.folder} has not ended: its answers so far are compared" for run in (before, after) if not run.ended]
    asked = {attempt.problem.id: attempt.problem.messages for attempt in before.attempts}
    differently = {
        a.problem.id for a in after.attempts if a.problem.id in asked and asked[a.problem.id] != a.problem.messages
    }
    if differently:
        notes.append(f"{len(differently)} problems had different prompts (wording or examples)")
    if before.recipe == after.recipe == "evaluate":
        names = [name for name in before.settings if name in after.settings and name not in IGNORED]
        notes += [
            f"setting '{name}' differs: {before.settings[name]!r} and {after.settings[name]!r}"
            for name in names
            if before.settings[name] != after.settings[name]
        ]
    notes += [f"left out: {count} problems ({reason})" for reason, count in comparison.unpaired.items()]
    return notes
