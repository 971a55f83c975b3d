"""The workspace of one episode: a copy of the starter files in a sandbox with a persistent shell."""

from __future__ import annotations

import os
import platform
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from palaestra.core.errors import TaskError
from palaestra.engines.models import cache_folder
from palaestra.research.judge.evaluation import SubmissionJudge, read_only_mounts, sandbox_environment
from palaestra.research.tasks.data import seed_mark
from palaestra.research.tasks.records import Grade, InvalidSubmission, TaskData
from palaestra.research.tasks.task import ResearchTask
from palaestra.runs.files import from_json, storage_errors, to_json
from palaestra.sandbox.base import WAITING, Limits, Sandbox, Shell, ShellResult

OUTPUT = 16 << 10
"""The maximum bytes of a command's output; the middle of longer output is cut."""


class Workspace:
    """Where an agent works. It shares nothing with other workspaces and is deleted when it is closed or garbage-
    collected.

    Arguments:
        sandbox: see `palaestra.research.judge.evaluation.sandbox_for`.
        data: the task's data; only the public part is mounted, read-only, in /data.
        files: copied over the starter files.

    Raises:
        SandboxError: the sandbox cannot run.
    """

    def __init__(
        self, task: ResearchTask, sandbox: Sandbox, data: TaskData, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.task = task
        limit = task.limits
        limits = Limits(
            wall_seconds=limit.command_seconds, cpu_seconds=4 * limit.seconds, memory=limit.memory,
            processes=limit.processes, open_files=1024, file_size=1 << 30, output=OUTPUT, disk=2 << 30,
        )  # fmt: skip
        self.shell: Shell = sandbox.shell(
            limits, {**task.starter_files(), **(files or {})}, sandbox_environment(task),
            read_only=read_only_mounts(task, data),
        )  # fmt: skip
        self._end = weakref.finalize(self, _end, self.shell, os.getpid())

    def execute(self, command: str, timeout: float | None = None) -> ShellResult:
        """Run a command in the shell; see `Shell.execute`."""
        return self.shell.execute(command, timeout)

    def submission(self) -> dict[str, bytes] | InvalidSubmission:
        """Copy the submission files. Symbolic links are not followed, because their targets are not the agent's files.

        Raises:
            SandboxError: the sandbox is lost.
        """
        return self.task.collect(self.shell)

    def close(self) -> None:
        """Kill everything that runs in it."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end(shell: Shell, process: int) -> None:
    if os.getpid() == process:  # A copy in a child process does not own the sandbox.
        shell.close()


_measuring = threading.Lock()


# Baselines


@dataclass(frozen=True, slots=True)
class MeasuredSolution:
    """The scores of a task's own solution, and the time to make and judge it.

    Arguments:
        files: the submission by name, kept so that the `baseline` agent need not create it again.
    """

    validation: Grade
    test: Grade
    seconds: float
    files: dict[str, str] = field(default_factory=dict)


def load_baseline(task: ResearchTask, sandbox: Sandbox, judge: SubmissionJudge) -> MeasuredSolution:
    """Return the task's baseline from the cache, or measure it.

    Raises:
        TaskError: the baseline cannot be measured.
    """
    score = task.baseline_score()
    if score is not None:
        grade = Grade(score, {task.metric.name: score})
        return MeasuredSolution(grade, grade, 0.0)
    path = _place(task)
    with _measuring:  # One measurement per process; two processes may both measure and get the same result.
        kept = read_baseline(task)
        if kept is not None:
            return _select_metric(task, kept)
        measured = measure(task, sandbox, judge, task.baseline, {})
        with storage_errors(path, "storing the baseline's score"):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".baseline-")
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(to_json(measured))
            Path(partial).replace(path)
    return _select_metric(task, measured)


def _select_metric(task: ResearchTask, measured: MeasuredSolution) -> MeasuredSolution:
    """Select the current metric; the cache holds everything that the evaluator measured."""
    name = task.metric.name
    grades = [measured.validation, measured.test]
    for grade in grades:
        if name not in grade.scores:
            raise TaskError(f"expected '{name}' among the scores of task '{task.name}'; got {', '.join(grade.scores)}")
    validation, test = (replace(grade, score=grade.scores[name]) for grade in grades)
    return replace(measured, validation=validation, test=test)


def read_baseline(task: ResearchTask) -> MeasuredSolution | None:
    """Return the task's baseline if this machine has measured it."""
    path = _place(task)
    try:
        return from_json(MeasuredSolution, path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError:
        return None  # Damaged: measure again and overwrite.


def measure(
    task: ResearchTask, sandbox: Sandbox, judge: SubmissionJudge, command: str, files: dict[str, bytes]
) -> MeasuredSolution:
    """Create a submission in a fresh workspace with `command` and judge it on both splits.

    Arguments:
        files: copied over the starter files, for example those of the reference solution.

    Raises:
        TaskError: the command fails, or its result cannot be judged.
    """
    start, maker = time.perf_counter(), f"the result of '{command}'" if command else "the starter files"
    with Workspace(task, sandbox, judge.data, files) as workspace:
        if command:
            result = workspace.execute(command, WAITING * task.limits.command_seconds)  # The machine may be busy.
            if not result.ok:
                raise TaskError(
                    f"'{command}' of task '{task.name}' failed ({result.note or f'exit code {result.exit_code}'}): "
                    f"{' '.join(result.text.split())[-500:]}"
                )
        submission = workspace.submission()
    seconds = time.perf_counter() - start
    grades = {}
    for split in ("validation", "test"):
        outcome = submission if not isinstance(submission, dict) else judge.judge(submission, split)
        if not isinstance(outcome, Grade):
            why = outcome.reason if isinstance(outcome, InvalidSubmission) else outcome.message
            raise TaskError(f"{maker} in task '{task.name}' cannot be judged on the {split} split: {why}")
        grades[split] = outcome
    assert isinstance(submission, dict)
    kept = {name: content.decode("latin-1") for name, content in submission.items()}
    return MeasuredSolution(grades["validation"], grades["test"], seconds, kept)


def submission_files(measured: MeasuredSolution) -> dict[str, bytes]:
    """Return the submission's files."""
    return {name: text.encode("latin-1") for name, text in measured.files.items()}


def _place(task: ResearchTask) -> Path:
    """Return where the baseline is cached."""
    mark = "".join(f"-{part}" for part in (seed_mark(task), _machine()) if part)
    return cache_folder() / "research" / f"{task.name}-{task.digest()}{mark}.json"


def _machine() -> str:
    """Return what a score may depend on besides the task: the architecture and the Python version."""
    return f"{platform.machine()}-{platform.python_implementation()}{platform.python_version()}"


__all__ = ["MeasuredSolution", "load_baseline", "measure", "read_baseline", "submission_files"]
