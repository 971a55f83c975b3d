"""Run programs and shells as processes of this machine: the base of bubblewrap, and `none`, which does not isolate them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from palaestra.core.errors import SandboxError, SandboxWarning
from palaestra.sandbox.base import MIB, SHELL_LIMITS, Files, Limits, SandboxResult, Status
from palaestra.sandbox.bash_protocol import LOCAL_FILES, LOOP, STEP, SUPERVISOR, StatusLine
from palaestra.sandbox.cgroups import ControlGroup
from palaestra.sandbox.files import list_files, read_files, write_files
from palaestra.sandbox.processes import ChildTree, LimitMonitor, ProcTree, limit_process
from palaestra.sandbox.program import GONE, Child, make_gated_command, make_sealed_file, receive, supervise
from palaestra.sandbox.shell import BURST, GRACE, START, BashShell, ShellHost, end_all, readable

MIN_COMMAND_MEMORY = 16 * MIB
"""Memory that each command of a shell gets, regardless of the files in its folders."""


def check_workspace(workspace: str | PathLike[str] | None) -> None:
    if workspace is not None and not os.path.isdir(workspace):
        raise SandboxError(f"the workspace must be an existing folder; got '{os.fspath(workspace)}'")


def find_bash() -> str:
    bash = shutil.which("bash", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if bash is None:
        raise SandboxError("a shell needs bash, which is not installed; install it with: sudo apt-get install bash")
    return os.path.realpath(bash)


def make_supervisor_command(bash: str, step: int) -> list[str]:
    """Return the command of the supervisor of shells. `step` is the descriptor of the script for each command."""
    arguments = [bash, LOCAL_FILES + LOOP, str(step), Child.STDIN, Child.STATUS]
    return [bash, "--norc", "--noprofile", "-c", SUPERVISOR, "bash", *arguments]


@dataclass(slots=True)
class RunningSandbox:
    """A sandbox whose first process has started and waits to be released."""

    child: Child
    first: int
    """The first process, by its number on the host."""
    tree: ProcTree
    workspace: int
    """Descriptor of the workspace."""
    folders: Sequence[int] = ()
    """Descriptors of the folders on the sandbox's own file systems."""
    group: ControlGroup | None = None
    place: str = ""
    """The path of the workspace for the programs."""
    handle: int = field(default=-1)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.first)

    def kill(self) -> None:
        """Kill all processes. The kernel kills the others when the first one dies, but it may be scheduled late if the
        others keep forking, so they are killed one by one as well. Call it again while some are alive."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.first, -20)  # if permitted
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        self.tree.kill(self.tree.pids())

    def close(self) -> None:
        self.kill()
        try:
            self.child.close()
        finally:
            self.tree.close()
            for file in {self.workspace, *self.folders, self.handle}:
                os.close(file)
            if self.group is not None:
                self.group.close()


class LocalSandbox:
    """Runs programs and shells as processes of this machine. Subclasses start the processes."""

    def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes | str] = {},
        stdin: bytes | socket.socket = b"",
        limits: Limits = Limits(),
        env: Mapping[str, str] = {},
        read_back: Sequence[str] = (),
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
        pass_fds: Sequence[int] = (),
    ) -> SandboxResult:
        """See `Sandbox.run`. The program inherits the open files `pass_fds` under the same numbers."""
        if not argv:
            raise SandboxError("run needs a program; got an empty argv")
        env = {"OMP_NUM_THREADS": "1", **env}  # a thread for each core would exceed the limit on processes
        check_workspace(workspace)
        running = self._start(make_gated_command(argv), limits, env, workspace, read_only, pass_fds)
        try:
            write_files(running.workspace, files)
            running.child.release()
            monitor = LimitMonitor(running.tree, limits, running.folders, running.group, own_tasks=1)
            result = supervise(running.child, stdin, limits, monitor, running.kill)
            if read_back:
                running.kill()  # without a process namespace, processes may be left
                result = replace(result, files=read_files(running.workspace, read_back, limits.file_size))
        finally:
            running.close()
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> BashShell:
        """See `Sandbox.shell`."""
        check_workspace(workspace)

        def start_host() -> LocalHost:
            running = self._start(None, limits, env, workspace, read_only)
            try:
                write_files(running.workspace, files)
                return LocalHost(running, limits)
            except BaseException:
                running.close()
                raise

        return BashShell(start_host, limits)

    def _start(
        self,
        command: Sequence[str] | None,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> RunningSandbox:
        """Start a command, or the supervisor of a shell if it is None. It waits at its gate, with its limits set."""
        raise NotImplementedError


class LocalHost(ShellHost):
    """Hosts a shell whose supervisor is a process of this machine."""

    def __init__(self, running: RunningSandbox, limits: Limits) -> None:
        self.running, self.limits, self.workspace = running, limits, running.place
        child = running.child
        assert child.status is not None
        self._shell_socket, self._supervisor_socket = child.status, child.control
        self.stdin, self.output = child.stdin, child.stdout
        self.status, self.control = child.status.fileno(), child.control.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.output, False)
        self.monitor = LimitMonitor(running.tree, limits, running.folders, running.group)
        self._shell = self._shell_inside = -1
        self.status_bytes, self._partial, self._fresh = 0, b"", True
        self._is_memory_full = False
        self._nice = os.getpriority(os.PRIO_PROCESS, running.first)

    def start(self, sweep: bool, seconds: float = START) -> None:
        end = time.monotonic() + seconds
        self._shell = self._shell_inside = -1
        if sweep:
            self.kill(self.pids())  # including a shell that never started, which the supervisor may wait for
            self._order(b"sweep\n", b"swept", end)
            end_all(self, set(), min(end, time.monotonic() + GRACE))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.running.first, self._nice)
        if not self._fresh and not self._empty_stdin():
            raise SandboxError("a shell cannot start: another process keeps writing to its input")
        self._fresh = False
        greeting, self._shell = self._order(b"start\n", b"hello ", end)
        self._shell_inside = int(greeting.split()[1])
        if self.running.group is not None:  # the supervisor stays outside: it must survive when the memory is used up
            try:
                self.running.group.add(self._shell)
            except OSError as error:
                raise SandboxError(f"a shell cannot start: it cannot join its control group: {error}") from error
        for _ in range(BURST):  # discard what others wrote meanwhile, within bounds
            self.status_bytes = 0
            self.read_status()
            if not self.status_bytes:
                break
        self._partial = b""

    def _order(self, order: bytes, answer: bytes, end: float) -> tuple[bytes, int]:
        """Send an order to the supervisor. Returns the line of the answer and the process that sent it."""
        with suppress(OSError):
            self._supervisor_socket.settimeout(max(0.0, end - time.monotonic()))
            self._supervisor_socket.send(order)
        while (left := end - time.monotonic()) > 0:
            data, pid = receive(self._supervisor_socket, left)
            for line in data.splitlines():
                if line.startswith(answer):
                    return line, pid
            if not data or answer == b"hello ":  # any other line reports the end of a shell, here of the one to start
                break
        raise SandboxError(
            f"a shell cannot start: {self.running.child.errors() or 'bash ended at once'}; look at the limits"
        )

    def read_status(self) -> list[StatusLine]:
        lines: list[StatusLine | None] = []
        for _ in range(BURST):
            data, pid = receive(self._shell_socket, 0.0)
            if not data:
                break
            self.status_bytes += len(data)
            if pid == self._shell:
                *whole, self._partial = (self._partial + data).split(b"\n")
                lines += map(StatusLine.parse, whole)
        return [line for line in lines if line is not None]

    def read_exit_code(self) -> int | None:
        data, pid = receive(self._supervisor_socket, 0.0)
        if pid == GONE:
            raise SandboxError("the sandbox of the shell is gone: its first process was killed from outside")
        return int(data.split()[1]) if data.startswith(b"ended ") else None

    def pids(self) -> set[int]:
        return set(self.running.tree.pids()) - {self._shell_inside}

    def kill(self, pids: Collection[int]) -> None:
        self.running.tree.kill(pids)

    def raise_priority(self) -> None:
        for pid in (self.running.first, self._shell):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, -20)  # if permitted; otherwise the limit on processes must suffice

    def interrupt(self, pids: Collection[int]) -> None:
        self.running.tree.kill([self._shell_inside, *pids], signal.SIGINT)

    def end_shell(self) -> None:
        self.running.tree.kill([self._shell_inside])

    def is_stopped(self) -> bool:
        return self.running.tree.stat(self._shell_inside).state in ("T", "t")

    def begin_command(self) -> None:
        self.monitor.restart_cpu_time()
        if self._is_memory_full and (group := self.running.group) is not None:
            # Files in memory may have used up the limit. A command must be able to delete them.
            memory = max(self.limits.memory, group.read_memory() + MIN_COMMAND_MEMORY)
            group.limit_memory(memory)
            self._is_memory_full = memory > self.limits.memory

    def check(self) -> Status | None:
        limit = self.monitor.check()
        self._is_memory_full |= limit is Status.MEMORY
        return limit

    def was_killed(self) -> bool:
        killed = self.monitor.was_killed()
        self._is_memory_full |= killed
        return killed

    def write_files(self, files: Files) -> None:
        write_files(self.running.workspace, files)

    def read_files(self, names: Sequence[str], longest: int, total: int | None) -> dict[str, bytes]:
        return read_files(self.running.workspace, names, longest, total)

    def list_files(self, most: int) -> list[str]:
        return list_files(self.running.workspace, most)

    def close(self) -> None:
        self.running.close()

    def _empty_stdin(self) -> bool:
        """Discard what the last shell did not read, so that the next one does not run it. False if another process
        writes faster than this one reads."""
        file = os.open(f"/proc/self/fd/{self.stdin}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with suppress(BlockingIOError):
                for _ in range(BURST):
                    os.read(file, 65536)
            return not readable(file, 0.002)
        finally:
            os.close(file)


class NoSandbox(LocalSandbox):
    """Runs programs with all rights of the current user: they can read keys, delete files and use the network.

    A program that detaches itself escapes the limits, and `limits.disk` has no effect. `read_only` is not supported:
    all paths are visible anyway.
    """

    name = "none"

    def __init__(self) -> None:
        warnings.warn(
            "the sandbox 'none' isolates nothing: code of a model can do everything that you can; use bubblewrap, docker or podman for code that you have not read",
            SandboxWarning,
            stacklevel=3,
        )

    def _start(
        self,
        command: Sequence[str] | None,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> RunningSandbox:
        if read_only:
            raise SandboxError("the sandbox 'none' does not support read_only: all paths are visible anyway")
        folder = tempfile.mkdtemp(prefix="palaestra-") if workspace is None else os.path.abspath(workspace)
        held = [make_sealed_file(STEP)] if command is None else []
        try:
            command = make_supervisor_command(find_bash(), held[0]) if command is None else command
            base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb"}
            files = [*held, *pass_fds]
            child = Child(command, {**base, "HOME": folder, **env}, files, session=True, folder=folder)
            try:
                first = child.wait_until_ready()
                if first < 0:
                    raise SandboxError(f"a program cannot start: {child.errors() or 'no error message'}")
                limit_process(first, limits, own_users=False)
                tree, opened = ChildTree(first, keep=(first,)), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                return _PlainProcesses(child, first, tree, opened, (), None, folder, is_private=workspace is None)
            except BaseException:
                child.close()
                raise
        except BaseException:
            if workspace is None:
                _remove(folder)
            raise
        finally:
            for file in held:
                os.close(file)


class _PlainProcesses(RunningSandbox):
    """Processes without a namespace: their process group is killed too, and a private workspace is deleted."""

    def __init__(self, *arguments: Any, is_private: bool) -> None:
        super().__init__(*arguments)
        self.is_private = is_private

    def kill(self) -> None:
        super().kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.first, signal.SIGKILL)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self.is_private:
                _remove(self.place)


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # deeply nested folders
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True, check=False)
