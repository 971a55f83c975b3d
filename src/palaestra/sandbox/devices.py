"""Device files for sandboxes: null, zero, random and the like.

They are shared by all sandboxes, and a file has more than its content. The host's own belong to root: if we are root, a
program is their owner and could change their modes. Then sandboxes get device files that belong to nobody. Everybody may
set their times to the present, so the times are set anew before each start, lest a program reads what an earlier one left.
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
    """Create a folder like `/dev` that belongs to nobody; None where we are not root or may not."""
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
        with open(os.path.join(folder, "null"), "wb"):  # not where the file system has no devices
            return folder
    return None


def reset_times(folder: str | None) -> None:
    """Set the times of the devices that sandboxes use: of our own, in `folder`, or else of the host's."""
    for name in DEVICES:
        with suppress(OSError):
            os.utime(os.path.join(folder or "/dev", name), (0, 0) if folder else None)


def _is_device(path: str, number: tuple[int, int]) -> bool:
    with suppress(FileNotFoundError):
        info = os.lstat(path)
        same = stat.S_ISCHR(info.st_mode) and info.st_rdev == os.makedev(*number)
        return same and stat.S_IMODE(info.st_mode) == 0o666 and (info.st_uid, info.st_gid) == (NOBODY, NOBODY)
    return False
