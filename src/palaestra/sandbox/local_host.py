"""Processes of a sandbox on this machine, for bubblewrap; and the sandbox `none`, which does not isolate them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from palaestra.core.errors import SandboxError, SandboxWarning
from palaestra.sandbox.base import Sandbox
from palaestra.sandbox.bash_protocol import LOCAL_FILES, LOOP, STEP, SUPERVISOR, StatusLine
from palaestra.sandbox.cgroups import ControlGroup
from palaestra.sandbox.files import list_files, open_descriptor, read_files, write_files
from palaestra.sandbox.processes import ChildTree, LimitMonitor, ProcTree, limit_process
from palaestra.sandbox.program import GONE, Child, make_gated_command, make_memory_file, receive, supervise
from palaestra.sandbox.records import MIB, Files, Limits, SandboxCommand, SandboxResult, Status
from palaestra.sandbox.shell import BURST, GRACE, START, RunningSandbox, ShellHost, end_all, is_readable

_MIN_COMMAND_MEMORY = 16 * MIB
"""Memory that each command of a shell gets, regardless of the files in its folders."""


def find_bash() -> str:
    bash = shutil.which("bash", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if bash is None:
        raise SandboxError("a shell needs bash, which is not installed; install it with: sudo apt-get install bash")
    return os.path.realpath(bash)


@contextmanager
def prepare_command(command: SandboxCommand, bash: str = "") -> Iterator[tuple[list[str], list[int]]]:
    """Yield the arguments of a program behind its gate, or of the supervisor of a shell, and the files that it inherits.

    Arguments:
        bash: the path of bash inside; by default that of this machine.
    """
    if command.argv:
        yield make_gated_command(command.argv), [*command.pass_fds]
        return
    bash = bash or find_bash()
    step = make_memory_file(STEP, sealed=True)
    try:
        arguments = [bash, LOCAL_FILES + LOOP, str(step), Child.STDIN, Child.STATUS]
        yield [bash, "--norc", "--noprofile", "-c", SUPERVISOR, "bash", *arguments], [step]
    finally:
        os.close(step)


@dataclass(slots=True)
class LocalProcesses(RunningSandbox):
    """The processes of a sandbox on this machine. The first one waits behind its gate, with its limits set."""

    child: Child
    first: int
    """The first process, by its number on the host."""
    tree: ProcTree
    workspace: int
    """Descriptor of the workspace."""
    place: str
    folders: Sequence[int] = ()
    """Descriptors of the folders on the sandbox's own file systems."""
    group: ControlGroup | None = None
    handle: int = field(init=False)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.first)

    def run(self, command: SandboxCommand) -> SandboxResult:
        self.child.release()
        monitor = LimitMonitor(self.tree, command.limits, self.folders, self.group, own_tasks=1)
        return supervise(self.child, command.stdin, command.limits, monitor, self.kill)

    def make_shell_host(self, limits: Limits) -> LocalHost:
        return LocalHost(self, limits)

    def kill(self) -> None:
        """Kill all processes. The kernel kills the others when the first one dies, but it may be scheduled late if the
        others keep forking, so they are killed one by one as well. Call it again while some are alive."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.first, -20)  # if permitted
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        self.tree.kill(self.tree.pids())

    def write_files(self, files: Files) -> None:
        write_files(self.workspace, files)

    def read_files(self, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
        return read_files(self.workspace, names, longest, total)

    def list_files(self, most: int) -> list[str]:
        return list_files(self.workspace, most)

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


class LocalHost(ShellHost):
    """Hosts a shell whose supervisor is a process of this machine."""

    running: LocalProcesses

    def __init__(self, running: LocalProcesses, limits: Limits) -> None:
        self.running, self.limits = running, limits
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
            memory = max(self.limits.memory, group.read_memory() + _MIN_COMMAND_MEMORY)
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

    def _empty_stdin(self) -> bool:
        """Discard what the last shell did not read, so that the next one does not run it. False if another process
        writes faster than this one reads."""
        with open_descriptor(f"/proc/self/fd/{self.stdin}", os.O_RDONLY | os.O_NONBLOCK) as file:
            with suppress(BlockingIOError):
                for _ in range(BURST):
                    os.read(file, 65536)
            return not is_readable(file, 0.002)


class NoSandbox(Sandbox):
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

    def start(self, command: SandboxCommand) -> LocalProcesses:
        if command.read_only:
            raise SandboxError("the sandbox 'none' does not support read_only: all paths are visible anyway")
        is_private = command.workspace is None
        folder = os.path.abspath(command.workspace or tempfile.mkdtemp(prefix="palaestra-"))
        base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb", "HOME": folder}
        try:
            with prepare_command(command) as (argv, files):
                child = Child(argv, {**base, **command.env}, files, session=True, folder=folder)
            try:
                first = child.wait_until_ready()
                if first < 0:
                    raise SandboxError(f"a program cannot start: {child.errors() or 'no error message'}")
                limit_process(first, command.limits, own_users=False)
                tree, opened = ChildTree(first, keep=(first,)), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                return _PlainProcesses(child, first, tree, opened, folder, is_private=is_private)
            except BaseException:
                child.close()
                raise
        except BaseException:
            if is_private:
                _remove(folder)
            raise


@dataclass
class _PlainProcesses(LocalProcesses):
    """Processes without a namespace: their process group is killed too, and a private workspace is deleted."""

    is_private: bool = False

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
