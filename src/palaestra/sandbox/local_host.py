"""The room of a shell on this machine: its keeper, its processes, its workspace."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import MIB, Files, Limits, Status
from palaestra.sandbox.bash_protocol import KEEPER, LOCAL_FILES, LOOP, StatusLine
from palaestra.sandbox.cgroups import ControlGroup
from palaestra.sandbox.files import list_files, read_files, write_files
from palaestra.sandbox.processes import LimitMonitor, ProcTree
from palaestra.sandbox.shell import BURST, GRACE, START, end_all, readable
from palaestra.sandbox.spawn import GONE, Child, receive

ROOM = 16 * MIB
"""Memory that each command of a shell has at least, whatever the files in its folders take."""


def find_bash() -> str:
    found = shutil.which("bash", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if found is None:
        raise SandboxError("a shell needs bash, which is not installed; install it with: sudo apt-get install bash")
    return os.path.realpath(found)


def keeper(bash: str) -> list[str]:
    """The command that keeps a shell alive; it takes the numbers of three more files, see `LOCAL_FILES`."""
    return [bash, "--norc", "--noprofile", "-c", KEEPER, "bash", bash, LOCAL_FILES + LOOP]


@dataclass(slots=True)
class RunningSandbox:
    """A started sandbox whose first process waits at the door."""

    child: Child
    first: int
    """That process, as the host counts."""
    tree: ProcTree
    workspace: int
    """The workspace, opened."""
    folders: Sequence[int] = ()
    """All folders of the sandbox's own file systems, opened."""
    group: ControlGroup | None = None
    handle: int = field(default=-1)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.first)

    def kill(self) -> None:
        """End everything in it. The first process takes all others with it, but only when it gets its turn: a crowd
        that goes on forking is ended one by one meanwhile. Call it again while something lives."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.first, -20)  # where we may
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


class LocalHost:
    """A shell whose keeper is a process of this machine, in a sandbox or not."""

    def __init__(
        self, tenancy: RunningSandbox, limits: Limits, workspace: str, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.tenancy, self.limits, self.workspace, self.on_close = tenancy, limits, workspace, on_close
        child = tenancy.child
        assert child.status is not None
        self._shell_socket, self._keeper_socket = child.status, child.control
        self.stdin, self.output = child.stdin, child.stdout
        self.status, self.control = child.status.fileno(), child.control.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.output, False)
        self.watch = LimitMonitor(tenancy.tree, limits, tenancy.folders, tenancy.group)
        self._shell = self._shell_inside = -1
        self.heard, self._partial, self._fresh = 0, b"", True
        self._is_full = False
        self._nice = os.getpriority(os.PRIO_PROCESS, tenancy.first)

    def start(self, sweep: bool, seconds: float = START) -> None:
        end = time.monotonic() + seconds
        self._shell = self._shell_inside = -1
        if sweep:
            self.kill(self.pids())  # among them a shell that never came, for whose end the keeper may wait
            self._order(b"sweep\n", b"swept", end)
            end_all(self, set(), min(end, time.monotonic() + GRACE))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self.tenancy.first, self._nice)
        if not self._fresh and not self._empty_stdin():
            raise SandboxError("a shell cannot start: what runs beside it writes to it without end")
        self._fresh = False
        said, self._shell = self._order(b"start\n", b"hello ", end)
        self._shell_inside = int(said.split()[1])
        if self.tenancy.group is not None:  # without the keeper: it must outlive any want of memory
            try:
                self.tenancy.group.add(self._shell)
            except OSError as error:
                raise SandboxError(f"a shell cannot start: it cannot join its control group: {error}") from error
        for _ in range(BURST):  # what others said meanwhile, as far as it has an end
            self.heard = 0
            self.said()
            if not self.heard:
                break
        self._partial = b""

    def _order(self, order: bytes, answer: bytes, end: float) -> tuple[bytes, int]:
        """Have the keeper do something; gives the line of the answer, and the process that sent it."""
        with suppress(OSError):
            self._keeper_socket.settimeout(max(0.0, end - time.monotonic()))
            self._keeper_socket.send(order)
        while (left := end - time.monotonic()) > 0:
            data, pid = receive(self._keeper_socket, left)
            for line in data.splitlines():
                if line.startswith(answer):
                    return line, pid
            if not data or answer == b"hello ":  # anything else is the end of a shell, here the one that was to come
                break
        raise SandboxError(
            f"a shell cannot start: {self.tenancy.child.errors() or 'bash ended at once'}; look at the limits"
        )

    def said(self) -> list[StatusLine]:
        found: list[StatusLine | None] = []
        for _ in range(BURST):
            data, pid = receive(self._shell_socket, 0.0)
            if not data:
                break
            self.heard += len(data)
            if pid == self._shell:
                *lines, self._partial = (self._partial + data).split(b"\n")
                found += map(StatusLine.of, lines)
        return [said for said in found if said is not None]

    def ended(self) -> int | None:
        data, pid = receive(self._keeper_socket, 0.0)
        if pid == GONE:
            raise SandboxError("the sandbox of the shell is gone: its first process was killed from outside")
        return int(data.split()[1]) if data.startswith(b"ended ") else None

    def pids(self) -> set[int]:
        return set(self.tenancy.tree.pids()) - {self._shell_inside}

    def kill(self, pids: Collection[int]) -> None:
        self.tenancy.tree.kill(pids)

    def hurry(self) -> None:
        for pid in (self.tenancy.first, self._shell):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, -20)  # where we may; else the kernel holds the crowd small

    def interrupt(self, pids: Collection[int]) -> None:
        self.tenancy.tree.kill([self._shell_inside, *pids], signal.SIGINT)

    def end_shell(self) -> None:
        self.tenancy.tree.kill([self._shell_inside])

    def stopped(self) -> bool:
        return self.tenancy.tree.stat(self._shell_inside).state in ("T", "t")

    def begin(self) -> None:
        self.watch.restart_cpu_time()
        if self._is_full and (group := self.tenancy.group) is not None:
            # Files in memory may have used up the limit: a command must be able to delete them.
            memory = max(self.limits.memory, group.read_memory() + ROOM)
            group.limit_memory(memory)
            self._is_full = memory > self.limits.memory

    def check(self) -> Status | None:
        limit = self.watch.check()
        self._is_full |= limit is Status.MEMORY
        return limit

    def was_killed(self) -> bool:
        killed = self.watch.was_killed()
        self._is_full |= killed
        return killed

    def write_files(self, files: Files) -> None:
        write_files(self.tenancy.workspace, files)

    def read_files(self, names: Sequence[str], longest: int, total: int | None) -> dict[str, bytes]:
        return read_files(self.tenancy.workspace, names, longest, total)

    def list_files(self, most: int) -> list[str]:
        return list_files(self.tenancy.workspace, most)

    def close(self) -> None:
        try:
            self.tenancy.close()
        finally:
            self.on_close()

    def _empty_stdin(self) -> bool:
        """Take back what the last shell did not read, so that the next one does not take it for a command. False where
        somebody writes faster than we read."""
        file = os.open(f"/proc/self/fd/{self.stdin}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with suppress(BlockingIOError):
                for _ in range(BURST):
                    os.read(file, 65536)
            return not readable(file, 0.002)
        finally:
            os.close(file)
