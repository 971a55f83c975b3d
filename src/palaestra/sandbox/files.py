"""Files into a workspace and out of it, without following anything that a program may have left there."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import Files

DEEPEST, LONGEST, MOST_SEEN = 64, 4096, 100_000
"""How deep the folders are that are listed, how long their paths, and how many names are looked at for a list."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(workspace: int, files: Files) -> None:
    """Write `files` below the open folder `workspace`, with the folders that they need.

    Raises:
        SandboxError: a path leads out of the workspace or through a link, or there is no room.
    """
    for name, content in files.items():
        *above, last = parts(name)
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
    """Those of `names` that are plain files below the open folder `workspace`, each up to `longest` bytes, as far as
    they fit into `total`; see `Shell.read_files`."""
    found: dict[str, bytes] = {}
    left = sys.maxsize if total is None else total
    for name in dict.fromkeys(names):
        *above, last = parts(name)
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
                found[name] = source.read(size)
                left -= len(found[name])
    return found


def list_files(workspace: int, most: int) -> list[str]:
    """The plain files below the open folder `workspace`, at most `most`; no link is followed.

    First come those of a folder, by name, then those of the folders in it. What lies deeper than `DEEPEST` folders, or
    behind the first `MOST_SEEN` names of any kind, is left out; so is a name that is not UTF-8.
    """
    found: list[str] = []
    seen = 0
    waiting = [(0, ".")]  # folders and how deep they lie; the next is the last
    trail: list[tuple[int, str]] = []  # the folders that lead to the one at hand, opened, and their paths
    try:
        while waiting and len(found) < most and seen < MOST_SEEN:
            depth, name = waiting.pop()
            while len(trail) > depth:
                os.close(trail.pop()[0])
            above, path = trail[-1] if trail else (workspace, "")
            with suppress(OSError):
                trail.append((os.open(name, FOLDER, dir_fd=above), f"{path}{name}/" if depth else ""))
                folder, path = trail[-1]
                files, below, looked_at = _names_in(folder, MOST_SEEN - seen)
                found += [path + name for name in files[: most - len(found)]]
                seen += looked_at
                if depth < DEEPEST and len(path) < LONGEST:
                    waiting += [(depth + 1, name) for name in reversed(below)]
    finally:
        for folder, _ in trail:
            os.close(folder)
    return found


def _names_in(folder: int, most: int) -> tuple[list[str], list[str], int]:
    """The plain files and the folders in an open folder, sorted, and how many names were looked at, at most `most`."""
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


def parts(name: str) -> list[str]:
    """The parts of a relative path that stays where it is.

    >>> parts("src/./main.py")
    ['src', 'main.py']
    """
    found = [part for part in name.split("/") if part not in ("", ".")]
    if not found or name.startswith("/") or name.endswith("/") or ".." in found or "\0" in name:
        raise SandboxError(f"a file of the workspace has a relative path without '..'; got {name!r}")
    return found


def _descend(workspace: int, names: list[str], make: bool) -> int:
    folder = os.dup(workspace)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            below = os.open(name, FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


_listed: dict[str, tuple[tuple[int, int], list[str], list[str]]] = {}
"""Folders that were looked at: when they last changed, the folders in them, and their special files."""


def find_special_files(path: str) -> list[str]:
    """The FIFOs and sockets below a folder, by relative path; the empty path for one that is such a file itself.

    They can be used where everything else is read-only. A folder that has not changed is not listed again.
    """
    found, folders = [], [""]
    if not os.path.isdir(path):
        return [""] if os.path.exists(path) and _is_special(os.stat(path)) else []
    while folders:
        name = folders.pop()
        below, special = _list_folder(os.path.join(path, name))
        folders += [os.path.join(name, one) for one in below]
        found += [os.path.join(name, one) for one in special]
    return found


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
            if len(_listed) >= MOST_SEEN:
                _listed.clear()
            _listed[path] = changed, below, special
        return below, special
    return [], []  # a folder that we may not read is closed to programs too


def _is_special(info: os.stat_result) -> bool:
    return stat.S_ISFIFO(info.st_mode) or stat.S_ISSOCK(info.st_mode)
