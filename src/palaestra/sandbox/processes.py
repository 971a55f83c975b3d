"""Measure the resource usage of a sandbox's processes from outside, and enforce their limits."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from palaestra.sandbox.cgroups import ControlGroup, GroupUsage
from palaestra.sandbox.files import open_descriptor
from palaestra.sandbox.records import MIB, Limits, Status

_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_STACK = 8 * MIB
MAX_SIGNALS, MAX_LOCKED = 1024, MIB
"""Maximum number of queued signals; maximum bytes locked in memory."""
_LIBRARIES = 64 * MIB
"""Bytes of files that a process may map beside its memory. The kernel's value for a dead process includes them."""
_START_SECONDS = 0.05
"""CPU time for the start of a sandbox, which is not charged to the program."""
SPARE = 64
"""Processes that the kernel allows beyond the limit, so that the monitor sees the excess."""
_SHOWN, _RARELY = 512, 10
"""Memory that a page table can map, in multiples of its own size. Page tables are measured if a process reserves so much
that they may matter. Sparse mappings need larger tables, so they are also measured every tenth time."""
_FILES_A_MIB = 256
"""Files that a folder may contain for each MiB of its limit: empty files take memory too."""


class ProcessStat(NamedTuple):
    """The fields of `/proc/PID/stat`."""

    state: str
    """One letter: R, S, D, T, Z, ...; empty if the process is gone."""
    ticks: int = 0
    """CPU time of all its threads."""
    child_ticks: int = 0
    """CPU time of children that it has waited for."""
    tasks: int = 0
    start: int = 0
    reserved: int = 0
    """Bytes of address space, used or not."""
    memory: int = 0
    """Resident bytes."""


class ProcTree:
    """The processes of a folder like `/proc`. That of a sandbox shows only its own processes.

    Arguments:
        keep: processes of the sandbox itself.
    """

    def __init__(self, path: str, keep: Collection[int] = (1,)) -> None:
        self.keep = keep
        self.folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def pids(self) -> list[int]:
        """Return the live processes, without `keep`."""
        with suppress(OSError):
            return [pid for name in os.listdir(self.folder) if name.isdigit() and (pid := int(name)) not in self.keep]
        return []

    def stat(self, pid: int) -> ProcessStat:
        fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()  # the name before it may contain anything
        if len(fields) < 22:
            return ProcessStat("")
        user, system, user_below, system_below = map(int, fields[11:15])
        tasks, start, reserved, pages = (int(fields[at]) for at in (17, 19, 20, 21))
        return ProcessStat(
            fields[0].decode(), user + system, user_below + system_below, tasks, start, reserved, pages * _PAGE
        )

    def find_live_thread(self, pid: int) -> int:
        """Return a thread of the process that has not ended. The first one can end before the others."""
        with suppress(OSError), open_descriptor(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, self.folder) as folder:
            return next((tid for tid in map(int, os.listdir(folder)) if self.stat(tid).state not in "ZX"), pid)
        return pid

    def private_memory(self, pid: int) -> int:
        """Return the private memory in bytes: without mapped files, and with a share of shared pages."""
        sizes = {}
        for line in self._read(f"{pid}/smaps_rollup").splitlines()[1:]:
            name, value, *_ = line.split()
            sizes[name] = int(value) * 1024
        return sizes.get(b"Pss_Anon:", sizes.get(b"Pss:", 0)) + sizes.get(b"Pss_Shmem:", 0)

    def page_tables(self, pid: int) -> int:
        """Return the bytes of page tables, which are not part of the resident memory."""
        match = re.search(rb"^VmPTE:\s+(\d+) kB", self._read(f"{pid}/status"), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0

    def kill(self, pids: Iterable[int], by: signal.Signals = signal.SIGKILL) -> None:
        """Kill processes by their numbers in the sandbox. The opened folder entry identifies the process, so a reused
        number cannot hit another one."""
        for pid in pids:
            with suppress(OSError), open_descriptor(str(pid), os.O_RDONLY | os.O_DIRECTORY, self.folder) as entry:
                signal.pidfd_send_signal(entry, by)

    def close(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1

    def _read(self, name: str) -> bytes:
        with suppress(OSError), open_descriptor(name, os.O_RDONLY, self.folder) as file:
            return os.read(file, 8192)
        return b""


class ChildTree(ProcTree):
    """A process of the host and its descendants, without a sandbox. A process that detaches itself is lost."""

    def __init__(self, root: int, keep: Collection[int] = ()) -> None:
        super().__init__("/proc", keep)
        self.root = root

    def pids(self) -> list[int]:
        pids, waiting = [], [self.root]
        while waiting:
            pid = waiting.pop()
            if pid not in self.keep and self.stat(pid).state:
                pids.append(pid)
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    waiting += map(int, self._read(f"{pid}/task/{thread}/children").split())
        return pids


@dataclass(slots=True)
class LimitMonitor:
    """Checks the limits of a process tree and of its folders.

    With a control group the kernel limits memory and processes and counts CPU time. Without one, everything is polled.
    """

    tree: ProcTree
    limits: Limits
    folders: Sequence[int] = ()
    """Descriptors of the folders on the sandbox's own file systems."""
    group: ControlGroup | None = None
    own_tasks: int = 0
    """Tasks in the group that belong to the sandbox itself."""
    peak: int = 0
    _looks: int = 0
    _kills: int = 0
    _cpu_seconds: float = 0.0
    _cpu_start: float | None = 0.0
    _ticks: dict[tuple[int, int], int] = field(default_factory=dict)
    _ticks_gone: int = 0

    def check(self) -> Status | None:
        """Return the limit that is exceeded now, if any."""
        if self.was_killed():
            return Status.MEMORY
        tasks, memory, seconds = self.group.read_usage() if self.group else _UNKNOWN
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
            if files > max(1024, self.limits.disk * _FILES_A_MIB // MIB) or used > self.limits.disk + MIB:
                return Status.DISK
        return None

    def was_killed(self) -> bool:
        """Whether the kernel killed a process for lack of memory since the last call."""
        kills = self.group.count_kills() if self.group else 0
        before, self._kills = self._kills, kills
        return kills > before

    def finish(self, waited: float, largest: int) -> Status | None:
        """Return the limit that was exceeded since the last check. All processes are dead.

        Arguments:
            waited: CPU seconds of all processes that were waited for.
            largest: resident bytes of the largest process; 0 if unknown.
        """
        if self.was_killed():
            return Status.MEMORY
        counted = self.group.read_cpu_seconds() if self.group else None
        self._cpu_seconds = max(self._cpu_seconds, waited - _START_SECONDS if counted is None else counted)
        if self._is_out_of_cpu_time():
            return Status.CPU_TIME
        held = self.group is not None and self.group.limits_memory
        return Status.MEMORY if not held and largest > self.limits.memory + _LIBRARIES else None

    def _is_out_of_cpu_time(self) -> bool:
        if self._cpu_start is None:
            self._cpu_start = self._cpu_seconds
        return self._cpu_seconds - self._cpu_start > self.limits.cpu_seconds

    def restart_cpu_time(self) -> None:
        """Count CPU time from the next check on."""
        self._cpu_start = None

    def _poll(self) -> tuple[int, int, float]:
        """Return tasks, bytes and seconds according to `/proc`."""
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
        if memory + reserved // _SHOWN > self.limits.memory or self._looks % _RARELY == 0:
            tables = sum(map(self.tree.page_tables, stats))
        if memory + tables > self.limits.memory:  # this includes shared pages and mapped files
            self.peak = max(self.peak, memory + tables)
            memory = sum(map(self.tree.private_memory, stats))
        return max(len(pids), sum(stat.tasks for stat in stats.values())), memory + tables, seconds

    def _add_up_cpu_time(self, stats: Mapping[int, ProcessStat]) -> float:
        """Return the CPU seconds so far: the larger of two sums. One counts live processes and the children that they
        waited for, the other what was observed of each process, which includes children that no process waits for."""
        alive = {(pid, stat.start): stat.ticks for pid, stat in stats.items() if stat.state}
        self._ticks_gone += sum(ticks for key, ticks in self._ticks.items() if key not in alive)
        self._ticks = alive
        seen = self._ticks_gone + sum(alive.values())
        waited = sum(stat.ticks + stat.child_ticks for stat in stats.values())
        return max(seen, waited, self._cpu_seconds * _TICK) / _TICK


_UNKNOWN = GroupUsage(None, None, None)


def limit_process(pid: int, limits: Limits, own_users: bool) -> None:
    """Set the kernel's resource limits of a process and its descendants.

    They are a second line behind the monitor and wider than the limits: memory here means reserved address space with
    the stacks of threads, which is more than what a process uses.

    Arguments:
        own_users: the process has its own user namespace. Only then, and from Linux 5.14 on, does the kernel count the
            processes of the sandbox alone.
    """
    seconds, reserved = int(limits.cpu_seconds) + 1, 2 * limits.memory + _STACK * limits.processes
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_DATA: (reserved, reserved),
        resource.RLIMIT_NOFILE: (limits.open_files, limits.open_files),
        resource.RLIMIT_FSIZE: (limits.file_size, limits.file_size),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (_STACK, max(_STACK, limits.memory)),
        # The kernel counts these per user, and a sandbox must not use up those of the user.
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_SIGPENDING: (MAX_SIGNALS, MAX_SIGNALS),
        resource.RLIMIT_MEMLOCK: (MAX_LOCKED, MAX_LOCKED),
    }
    if own_users and _kernel() >= (5, 14):
        wanted[resource.RLIMIT_NPROC] = (limits.processes + SPARE, limits.processes + SPARE)
    for kind, (soft, hard) in wanted.items():
        try:
            resource.prlimit(pid, kind, (soft, hard))
        except (OSError, ValueError):  # this process may not raise the limit
            _, most = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (min(soft, most), min(hard, most)))
    # If the machine runs out of memory, the kernel kills the sandbox first.
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")


@cache
def _kernel() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int("".join(filter(str.isdigit, minor[:3])) or 0)
