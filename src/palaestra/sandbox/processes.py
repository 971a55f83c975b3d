"""What the processes of a sandbox use, read from outside; and how they are held to their limits."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, Protocol

from palaestra.sandbox.base import MIB, Limits, Status
from palaestra.sandbox.cgroups import ControlGroup, GroupUsage

TICK, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
STACK = 8 * MIB
SIGNALS, LOCKED = 1024, MIB
"""Signals that may be queued; bytes that may be locked in memory."""
LIBRARIES = 64 * MIB
"""Bytes of files that a process may map beside its memory; the kernel's figure for a dead process includes them."""
START_SECONDS = 0.05
"""CPU time that the start of a sandbox may take: it is not the program's."""
SPARE = 64
"""How many processes more the kernel lets through, so that the watch sees who wants too many."""
SHOWN, RARELY = 512, 10
"""How much memory a page table can show, in its own size: where a process reserves so much that its tables may matter,
they are looked at. One that shows little of many places can be larger, so every tenth time they are looked at anyway."""
FILES_A_MIB = 256
"""How many files a folder may hold for each MiB that it may hold: files that are empty take memory too."""


class ProcessStat(NamedTuple):
    """What `/proc/PID/stat` says about a process."""

    state: str
    """One letter: R, S, D, T, Z, ...; empty for a process that is gone."""
    ticks: int = 0
    """CPU time of all its threads."""
    child_ticks: int = 0
    """CPU time of the children that it waited for."""
    tasks: int = 0
    start: int = 0
    reserved: int = 0
    """Bytes of addresses, used or not."""
    memory: int = 0
    """Resident bytes."""


class ProcessTree(Protocol):
    """The processes of one sandbox."""

    keep: Collection[int]
    """Processes that the sandbox runs itself."""

    def pids(self) -> list[int]:
        """Those alive now, without those of `keep`."""
        ...

    def stat(self, pid: int) -> ProcessStat: ...

    def find_live_thread(self, pid: int) -> int:
        """A thread of the process that has not ended. The first one can end before the others."""
        ...

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

    def stat(self, pid: int) -> ProcessStat:
        fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()  # the name before it may hold anything
        if len(fields) < 22:
            return ProcessStat("")
        user, system, user_below, system_below = map(int, fields[11:15])
        tasks, start, reserved, pages = (int(fields[at]) for at in (17, 19, 20, 21))
        return ProcessStat(
            fields[0].decode(), user + system, user_below + system_below, tasks, start, reserved, pages * PAGE
        )

    def find_live_thread(self, pid: int) -> int:
        with suppress(OSError):
            folder = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.folder)
            try:
                return next((tid for tid in map(int, os.listdir(folder)) if self.stat(tid).state not in "ZX"), pid)
            finally:
                os.close(folder)
        return pid

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
            if pid not in self.keep and self.stat(pid).state:
                found.append(pid)
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    open_ends += map(int, self._read(f"{pid}/task/{thread}/children").split())
        return found


@dataclass(slots=True)
class LimitMonitor:
    """Holds a tree of processes, and the folders that it may fill, to limits.

    With a control group the kernel holds memory and processes, and counts CPU time. Without, all is polled.
    """

    tree: ProcessTree
    limits: Limits
    folders: Sequence[int] = ()
    """Open folders of a file system that the sandbox has for itself."""
    group: ControlGroup | None = None
    own_tasks: int = 0
    """Tasks of the group that the sandbox runs itself."""
    peak: int = 0
    _looks: int = 0
    _kills: int = 0
    _cpu_seconds: float = 0.0
    _cpu_start: float | None = 0.0
    _ticks: dict[tuple[int, int], int] = field(default_factory=dict)
    _ticks_gone: int = 0

    def check(self) -> Status | None:
        """The limit that is broken now, if one is."""
        if self.was_killed():
            return Status.MEMORY
        tasks, memory, seconds = self.group.read_usage() if self.group else UNKNOWN
        own, held = self.own_tasks, memory is not None
        if tasks is None or memory is None or seconds is None:
            polled_tasks, polled_memory, polled_seconds = self._poll()
            if tasks is None:
                tasks, own = polled_tasks, 0
            memory = polled_memory if memory is None else memory
            seconds = polled_seconds if seconds is None else seconds
        self.peak, self._cpu_seconds = max(self.peak, memory), seconds
        if tasks - own > self.limits.processes:
            return Status.PROCESSES
        if not held and memory > self.limits.memory:
            return Status.MEMORY
        if self._is_out_of_cpu_time():
            return Status.CPU_TIME
        for folder in self.folders:
            room = os.fstatvfs(folder)
            files, used = room.f_files - room.f_ffree, (room.f_blocks - room.f_bfree) * room.f_frsize
            if files > max(1024, self.limits.disk * FILES_A_MIB // MIB) or used > self.limits.disk + MIB:
                return Status.DISK
        return None

    def was_killed(self) -> bool:
        """Whether the kernel killed a process for want of memory since this was asked last."""
        kills = self.group.count_kills() if self.group else 0
        before, self._kills = self._kills, kills
        return kills > before

    def finish(self, waited: float, largest: int) -> Status | None:
        """The limit that was broken since the last check, now that all processes are dead.

        Arguments:
            waited: CPU seconds of all processes that were waited for.
            largest: resident bytes of the largest process, 0 if not known.
        """
        if self.was_killed():
            return Status.MEMORY
        counted = self.group.read_cpu_seconds() if self.group else None
        self._cpu_seconds = max(self._cpu_seconds, waited - START_SECONDS if counted is None else counted)
        if self._is_out_of_cpu_time():
            return Status.CPU_TIME
        held = self.group is not None and self.group.holds_memory
        return Status.MEMORY if not held and largest > self.limits.memory + LIBRARIES else None

    def _is_out_of_cpu_time(self) -> bool:
        if self._cpu_start is None:
            self._cpu_start = self._cpu_seconds
        return self._cpu_seconds - self._cpu_start > self.limits.cpu_seconds

    def restart_cpu_time(self) -> None:
        """Count CPU time from the next check on."""
        self._cpu_start = None

    def _poll(self) -> tuple[int, int, float]:
        """Tasks, bytes and seconds as `/proc` shows them."""
        pids = self.tree.pids()
        self._looks += 1
        stats = {pid: self.tree.stat(pid) for pid in [*pids, *self.tree.keep]}
        seconds = self._add_up_cpu_time(stats)
        for pid in self.tree.keep:
            del stats[pid]
        for pid in [pid for pid, stat in stats.items() if stat.state == "Z" and stat.tasks > 1]:
            thread = self.tree.find_live_thread(pid)
            _, *_, reserved, memory = self.tree.stat(thread)
            stats[thread] = stats.pop(pid)._replace(reserved=reserved, memory=memory)
        memory, tables = sum(stat.memory for stat in stats.values()), 0
        reserved = sum(stat.reserved for stat in stats.values())
        if memory + reserved // SHOWN > self.limits.memory or self._looks % RARELY == 0:
            tables = sum(map(self.tree.page_tables, stats))
        if memory + tables > self.limits.memory:  # what processes share, and files that they map, are in it
            self.peak = max(self.peak, memory + tables)
            memory = sum(map(self.tree.private_memory, stats))
        return max(len(pids), sum(stat.tasks for stat in stats.values())), memory + tables, seconds

    def _add_up_cpu_time(self, stats: Mapping[int, ProcessStat]) -> float:
        """Seconds used so far: the larger of what living processes and those they waited for used, and of what was
        seen of every process. The second has those that nobody waits for."""
        alive = {(pid, stat.start): stat.ticks for pid, stat in stats.items() if stat.state}
        self._ticks_gone += sum(ticks for key, ticks in self._ticks.items() if key not in alive)
        self._ticks = alive
        seen = self._ticks_gone + sum(alive.values())
        waited = sum(stat.ticks + stat.child_ticks for stat in stats.values())
        return max(seen, waited, self._cpu_seconds * TICK) / TICK


UNKNOWN = GroupUsage(None, None, None)


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
        # These the kernel counts by user: a sandbox must not use up what is the user's.
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (SIGNALS, SIGNALS),
        resource.RLIMIT_MEMLOCK: (LOCKED, LOCKED),
    }
    if own_users and _kernel() >= (5, 14):
        wanted[resource.RLIMIT_NPROC] = (limits.processes + SPARE, limits.processes + SPARE)
    for kind, (soft, hard) in wanted.items():
        try:
            resource.prlimit(pid, kind, (soft, hard))
        except (OSError, ValueError):  # what we may not raise ourselves
            _, most = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (min(soft, most), min(hard, most)))
    # If the machine itself runs out of memory, the kernel takes the sandbox and not its user.
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")


@cache
def _kernel() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int("".join(filter(str.isdigit, minor[:3])) or 0)
