"""The workspace of one episode: a fresh copy of the starter files in a sandbox, with a shell that stays."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from palaestra.core.errors import SandboxError
from palaestra.research.judge.sandboxing import read_only_mounts, sandbox_environment
from palaestra.research.tasks.records import InvalidSubmission, TaskData
from palaestra.research.tasks.task import ResearchTask
from palaestra.sandbox.base import Limits, Sandbox, Shell, ShellResult

OUTPUT = 16 << 10
"""Bytes of a command's output that are shown; over that, the middle is cut out."""


class Workspace:
    """Where an agent works. Nothing of it is shared with another, and it is gone when it is closed, or when nobody holds it.

    Arguments:
        sandbox: see `palaestra.research.judge.sandboxing.sandbox_for`.
        data: the task's; only its public part is shown, read-only, in /data.
        files: put over the starter's.

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
        """A copy of what would be handed in now. Links are not followed: what they show is no file of the agent's."""
        try:
            return self.task.collect(self.shell)
        except SandboxError as error:
            return InvalidSubmission(f"the workspace cannot be read any more: {error}")

    def close(self) -> None:
        """End everything that runs in it."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(shell: Shell, process: int) -> None:
    if os.getpid() == process:  # A copy in a child process is not the one that owns the sandbox.
        shell.close()
