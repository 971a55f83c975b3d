"""The workspace of one episode: a copy of the starter files in a sandbox with a persistent shell."""

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
"""The maximum bytes of a command's output; the middle of longer output is cut."""


class Workspace:
    """Where an agent works. It shares nothing with other workspaces and is deleted when it is closed or garbage-
    collected.

    Arguments:
        sandbox: see `palaestra.research.judge.sandboxing.sandbox_for`.
        data: the task's data; only the public part is mounted, read-only, in /data.
        files: put over the starter files.

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
        """Copy the submission files. Symbolic links are not followed, because their targets are not the agent's files."""
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
    if os.getpid() == process:  # A copy in a child process does not own the sandbox.
        shell.close()
