"""Control groups: the kernel counts and limits the resources of all processes of a sandbox together.

A group also counts memory that belongs to no single process (pipe and socket buffers, files in memory, page tables)
and the CPU time of orphaned processes. Version 2 is used if this process may create groups with the memory controller,
version 1 as root; see `find_hierarchy`. The service manager of an ordinary user (systemd) can provide such a group.
Without either, `processes.LimitMonitor` polls `/proc`, which is less complete.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from palaestra.sandbox.files import open_descriptor

_PROC = Path("/proc")
LEAF = "palaestra-host"
"""The group of this process. In version 2 a group with limited children cannot contain processes itself."""
_PREFIX = "palaestra"
_MEMORY_AND_SWAP = "memory.memsw.limit_in_bytes"
_SYSTEMD_SECONDS = 3.0
_TCP_SHARE = 8
"""Fraction (1/8) of the memory limit for TCP and UDP buffers in version 1, which counts them separately."""


class LimitReport(NamedTuple):
    """How the limits of a sandbox are enforced on this machine."""

    backend: str
    """`cgroup2` or `cgroup1`: by the kernel. `polling`: this process reads `/proc` about fifty times a second."""
    controllers: tuple[str, ...] = ()
    """Resources that the kernel counts for the whole sandbox: `memory`, `pids`, `cpu`."""
    reason: str = ""
    """Why control groups cannot be used, if so."""

    def __str__(self) -> str:
        if self.backend == "polling":
            return f"memory, processes and CPU time are limited by polling ({self.reason})"
        missing = {"memory", "pids", "cpu"} - set(self.controllers)
        rest = f"; {' and '.join(sorted(missing))} by polling" if missing else ""
        return f"{', '.join(self.controllers)} are limited by control groups, version {self.backend[-1]}{rest}"


class GroupUsage(NamedTuple):
    """The resource usage of a group; None for what the kernel does not count."""

    tasks: int | None
    """Processes and threads."""
    memory: int | None
    """Bytes, without cached files that the kernel can drop."""
    cpu_seconds: float | None
    """Since the group was created."""


class Hierarchy(NamedTuple):
    """Where groups are created: a folder for each controller. In version 2 all are the same folder."""

    version: int
    folders: Mapping[str, Path]


# Names of files: the limit on memory, its use, its details, the count of kills; the number of tasks; CPU time.
_FILES = {
    1: {"memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "memory.oom_control"),
        "pids": ("pids.current",), "cpu": ("cpuacct.usage",)},
    2: {"memory": ("memory.max", "memory.current", "memory.stat", "memory.events"),
        "pids": ("pids.current",), "cpu": ("cpu.stat",)},
}  # fmt: skip


class ControlGroup:
    """A group of processes with limits on memory and tasks.

    Arguments:
        memory: bytes.
        tasks: processes and threads.

    Raises:
        OSError: the group cannot be created.
    """

    def __init__(self, hierarchy: Hierarchy, memory: int, tasks: int) -> None:
        self.version = hierarchy.version
        # Programs see this name. A counter would tell them how many ran before.
        name = f"{_own_prefix(os.getpid())}-{secrets.token_hex(8)}"
        self.folders = {kind: f"{folder}/{name}" for kind, folder in hierarchy.folders.items()}
        self._memory, self._open = 0, dict[str, int]()
        self._events, self._kills = b"", 0
        try:
            for folder in set(self.folders.values()):
                os.mkdir(folder)
            if "pids" in self.folders:
                _write(f"{self.folders['pids']}/pids.max", tasks)
            if self.limits_memory:
                self.limit_memory(memory)
        except BaseException:
            self.close()
            raise

    def limit_memory(self, memory: int) -> None:
        """Set the memory limit. Swap is disabled."""
        values = {_FILES[self.version]["memory"][0]: memory, "memory.swap.max": 0}
        if self.version == 1:
            values = {_MEMORY_AND_SWAP: memory, "memory.kmem.tcp.limit_in_bytes": memory // _TCP_SHARE}
            limit = {_FILES[1]["memory"][0]: memory}  # never above that of memory and swap together
            values = values | limit if 0 < self._memory < memory else limit | values
        for name, value in values.items():
            with suppress(FileNotFoundError):  # the kernel may not account for swap
                _write(f"{self.folders['memory']}/{name}", value)
        self._memory = memory

    @property
    def limits_memory(self) -> bool:
        return "memory" in self.folders

    def add(self, pid: int) -> None:
        """Move a process into the group, with all processes that it will start."""
        for folder in set(self.folders.values()):
            _write(f"{folder}/cgroup.procs", pid)

    def read_usage(self) -> GroupUsage:
        tasks = int(self._read("pids.current")) if "pids" in self.folders else None
        return GroupUsage(tasks, self.read_memory() if self.limits_memory else None, self.read_cpu_seconds())

    def read_memory(self) -> int:
        """Return the bytes used, without cached files."""
        _, used, details, _ = _FILES[self.version]["memory"]
        memory = int(self._read(used))
        counts, prefix = self._counts(details), "total_" if self.version == 1 else ""
        return max(0, memory - counts.get(f"{prefix}inactive_file", 0) - counts.get(f"{prefix}active_file", 0))

    def read_cpu_seconds(self) -> float | None:
        if "cpu" not in self.folders:
            return None
        if self.version == 2:
            return self._counts("cpu.stat")["usage_usec"] / 1e6
        return int(self._read("cpuacct.usage")) / 1e9

    def count_kills(self) -> int:
        """Return how many processes the kernel has killed because the memory limit was reached."""
        if not self.limits_memory:
            return 0
        events = self._read(_FILES[self.version]["memory"][3])
        if events != self._events:  # called after every command of a shell
            self._events, self._kills = events, int(events.partition(b"oom_kill ")[2].split()[0])
        return self._kills

    def close(self) -> None:
        """Remove the group. If the kernel has not released its processes yet, the next `close` removes it, or the exit of
        this process, or the start of another."""
        for file in self._open.values():
            os.close(file)
        self._open.clear()
        _remove_busy(dict.fromkeys(self.folders.values()))

    def _read(self, name: str) -> bytes:
        if name not in self._open:
            kind = next(kind for kind, names in _FILES[self.version].items() if name in names)
            self._open[name] = os.open(f"{self.folders[kind]}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._open[name], 16384, 0)

    def _counts(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._read(name).decode().splitlines())
        return {name: int(value) for name, value in pairs}


_busy: list[str] = []
"""Groups that could not be removed yet."""
_removing = threading.Lock()


def _remove_busy(further: Iterable[str] = ()) -> None:
    with _removing:
        _busy.extend(further)
        _busy[:] = [folder for folder in _busy if not _remove(folder)]


@atexit.register
def _remove_all_busy() -> None:
    for _ in range(100):
        _remove_busy()
        if not _busy:
            return
        time.sleep(0.001)


def _write(path: str, value: int) -> None:
    with open_descriptor(path, os.O_WRONLY) as file:
        os.write(file, b"%d" % value)


def _remove(folder: str) -> bool:
    """Remove a group; False if there are processes in it."""
    with suppress(OSError):
        os.rmdir(folder)
    return not os.path.exists(folder)


def create_group(memory: int, tasks: int) -> ControlGroup | None:
    """Create a group; None if this process cannot."""
    hierarchy, _ = _hierarchy(os.getpid())
    with suppress(OSError):
        return ControlGroup(hierarchy, memory, tasks) if hierarchy is not None else None
    return None


def report_limits() -> LimitReport:
    """Report how the limits of the bubblewrap sandbox are enforced in this process.

    Example:
        >>> from palaestra.sandbox import report_limits
        >>> report_limits().backend in ("cgroup2", "cgroup1", "polling")
        True
    """
    hierarchy, reason = _hierarchy(os.getpid())
    if hierarchy is None:
        return LimitReport("polling", reason=reason)
    return LimitReport(f"cgroup{hierarchy.version}", tuple(hierarchy.folders))


@cache
def _hierarchy(process: int) -> tuple[Hierarchy | None, str]:
    """Find where groups can be created, once for each process, and remove groups that killed processes left."""
    try:
        hierarchy, reason = find_hierarchy()
        if hierarchy is not None:
            for folder in set(hierarchy.folders.values()):
                _remove_stale(folder)
            _try_group(hierarchy)
        return hierarchy, reason
    except OSError as error:
        return None, f"a control group cannot be created: {error}"


def _try_group(hierarchy: Hierarchy) -> None:
    """Create a group, move a process into it and read its usage; raises `OSError` if that fails."""
    group = ControlGroup(hierarchy, 1 << 26, 8)
    try:
        with subprocess.Popen(["/bin/sh", "-c", "read _"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            group.add(child.pid)
            group.read_usage()
    finally:
        group.close()


def request_scope(own: Path = Path("/proc/self/cgroup")) -> bool:
    """Ask the user's service manager to move this process into a scope of its own that it may divide.

    Only a process of a login session or of the user's services is moved: one that a batch system or a container
    manages stays where it was put.

    Returns:
        Whether the process was moved.
    """
    before = own.read_text()
    user = f"/user.slice/user-{os.getuid()}.slice/"
    busctl, runtime = shutil.which("busctl"), os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if user not in before or busctl is None or not os.path.exists(f"{runtime}/bus"):
        return False
    pid = str(os.getpid())
    properties = ["PIDs", "au", "1", pid, "Delegate", "b", "true", "CollectMode", "s", "inactive-or-failed"]
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    unit = [f"palaestra-{pid}.scope", "replace", "3", *properties, "0"]
    command = [busctl, "--user", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", *unit]
    env = {**os.environ, "XDG_RUNTIME_DIR": runtime}
    try:
        answer = subprocess.run(command, env=env, capture_output=True, timeout=_SYSTEMD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    end = time.monotonic() + _SYSTEMD_SECONDS
    while answer.returncode == 0 and time.monotonic() < end:  # the answer comes before the move
        if own.read_text() != before:
            return True
        time.sleep(0.01)
    return False


def find_hierarchy(
    proc: Path = _PROC / "self", root: bool | None = None, request: Callable[[], bool] = request_scope
) -> tuple[Hierarchy | None, str]:
    """Find where groups can be created, or the reason why they cannot. Version 2 is preferred.

    Arguments:
        proc: the folder of this process in `/proc`.
        root: whether this process runs as root; determined if None.
        request: asks the service manager to move this process into a group that it may divide. Returns whether it did.
    """
    root = os.geteuid() == 0 if root is None else root
    mounts, own = _read_mounts(proc), _read_own_groups(proc)
    reason = "no memory controller of version 2 is mounted"
    for point, above, _ in mounts.get("cgroup2", []):
        top, folder = Path(point), _locate(point, above, own.get("", "/"))
        if "memory" not in _read_words(top / "cgroup.controllers"):
            continue
        if root and not (top / "cgroup.type").exists():  # only the root of the whole tree has no type
            base, reason = _enable(top, []), "the controllers of the root group cannot be enabled"
        elif folder.name == LEAF:
            base = _enable(folder.parent, [])
        elif _is_ours(folder, root):
            base, reason = _enable(folder, _read_words(folder / "cgroup.procs")), "our own group cannot be divided"
        elif not root and request():
            folder = _locate(point, above, _read_own_groups(proc).get("", "/"))
            base, reason = _enable(folder, [str(os.getpid())]), "the group from systemd cannot be divided"
        else:
            command = "systemd-run --user --scope -p Delegate=yes COMMAND"
            base, reason = None, f"this user may not create control groups; start with: {command}"
        if base is not None:
            counted = [*_read_words(base / "cgroup.controllers"), "cpu"]  # cpu.stat needs no controller
            return Hierarchy(2, {kind: base for kind in ("memory", "pids", "cpu") if kind in counted}), ""
    folders = {}
    for kind, name in (("memory", "memory"), ("pids", "pids"), ("cpu", "cpuacct")):
        for point, above, options in mounts.get("cgroup", []):
            folder = _locate(point, above, own.get(name, "/"))
            if name in options and os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists():
                folders[kind] = folder
    return (Hierarchy(1, folders), "") if folders else (None, reason)


def _is_ours(folder: Path, root: bool) -> bool:
    """Whether this process may divide a group: it is alone in it, or it is root in a container."""
    if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
        return False
    is_alone = set(_read_words(folder / "cgroup.procs")) <= {str(os.getpid())}
    return is_alone or (root and (folder / "cgroup.type").exists())


def _enable(base: Path, inside: list[str]) -> Path | None:
    """Move the processes of a group into a child and enable controllers for its children; None if that fails."""
    with suppress(OSError):
        if inside:
            (base / LEAF).mkdir(exist_ok=True)
            for pid in inside:
                (base / LEAF / "cgroup.procs").write_text(pid)
        available, enabled = _read_words(base / "cgroup.controllers"), base / "cgroup.subtree_control"
        missing = {"memory", "pids"} & set(available) - set(_read_words(enabled))
        if missing:
            enabled.write_text(" ".join(f"+{kind}" for kind in sorted(missing)))
        if "memory" in available:
            return base
    return None


def _read_words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().split()
    return []


def _read_own_groups(proc: Path) -> dict[str, str]:
    """Return this process's group for each controller of version 1; that of version 2 has the name ''."""
    lines = (line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines())
    return {kind: path for _, kinds, path in lines for kind in kinds.split(",")}


def _read_mounts(proc: Path) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Return the mounted hierarchies by type: the mount point, the group that it shows, and the options."""
    mounts: dict[str, list[tuple[str, str, list[str]]]] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        mounts.setdefault(kind, []).append((fields[4], fields[3], options.split(",")))
    return mounts


def _locate(point: str, above: str, path: str) -> Path:
    """Return the folder of a group, given the group that the mount point shows."""
    inside = os.path.relpath(path, above) if path.startswith(above) else "."
    return Path(os.path.normpath(os.path.join(point, inside)))


def _remove_stale(folder: Path) -> None:
    for left in folder.glob(f"{_PREFIX}-*-*-*"):
        pid, start = left.name.split("-")[1:3]
        if pid.isdigit() and _start_time(int(pid)) != start:
            _remove(str(left))


@cache
def _own_prefix(pid: int) -> str:
    return f"{_PREFIX}-{pid}-{_start_time(pid)}"


def _start_time(pid: int) -> str:
    """Return when a process was started, in ticks; this distinguishes it from an earlier one with the same number."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return ""
