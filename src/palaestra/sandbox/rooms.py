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
from palaestra.sandbox.base import Files, Limits, Status
from palaestra.sandbox.files import list_files, read_files, write_files
from palaestra.sandbox.groups import ProcessGroup
from palaestra.sandbox.processes import ProcTree, Watch, state
from palaestra.sandbox.shell import KEEPER, LOCAL_FILES, LOOP, START
from palaestra.sandbox.spawn import GONE, Child, receive


def find_bash() -> str:
    found = shutil.which("bash", path=os.environ.get("PATH", "") + ":/usr/bin:/bin")
    if found is None:
        raise SandboxError("a shell needs bash, which is not installed; install it with: sudo apt-get install bash")
    return os.path.realpath(found)


def keeper(bash: str) -> list[str]:
    """The command that keeps a shell alive; it takes the numbers of two more files, see `LOCAL_FILES`."""
    return [bash, "--norc", "--noprofile", "-c", KEEPER, "bash", bash, LOCAL_FILES + LOOP]


@dataclass(slots=True)
class Tenancy:
    """A started sandbox whose first process waits at the door."""

    child: Child
    first: int
    """That process, as the host counts."""
    tree: ProcTree
    workspace: int
    """The workspace, opened."""
    folders: Sequence[int] = ()
    """All folders of the sandbox's own file systems, opened."""
    group: ProcessGroup | None = None
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


class LocalRoom:
    """A shell whose keeper is a process of this machine, in a sandbox or not."""

    def __init__(
        self, tenancy: Tenancy, limits: Limits, workspace: str, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.tenancy, self.limits, self.workspace, self.on_close = tenancy, limits, workspace, on_close
        child = tenancy.child
        self.stdin, self.output, self.status = child.stdin, child.stdout, child.control.fileno()
        os.set_blocking(self.stdin, False)
        os.set_blocking(self.output, False)
        self.watch = Watch(tenancy.tree, limits, tenancy.folders, cpu_limit=False)
        self._shell = self._shell_inside = -1
        self._nice = os.getpriority(os.PRIO_PROCESS, tenancy.first)

    def start(self, sweep: bool) -> None:
        tenancy, end = self.tenancy, time.monotonic() + START
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, tenancy.first, self._nice)
        self._empty_stdin()
        with suppress(OSError):
            tenancy.child.control.settimeout(START)
            tenancy.child.control.send(b"sweep\n" if sweep else b"start\n")
        while time.monotonic() < end:
            data, pid = receive(tenancy.child.control, end - time.monotonic())
            if data.startswith(b"hello ") and pid != tenancy.first:
                self._shell, self._shell_inside = pid, int(data.split()[1])
                return
            if data.startswith(b"ended ") and pid == tenancy.first:
                break
            if not data:
                break
        raise SandboxError(
            f"a shell cannot start: {tenancy.child.errors() or 'bash ended at once'}; look at the limits"
        )

    def lines(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            data, pid = receive(self.tenancy.child.control, 0.0)
            if not data:
                if pid == GONE:
                    raise SandboxError("the sandbox of the shell is gone: its first process was killed from outside")
                return found
            first, shell = self.tenancy.first, self._shell
            found += [line for line in data.splitlines() if pid == (first if line.startswith(b"ended ") else shell)]

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
        return state(self.tenancy.tree, self._shell_inside) in ("T", "t")

    def check(self) -> Status | None:
        return self.watch.check()

    def write_files(self, files: Files) -> None:
        write_files(self.tenancy.workspace, files)

    def read_files(self, names: Sequence[str], longest: int) -> dict[str, bytes]:
        return read_files(self.tenancy.workspace, names, longest)

    def list_files(self, most: int) -> list[str]:
        return list_files(self.tenancy.workspace, most)

    def close(self) -> None:
        try:
            self.tenancy.close()
        finally:
            self.on_close()

    def _empty_stdin(self) -> None:
        """Take back what the last shell did not read, so that the next one does not take it for a command."""
        file = os.open(f"/proc/self/fd/{self.stdin}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with suppress(BlockingIOError):
                while os.read(file, 65536):
                    pass
        finally:
            os.close(file)
