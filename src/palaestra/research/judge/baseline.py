"""The baseline of a task: measured once for each machine, and kept."""

from __future__ import annotations

import os
import platform
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from palaestra.core.errors import TaskError
from palaestra.engines.models import cache_folder
from palaestra.research.judge.evaluation import Judge
from palaestra.research.tasks.eval_seed import seed_mark
from palaestra.research.tasks.records import Grade, Unusable
from palaestra.research.tasks.task import ResearchTask
from palaestra.research.workspace.workspace import Workspace
from palaestra.runs.guard import storage_errors
from palaestra.runs.records import from_json, to_json
from palaestra.sandbox.base import Sandbox

_measuring = threading.Lock()


@dataclass(frozen=True, slots=True)
class Measured:
    """What a solution of a task's own scored, and how long it took to make and to judge.

    Arguments:
        files: what it handed in, by name; kept so that `baseline` agents need not make it again.
    """

    validation: Grade
    test: Grade
    seconds: float
    files: dict[str, str] = field(default_factory=dict)


def baseline_of(task: ResearchTask, sandbox: Sandbox, judge: Judge) -> Measured:
    """The task's baseline: from the cache, or measured now.

    Raises:
        TaskError: it cannot be measured; says why.
    """
    recorded = task.recorded()
    if recorded is not None:
        grade = Grade(recorded, {task.metric.name: recorded})
        return Measured(grade, grade, 0.0)
    path = _place(task)
    with _measuring:  # Once for all threads; two processes may both measure, and find the same.
        kept = kept_baseline(task)
        if kept is not None:
            return _counted(task, kept)
        found = measure(task, sandbox, judge, task.baseline, {})
        with storage_errors(path, "keeping the baseline's score"):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".baseline-")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(to_json(found))
            Path(partial).replace(path)
    return _counted(task, found)


def _counted(task: ResearchTask, measured: Measured) -> Measured:
    """By the metric that counts now: what is kept has all that the evaluator gave."""
    name = task.metric.name
    grades = [measured.validation, measured.test]
    for grade in grades:
        if name not in grade.scores:
            raise TaskError(
                f"the evaluator of task '{task.name}' gives no '{name}'; it gives {', '.join(grade.scores)}"
            )
    validation, test = (replace(grade, score=grade.scores[name]) for grade in grades)
    return replace(measured, validation=validation, test=test)


def kept_baseline(task: ResearchTask) -> Measured | None:
    """The task's baseline, if this machine has measured it."""
    path = _place(task)
    try:
        return from_json(Measured, path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError:
        return None  # Damaged: to be measured again, and written over.


def measure(task: ResearchTask, sandbox: Sandbox, judge: Judge, command: str, files: dict[str, bytes]) -> Measured:
    """Make a submission in a fresh workspace by `command`, and judge it on both splits.

    Arguments:
        files: put over the starter files, for example those of the reference solution.

    Raises:
        TaskError: the command fails, or what it makes cannot be judged.
    """
    start, maker = time.perf_counter(), f"what '{command}' made" if command else "the starter files"
    with Workspace(task, sandbox, judge.data, files) as workspace:
        if command:
            result = workspace.execute(command)
            if not result.ok:
                raise TaskError(
                    f"'{command}' of task '{task.name}' failed ({result.note or f'exit code {result.exit_code}'}): "
                    f"{' '.join(result.text.split())[-500:]}"
                )
        made = workspace.submission()
    seconds = time.perf_counter() - start
    grades = {}
    for split in ("validation", "test"):
        outcome = made if not isinstance(made, dict) else judge.judge(made, split)
        if not isinstance(outcome, Grade):
            why = outcome.reason if isinstance(outcome, Unusable) else outcome.message
            raise TaskError(f"{maker} in task '{task.name}' cannot be judged on the {split} split: {why}")
        grades[split] = outcome
    assert isinstance(made, dict)
    kept = {name: content.decode("latin-1") for name, content in made.items()}
    return Measured(grades["validation"], grades["test"], seconds, kept)


def submission_of(measured: Measured) -> dict[str, bytes]:
    """What was handed in."""
    return {name: text.encode("latin-1") for name, text in measured.files.items()}


def _place(task: ResearchTask) -> Path:
    """Where the baseline's score is kept."""
    mark = "".join(f"-{part}" for part in (seed_mark(task), _machine()) if part)
    return cache_folder() / "research" / f"{task.name}-{task.digest()}{mark}.json"


def _machine() -> str:
    """What a score may depend on beside the task: the architecture and the Python."""
    return f"{platform.machine()}-{platform.python_implementation()}{platform.python_version()}"


__all__ = ["Measured", "baseline_of", "kept_baseline", "measure", "submission_of"]
