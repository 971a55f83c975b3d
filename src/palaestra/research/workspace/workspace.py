"""The workspace of one episode: a copy of the starter files in a sandbox with a persistent shell, and a record of each step.

The files of the workspace are read before and after a step, so that changes by programs are found as well as those by
commands. Only small text files are compared.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from palaestra.core.errors import SandboxError, TaskError
from palaestra.core.records import Failure, Json, Message, Usage, Values
from palaestra.core.text import clean_fields
from palaestra.models.registry import cache_folder
from palaestra.research.judge.evaluation import SubmissionJudge, read_only_mounts, sandbox_environment
from palaestra.research.tasks.data import seed_mark
from palaestra.research.tasks.task import Grade, InvalidSubmission, ResearchTask, TaskData
from palaestra.runs.files import from_json, storage_errors, to_json
from palaestra.sandbox.base import WAITING, Limits, Sandbox, Shell, ShellResult

MAX_FILES = 200
"""Maximum files of a workspace that are compared; in a larger one, changes are not recorded."""
MAX_BYTES = 64 << 10
"""Maximum bytes of a file that is compared."""
MAX_DIFF = 64 << 10
"""Maximum characters of a diff."""
MAX_SECONDS = 1.0
"""Maximum seconds for reading the files. A slower sandbox is not asked again in this episode."""
_IGNORED = {"__pycache__", ".git", ".ipynb_checkpoints", ".pytest_cache", "node_modules"}

ChangeKind = Literal["created", "changed", "deleted"]
_MAX_OUTPUT = 16 << 10
"""The maximum bytes of a command's output; the middle of longer output is cut."""
_measuring = threading.Lock()


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file.

    Arguments:
        path: relative to the workspace.
        diff: a unified diff without its two lines of file names.
        missing: number of characters that were cut from the end of the diff.
    """

    path: str
    kind: ChangeKind
    diff: str
    missing: int = 0

    def __post_init__(self) -> None:
        clean_fields(self, "path", "diff")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode.

    Arguments:
        episode: the index of the episode in the run, from 0.
        position: the index in the episode; 0 is its beginning, without a message of the agent.
        message: the agent's message; `None` at the beginning and for an episode that was ended from outside.
        action: the action that was read in it.
        observation: the environment's messages.
        reward: the reward of the step.
        seconds: the time of agent and environment; `thinking` is the agent's part.
        state: the state of the workspace after the step.
        agent: the agent's state after the step, besides the conversation.
        info: the environment's info: the score, the validations so far, format errors.
        stop_reason: why the episode ended with this step; empty if it goes on.
        note: a description of the reason, if any.
        failure: a failure outside the agent.
        replayed: `same` or `different` if the step was run again in a fresh workspace after a kill, compared with its
            first output; otherwise empty. `observation` is the first output in both cases, because the agent saw that
            one.
        departure: how the step differs from the recorded one that the agent `replay` repeats; empty if it does not.
        calls, usage, money: the calls of the agent's model in this step, their tokens and their price in US dollars.
        files: the text files of the workspace that this step changed.
    """

    episode: int
    position: int
    message: Message | None = None
    action: str = ""
    observation: tuple[Message, ...] = ()
    reward: float = 0.0
    seconds: float = 0.0
    thinking: float = 0.0
    state: Values = field(default_factory=dict)
    agent: Json = field(default_factory=dict)
    info: Json = field(default_factory=dict)
    stop_reason: str = ""
    note: str = ""
    failure: Failure | None = None
    replayed: str = ""
    departure: str = ""
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    money: float = 0.0
    files: tuple[FileChange, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "action", "state", "agent", "info", "stop_reason", "note", "departure")


class FileTracker:
    """Compares the text files of a workspace with those of the last time."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self._known: Mapping[str, str | None] | None = None
        self._too_slow = False

    def take_changes(self) -> tuple[FileChange, ...]:
        """Return the changes since the last call; none at the first call, and none if the files cannot be read."""
        if self._too_slow:
            return ()
        start = time.monotonic()
        try:
            before, self._known = self._known, self._read()
        except SandboxError:
            return ()
        self._too_slow = time.monotonic() - start > MAX_SECONDS
        return compare_files(before, self._known) if before is not None and self._known is not None else ()

    def _read(self) -> dict[str, str | None] | None:
        """The texts by name; `None` for a file that is not a small text."""
        names = self.shell.list_files(MAX_FILES + 1)
        if len(names) > MAX_FILES:
            return None
        wanted = [name for name in names if not _IGNORED.intersection(PurePosixPath(name).parts)]
        texts: dict[str, str | None] = dict.fromkeys(wanted)
        for name, content in self.shell.read_files(wanted, longest=MAX_BYTES + 1).items():
            if len(content) <= MAX_BYTES and b"\0" not in content:
                try:
                    texts[name] = content.decode()
                except UnicodeDecodeError:
                    continue  # Not a text.
        return texts


def compare_files(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> tuple[FileChange, ...]:
    """Return the differences of two sets of files, by name. Files without a text on either side are left out.

    >>> compare_files({"a": "1\\n2\\n"}, {"a": "1\\n3\\n"})[0].diff
    '@@ -1,2 +1,2 @@\\n 1\\n-2\\n+3'
    """
    changes = []
    for path in sorted({**before, **after}):
        old, new = before.get(path, ""), after.get(path, "")
        if old is not None and new is not None and (old != new or (path in before) != (path in after)):
            kind: ChangeKind = "created" if path not in before else "deleted" if path not in after else "changed"
            diff = "\n".join(_diff_lines(old, new))
            changes.append(FileChange(path, kind, diff[:MAX_DIFF], max(0, len(diff) - MAX_DIFF)))
    return tuple(changes)


def _diff_lines(old: str, new: str) -> list[str]:
    # A final newline ends the last line and begins no other.
    first, second = (text.removesuffix("\n").split("\n") if text else [] for text in (old, new))
    lines = list(unified_diff(first, second, lineterm=""))[2:]
    if old and new and old.endswith("\n") != new.endswith("\n"):
        lines.append(f"\\ {'No newline' if old.endswith(chr(10)) else 'A newline'} at the end of the file")
    return lines


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
            wall_seconds=limit.command_seconds,
            cpu_seconds=4 * limit.seconds,
            memory=limit.memory,
            processes=limit.processes,
            open_files=1024,
            file_size=1 << 30,
            output=_MAX_OUTPUT,
            disk=2 << 30,
        )
        contents, mounts = {**task.starter_files(), **(files or {})}, read_only_mounts(task, data)
        self.shell: Shell = sandbox.shell(limits, contents, sandbox_environment(task), read_only=mounts)
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
    with _measuring:  # One measurement per process; two processes may both measure and get the same result.
        kept = read_baseline(task)
        if kept is not None:
            return _select_metric(task, kept)
        return _select_metric(task, measure_baseline(task, sandbox, judge))


def measure_baseline(task: ResearchTask, sandbox: Sandbox, judge: SubmissionJudge) -> MeasuredSolution:
    """Measure the task's baseline and write it to the cache; raises like `measure`."""
    path, measured = _place(task), measure(task, sandbox, judge, task.baseline, {})
    with storage_errors(path, "storing the baseline's score"):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may write at once.
        partial = path.with_name(f".baseline-{os.getpid()}-{path.name}")
        partial.write_text(to_json(measured), encoding="utf-8")
        partial.replace(path)
    return measured


def _select_metric(task: ResearchTask, measured: MeasuredSolution) -> MeasuredSolution:
    """Select the current metric; the cache holds everything that the evaluator measured."""
    name, scores = task.metric.name, measured.test.scores  # Both splits have the same scores.
    if name not in scores:
        raise TaskError(f"expected '{name}' among the scores of task '{task.name}'; got {', '.join(scores)}")
    validation, test = (replace(grade, score=grade.scores[name]) for grade in (measured.validation, measured.test))
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
                why, end = result.note or f"exit code {result.exit_code}", " ".join(result.text.split())[-500:]
                raise TaskError(f"'{command}' of task '{task.name}' failed ({why}): {end}")
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
    # A score may depend on the architecture and the Python version besides the task.
    machine = f"{platform.machine()}-{platform.python_implementation()}{platform.python_version()}"
    parts = (task.name, task.digest(), seed_mark(task), machine)
    return cache_folder() / "research" / f"{'-'.join(filter(None, parts))}.json"
