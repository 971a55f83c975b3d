"""Device files for sandboxes: null, zero, random and the like.

All sandboxes share them, so their metadata must not carry information. The host's device files belong to root. If this
process is root, a program would own them and could change their modes, so sandboxes get device files that belong to
nobody. Any program may set their times, so the times are reset before each start.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
FOLDER = "/dev/palaestra"
NOBODY = 65534


@cache
def prepare_devices(folder: str = FOLDER) -> str | None:
    """Create a folder like `/dev` that belongs to nobody; None if this process is not root or lacks permission."""
    if os.geteuid() != 0:
        return None
    with suppress(OSError):
        for path in (folder, os.path.join(folder, "shm")):
            os.makedirs(path, mode=0o755, exist_ok=True)
            os.chown(path, NOBODY, NOBODY)
        for name, target in LINKS.items():
            path = os.path.join(folder, name)
            if not os.path.lexists(path):
                os.symlink(target, path)
            os.lchown(path, NOBODY, NOBODY)
        for name, number in DEVICES.items():
            path, fresh = os.path.join(folder, name), os.path.join(folder, f".{name}-{os.getpid()}")
            if not _is_device(path, number):
                os.mknod(fresh, stat.S_IFCHR | 0o666, os.makedev(*number))
                os.chmod(fresh, 0o666)
                os.chown(fresh, NOBODY, NOBODY)
                os.replace(fresh, path)
        with open(os.path.join(folder, "null"), "wb"):  # fails if the file system does not support devices
            return folder
    return None


def reset_times(folder: str | None) -> None:
    """Reset the times of the devices that sandboxes use: those in `folder`, or else the host's."""
    for name in DEVICES:
        with suppress(OSError):
            os.utime(os.path.join(folder or "/dev", name), (0, 0) if folder else None)


def _is_device(path: str, number: tuple[int, int]) -> bool:
    with suppress(FileNotFoundError):
        info = os.lstat(path)
        same = stat.S_ISCHR(info.st_mode) and info.st_rdev == os.makedev(*number)
        return same and stat.S_IMODE(info.st_mode) == 0o666 and (info.st_uid, info.st_gid) == (NOBODY, NOBODY)
    return False
