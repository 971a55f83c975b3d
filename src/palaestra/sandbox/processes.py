"""What the processes of a sandbox use, read from outside; and how they are held to their limits."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from palaestra.sandbox.base import MIB, Limits, Status

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
STACK = 8 * MIB
SPARE = 64
"""How many processes more the kernel lets through, so that the watch sees who wants too many."""
SHOWN, RARELY = 512, 10
"""How much memory a page table can show, in its own size: where a process reserves so much that its tables may matter,
they are looked at. One that shows little of many places can be larger, so every tenth time they are looked at anyway."""
FILES_A_MIB = 256
"""How many files a folder may hold for each MiB that it may hold: files that are empty take memory too."""


class Usage(NamedTuple):
    """What a tree of processes uses at one moment."""

    tasks: int
    """Processes and threads."""
    memory: int
    """Resident bytes; what processes share is counted for each of them."""
    cpu_seconds: float
    reserved: int
    """Bytes of addresses, used or not."""


class Tree(Protocol):
    """The processes of one sandbox."""

    def pids(self) -> list[int]:
        """Those alive now, without the one that the sandbox runs itself."""
        ...

    def stat(self, pid: int) -> bytes: ...

    def private_memory(self, pid: int) -> int: ...

    def page_tables(self, pid: int) -> int: ...

    def kill(self, pids: Iterable[int], by: signal.Signals = signal.SIGKILL) -> None: ...


class ProcTree:
    """Processes seen through a folder like `/proc`: that of a sandbox shows its own processes and no others."""

    def __init__(self, path: str, keep: Collection[int] = (1,)) -> None:
        self.keep = keep
        self.folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def pids(self) -> list[int]:
        with suppress(OSError):
            return [pid for name in os.listdir(self.folder) if name.isdigit() and (pid := int(name)) not in self.keep]
        return []

    def stat(self, pid: int) -> bytes:
        return self._read(f"{pid}/stat")

    def private_memory(self, pid: int) -> int:
        """Bytes that only the program accounts for: files that it maps are not in it, shared pages in part."""
        found = {}
        for line in self._read(f"{pid}/smaps_rollup").splitlines()[1:]:
            name, value, *_ = line.split()
            found[name] = int(value) * 1024
        return found.get(b"Pss_Anon:", found.get(b"Pss:", 0)) + found.get(b"Pss_Shmem:", 0)

    def page_tables(self, pid: int) -> int:
        """Bytes that the kernel needs to know where a process's memory is; they are not in what it uses itself."""
        found = re.search(rb"^VmPTE:\s+(\d+) kB", self._read(f"{pid}/status"), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def kill(self, pids: Iterable[int], by: signal.Signals = signal.SIGKILL) -> None:
        """Kill by the number that the process has in the sandbox. Its entry in the folder stands for the process
        itself, so that a number which is used again cannot hit another one."""
        for pid in pids:
            with suppress(OSError):
                entry = os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.folder)
                try:
                    signal.pidfd_send_signal(entry, by)
                finally:
                    os.close(entry)

    def close(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _read(self, name: str) -> bytes:
        with suppress(OSError):
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)
            try:
                return os.read(file, 8192)
            finally:
                os.close(file)
        return b""


class ChildTree(ProcTree):
    """A process of the host and its descendants, where no sandbox keeps them together. One that detaches is lost."""

    def __init__(self, root: int, keep: Collection[int] = ()) -> None:
        super().__init__("/proc", keep)
        self.root = root

    def pids(self) -> list[int]:
        found, open_ends = [], [self.root]
        while open_ends:
            pid = open_ends.pop()
            if pid not in self.keep and self.stat(pid):
                found.append(pid)
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    open_ends += map(int, self._read(f"{pid}/task/{thread}/children").split())
        return found


@dataclass(slots=True)
class Watch:
    """Holds a tree of processes, and the folders that it may fill, to limits."""

    tree: Tree
    limits: Limits
    folders: Sequence[int] = ()
    """Open folders of a file system that the sandbox has for itself."""
    peak: int = 0
    cpu_limit: bool = True
    looks: int = 0

    def check(self) -> Status | None:
        """The limit that is broken now, if one is."""
        limits, pids = self.limits, self.tree.pids()
        if len(pids) > limits.processes:
            return Status.PROCESSES
        usage, tables = measure(self.tree, pids), 0
        self.looks += 1
        if usage.memory + usage.reserved // SHOWN > limits.memory or self.looks % RARELY == 0:
            tables = sum(map(self.tree.page_tables, pids))
        memory = usage.memory + tables
        self.peak = max(self.peak, memory)
        if usage.tasks > limits.processes:
            return Status.PROCESSES
        if memory > limits.memory and sum(map(self.tree.private_memory, pids)) + tables > limits.memory:
            return Status.MEMORY
        if self.cpu_limit and usage.cpu_seconds > limits.cpu_seconds:
            return Status.CPU_TIME
        for folder in self.folders:
            room = os.fstatvfs(folder)
            files, used = room.f_files - room.f_ffree, (room.f_blocks - room.f_bfree) * room.f_frsize
            if files > max(1024, limits.disk * FILES_A_MIB // MIB) or used > limits.disk + MIB:
                return Status.DISK
        return None


def measure(tree: Tree, pids: Iterable[int]) -> Usage:
    tasks = memory = ticks = reserved = 0
    for pid in pids:
        fields = tree.stat(pid).rpartition(b")")[2].split()  # the name before it may hold anything
        if len(fields) > 21:
            ticks += sum(map(int, fields[11:15]))
            tasks += int(fields[17])
            memory += int(fields[21]) * PAGE
            reserved += int(fields[20])
    return Usage(tasks, memory, ticks / TICK, reserved)


def state(tree: Tree, pid: int) -> str:
    """One letter: R, S, D, T, Z, ...; empty for a process that is gone."""
    return tree.stat(pid).rpartition(b")")[2][1:2].decode()


def limit_process(pid: int, limits: Limits, own_users: bool) -> None:
    """Set the kernel's limits for a process, and through it for all that it starts.

    They stand behind the watch, which gives the verdict, and are wider: memory is what a process may reserve, the
    stacks of its threads among it, which is more than what it uses.

    Arguments:
        own_users: whether the process is in a user namespace of its own. Only there, and on Linux 5.14 or later,
            is the number of processes counted for the sandbox alone.
    """
    seconds, reserved = int(limits.cpu_seconds) + 1, 2 * limits.memory + STACK * limits.processes
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_DATA: (reserved, reserved),
        resource.RLIMIT_NOFILE: (limits.open_files, limits.open_files),
        resource.RLIMIT_FSIZE: (limits.file_size, limits.file_size),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (STACK, max(STACK, limits.memory)),
    }
    if own_users and _kernel() >= (5, 14):
        wanted[resource.RLIMIT_NPROC] = (limits.processes + SPARE, limits.processes + SPARE)
    for kind, (soft, hard) in wanted.items():
        _, most = resource.prlimit(pid, kind)
        if most != resource.RLIM_INFINITY:  # what we may not raise ourselves
            soft, hard = min(soft, most), min(hard, most)
        resource.prlimit(pid, kind, (soft, hard))
    # If the machine itself runs out of memory, the kernel takes the sandbox and not its user.
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")


def _kernel() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int("".join(filter(str.isdigit, minor[:3])) or 0)
