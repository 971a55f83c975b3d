"""A control group that holds the number of a sandbox's processes, where we may make one.

For other users the kernel counts by user namespace. Root it does not count at all, so that only the watch would be
between a fork bomb and the machine; but root can often make a control group.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_numbers = itertools.count()


class ProcessGroup:
    """At most `limit` processes and threads, by the kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, pid: int, limit: int) -> ProcessGroup | None:
        """A group with the process `pid` in it, and all that it will start; None where that cannot be done."""
        base = _base(os.getpid())
        if base is None:
            return None
        group = cls(base / f"palaestra-{os.getpid()}-{next(_numbers)}")
        try:
            group.folder.mkdir()
            (group.folder / "pids.max").write_text(str(limit))
            (group.folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            group.close()
            return None
        return group

    def close(self) -> None:
        """Remove the group; its processes are dead, or about to be."""
        for _ in range(100):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.002)
            else:
                return


@cache
def _base(process: int) -> Path | None:
    """Our own group, if it can have groups below it that count processes. Found once for each process."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if "pids" in kinds.split(","):
                folder = ROOT / "pids" / path.lstrip("/")
            elif not kinds:
                folder = ROOT / path.lstrip("/")
                control = folder / "cgroup.subtree_control"
                if not control.exists() or "pids" not in control.read_text().split():
                    continue
            else:
                continue
            if os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists():
                _clear(folder)
                return folder
    return None


def _clear(folder: Path) -> None:
    """Remove the groups of processes of ours that were killed."""
    for left in folder.glob("palaestra-*-*"):
        if not os.path.exists(f"/proc/{left.name.split('-')[1]}"):
            with suppress(OSError):
                left.rmdir()
