"""Files into a workspace and out of it, without following anything that a program may have left there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import Files

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
        except OSError as error:
            raise SandboxError(
                f"cannot put the file '{name}' into the workspace: {error.strerror}; give another path, or a larger limit disk"
            ) from error


def read_files(workspace: int, names: Iterable[str], longest: int) -> dict[str, bytes]:
    """Those of `names` that are plain files below the open folder `workspace`, each up to `longest` bytes."""
    found = {}
    for name in names:
        *above, last = parts(name)
        with suppress(OSError):
            folder = _descend(workspace, above, make=False)
            try:
                file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            finally:
                os.close(folder)
            with open(file, "rb") as source:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    found[name] = source.read(longest)
    return found


def list_files(workspace: int, most: int) -> list[str]:
    """The plain files below the open folder `workspace`, sorted, at most `most`; no link is followed."""
    found: list[str] = []
    for folder, below, names, handle in os.fwalk(".", dir_fd=workspace, follow_symlinks=False):
        below.sort()
        for name in sorted(names):
            with suppress(OSError, UnicodeEncodeError):
                name.encode()
                if stat.S_ISREG(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                    found.append(os.path.normpath(os.path.join(folder, name)))
        if len(found) >= most:
            break
    return found[:most]


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
