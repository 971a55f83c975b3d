"""The files of a workspace and the device files of a sandbox.

Workspaces are written and read without following links that a program may have left there.

All sandboxes share their device files, so the metadata of these must not carry information. The host's device files belong
to root. If this process is root, a program would own them and could change their modes, so sandboxes get device files that
belong to nobody. Any program may set their times, so the times are reset before each start.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice

from palaestra.core.errors import SandboxError
from palaestra.sandbox.records import Files

MAX_DEPTH, _MAX_PATH, MAX_NAMES = 64, 4096, 100_000
"""Limits of a listing: depth of folders, length of paths, number of directory entries."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_descriptor(path: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file by its path below the folder with descriptor `folder`, and close it at the end of the context."""
    file = os.open(path, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def write_files(workspace: int, files: Files) -> None:
    """Write `files` below the folder with descriptor `workspace`, and create their folders.

    Raises:
        SandboxError: a path leaves the workspace or contains a link, or the folder is full.
    """
    for name, content in files.items():
        *above, last = split_path(name)
        try:
            folder = _descend(workspace, above, make=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(last, flags, 0o755, dir_fd=folder)
                with open(file, "wb") as out:
                    out.write(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
            finally:
                os.close(folder)
        except (OSError, UnicodeEncodeError) as error:
            reason = error.reason if isinstance(error, UnicodeEncodeError) else error.strerror
            raise SandboxError(
                f"cannot put the file {name!r} into the workspace: {reason}; give another path, or a larger limit disk"
            ) from error


def read_files(workspace: int, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
    """Read the regular files among `names` below the folder with descriptor `workspace`; see `Shell.read_files`."""
    contents: dict[str, bytes] = {}
    left = sys.maxsize if total is None else total
    for name in dict.fromkeys(names):
        *above, last = split_path(name)
        with suppress(OSError, UnicodeEncodeError):
            folder = _descend(workspace, above, make=False)
            try:
                file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            finally:
                os.close(folder)
            with open(file, "rb") as source:
                about = os.fstat(file)
                if not stat.S_ISREG(about.st_mode):
                    continue
                size = min(about.st_size, longest)  # it may grow meanwhile
                if size > left:
                    break
                contents[name] = source.read(size)
                left -= len(contents[name])
    return contents


def list_files(workspace: int, most: int) -> list[str]:
    """Return at most `most` regular files below the folder with descriptor `workspace`. Links are not followed.

    The files of a folder come first, sorted, then those of its subfolders. Files deeper than `MAX_DEPTH` folders or after
    the first `MAX_NAMES` entries are left out, and so are names that are not UTF-8.
    """
    paths: list[str] = []
    seen = 0
    waiting = [(0, ".")]  # folders and their depth; the last one is next
    trail: list[tuple[int, str]] = []  # descriptors and paths of the current folder and those above
    try:
        while waiting and len(paths) < most and seen < MAX_NAMES:
            depth, name = waiting.pop()
            while len(trail) > depth:
                os.close(trail.pop()[0])
            above, path = trail[-1] if trail else (workspace, "")
            with suppress(OSError):
                trail.append((os.open(name, _FOLDER_FLAGS, dir_fd=above), f"{path}{name}/" if depth else ""))
                folder, path = trail[-1]
                files, below, looked_at = _names_in(folder, MAX_NAMES - seen)
                paths += [path + name for name in files[: most - len(paths)]]
                seen += looked_at
                if depth < MAX_DEPTH and len(path) < _MAX_PATH:
                    waiting += [(depth + 1, name) for name in reversed(below)]
    finally:
        for folder, _ in trail:
            os.close(folder)
    return paths


def _names_in(folder: int, most: int) -> tuple[list[str], list[str], int]:
    """Return the sorted regular files and subfolders of a folder, and the number of entries read, at most `most`."""
    files: list[str] = []
    below: list[str] = []
    with os.scandir(folder) as entries:
        looked_at = list(islice(entries, most))
        for entry in looked_at:
            with suppress(OSError, UnicodeEncodeError):
                entry.name.encode()
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
    return sorted(files), sorted(below), len(looked_at)


def split_path(name: str) -> list[str]:
    """Split a relative path; raises if it leaves its folder.

    >>> split_path("src/./main.py")
    ['src', 'main.py']
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or name.endswith("/") or ".." in parts or "\0" in name:
        raise SandboxError(f"a workspace file must have a relative path without '..'; got {name!r}")
    return parts


def _descend(workspace: int, names: list[str], make: bool) -> int:
    folder = os.dup(workspace)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            below = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


_listed: dict[str, tuple[tuple[int, int], list[str], list[str]]] = {}
"""Listed folders: inode and time of the last change, subfolders, special files."""


def find_special_files(path: str) -> list[str]:
    """Return the FIFOs and sockets below a folder, by relative path; the empty path if `path` itself is one.

    A program could use them although they are mounted read-only. An unchanged folder is not listed again.
    """
    paths, folders = [], [""]
    if not os.path.isdir(path):
        return [""] if os.path.exists(path) and _is_special(os.stat(path)) else []
    while folders:
        name = folders.pop()
        below, special = _list_folder(os.path.join(path, name))
        folders += [os.path.join(name, folder) for folder in below]
        paths += [os.path.join(name, file) for file in special]
    return paths


def _list_folder(path: str) -> tuple[list[str], list[str]]:
    with suppress(OSError):
        info = os.stat(path)
        changed = info.st_ino, info.st_mtime_ns
        before, below, special = _listed.get(path, (None, [], []))
        if before != changed:
            below, special = [], []
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                        special += [entry.name] if _is_special(entry.stat(follow_symlinks=False)) else []
            if len(_listed) >= MAX_NAMES:
                _listed.clear()
            _listed[path] = changed, below, special
        return below, special
    return [], []  # programs cannot read a folder that this process cannot read


def _is_special(info: os.stat_result) -> bool:
    return stat.S_ISFIFO(info.st_mode) or stat.S_ISSOCK(info.st_mode)


DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
DEVICE_FOLDER = "/dev/palaestra"
_NOBODY = 65534


@cache
def prepare_devices(folder: str = DEVICE_FOLDER) -> str | None:
    """Create a folder like `/dev` that belongs to nobody; None if this process is not root or lacks permission."""
    if os.geteuid() != 0:
        return None
    with suppress(OSError):
        for path in (folder, os.path.join(folder, "shm")):
            os.makedirs(path, mode=0o755, exist_ok=True)
            os.chown(path, _NOBODY, _NOBODY)
        for name, target in _LINKS.items():
            path = os.path.join(folder, name)
            if not os.path.lexists(path):
                os.symlink(target, path)
            os.lchown(path, _NOBODY, _NOBODY)
        for name, number in DEVICES.items():
            path, fresh = os.path.join(folder, name), os.path.join(folder, f".{name}-{os.getpid()}")
            if not _is_device(path, number):
                os.mknod(fresh, stat.S_IFCHR | 0o666, os.makedev(*number))
                os.chmod(fresh, 0o666)
                os.chown(fresh, _NOBODY, _NOBODY)
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
        return same and stat.S_IMODE(info.st_mode) == 0o666 and (info.st_uid, info.st_gid) == (_NOBODY, _NOBODY)
    return False
