"""The secret files of a checkout, and views of its folders without them."""

from __future__ import annotations

import fnmatch
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from palaestra.core.errors import TaskError

CROWD = 100
"""Folders with more entries than this are mounted as a whole. Each mount costs a millisecond or more."""


class Secrets:
    """The secret files of a task.

    Arguments:
        root: the checkout, without links in its path.
        names: files and folders relative to the checkout, as in the task file; `*` and similar patterns are allowed. A
            name without a folder, or of a missing file, matches files of that name everywhere.

    Raises:
        TaskError: a name is neither a path nor a pattern.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self._names = tuple(posixpath.normpath(name.strip("/")) for name in names if name.strip("/."))
        self._bare: set[str] = set()
        self.files: dict[str, Path] = {}
        """Existing secret files by their path in the judging workspace."""
        for name in self._names:
            paths = self._find(name)
            if "/" not in name or not paths:
                self._bare.add(posixpath.basename(name))
            for path in paths:
                if not path.resolve().is_relative_to(root):
                    continue
                self.files |= _list_files(path, path.name)
        self._identities = {_identity(path) for path in self.files.values()} - {None}

    def _find(self, name: str) -> list[Path]:
        try:
            return [self.root / name] if (self.root / name).exists() else sorted(self.root.glob(name))
        except (ValueError, OSError) as error:
            raise TaskError(f"secret_files: '{name}' is neither a path nor a pattern: {error}") from error

    def has(self, path: Path, place: str) -> bool:
        """Whether a file or folder is secret: by its path in the checkout or the workspace, by its name if the task
        file gives only a name, or as another link to a secret file.

        Arguments:
            path: the path below the checkout.
            place: the path relative to the workspace.
        """
        if not self._names:
            return False
        if path.name in self._bare:
            return True
        for where in (f"/{path.relative_to(self.root).as_posix()}/", f"/{place}/"):
            if any(f"/{name}/" in where or fnmatch.fnmatchcase(where, f"*/{name}/*") for name in self._names):
                return True
        return _identity(path) in self._identities

    def visible(self, folder: Path, place: str, shared: bool = False) -> dict[str, str]:
        """Return what an agent may see of a folder, from the path in the workspace to the path on the host.

        A subfolder without secrets is one entry; one with secrets is split into its entries. If there are too many, the
        folder is one entry as well, and the secret files in it are covered.

        Arguments:
            shared: other folders are mounted at the same path; this one is always split.
        """
        seen = self._look(folder, place, frozenset())
        return seen.entries if shared else seen.mounts(folder, place)

    def _look(self, folder: Path, place: str, above: frozenset[str]) -> _FolderView:
        entries: dict[str, str] = {}
        hidden: list[str] = []
        whole, above = True, above | {os.path.realpath(folder)}
        for entry in sorted(folder.iterdir()):
            inside, link = f"{place}/{entry.name}", entry.is_symlink()
            if not entry.exists():  # A dangling link.
                continue
            if self.has(entry, inside):
                whole = False
                hidden += [] if link else list(_list_files(entry, inside))
            elif not self._names or not entry.is_dir():
                entries[inside] = str(entry)
            elif os.path.realpath(entry) in above:  # Would show the split folder again under another name.
                whole = False
            else:
                seen = self._look(entry, inside, above)
                whole = whole and seen.whole
                hidden += [] if link else seen.hidden
                entries |= {inside: str(entry)} if seen.whole else seen.mounts(entry, inside)
        return _FolderView(entries, hidden, whole)


@dataclass(frozen=True, slots=True)
class _FolderView:
    """The visible part of a folder.

    Arguments:
        entries: from the path in the workspace to the path on the host.
        hidden: paths of hidden files. Files behind links are not listed: a visible link is resolved inside
            the sandbox.
        whole: nothing is hidden; the folder can be mounted as a whole.
    """

    entries: dict[str, str]
    hidden: list[str]
    whole: bool

    def mounts(self, folder: Path, place: str) -> dict[str, str]:
        """Return the entries; of a crowd, the whole folder with `/dev/null` over each hidden file."""
        covered = {place: str(folder), **dict.fromkeys(self.hidden, os.devnull)}
        return self.entries if len(self.entries) <= CROWD else covered


def below(root: Path, name: str) -> Path | None:
    """Return a path of the checkout; `None` if it leads out of it."""
    path = (root / name).resolve()
    return path if path.is_relative_to(root) else None


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order. A folder reached through several links is visited once."""
    entered = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(here) / name).is_file())


def _list_files(path: Path, place: str) -> dict[str, Path]:
    """Return a file, or the files of a folder, by their path in a workspace with this one at `place`."""
    if not path.is_dir():
        return {place: path}
    return {f"{place}/{file.relative_to(path).as_posix()}": file for file in files_below(path)}


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file; `None` for a folder."""
    with suppress(OSError):
        if path.is_file():
            about = path.stat()
            return about.st_dev, about.st_ino
    return None
