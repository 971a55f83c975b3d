"""The files of a checkout: which of them are secret, and how the rest is shown without them."""

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
"""Entries of a folder that are shown one by one: each takes the sandbox a millisecond or more, and some thousands are too many."""


class Secrets:
    """The secret files of a task, as they are now.

    Arguments:
        root: the checkout, without links in its path.
        names: of files and folders, relative to the checkout, as the task file has them; `*` and the like stand for any.
            One without a folder, and one that is not there, is meant wherever a file has that name.

    Raises:
        TaskError: a name is no path and no pattern.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self._names = tuple(posixpath.normpath(name.strip("/")) for name in names if name.strip("/."))
        self._bare: set[str] = set()
        self.files: dict[str, Path] = {}
        """Those that are there, by their places in the workspace in which a submission is judged."""
        for name in self._names:
            found = self._found(name)
            if "/" not in name or not found:
                self._bare.add(posixpath.basename(name))
            for path in found:
                if not path.resolve().is_relative_to(root):
                    continue
                if path.is_dir():
                    self.files |= {f"{path.name}/{one.relative_to(path).as_posix()}": one for one in files_below(path)}
                else:
                    self.files[path.name] = path
        self._identities = {_identity(path) for path in self.files.values()} - {None}

    def _found(self, name: str) -> list[Path]:
        try:
            return [self.root / name] if (self.root / name).exists() else sorted(self.root.glob(name))
        except (ValueError, OSError) as error:
            raise TaskError(f"secret_files: '{name}' is no path and no pattern: {error}") from error

    def has(self, path: Path, place: str) -> bool:
        """Whether a file or folder is secret: by where it lies in the checkout, by its place in the workspace, by its name
        where the task file says no more, or because it is a secret file under another name.

        Arguments:
            path: below the checkout.
            place: relative to the workspace.
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
        """What an agent may see of a folder of the checkout, from the place in the workspace to the path.

        A folder in it that holds no secret is one entry; one that does is taken apart. Where that would be a crowd, the folder
        is one entry too, with nothing in the place of the files that are secret.

        Arguments:
            shared: other folders are seen at the same place; this one is always taken apart.
        """
        seen = self._look(folder, place, frozenset())
        return seen.entries if shared or len(seen.entries) <= CROWD else seen.cover(folder, place)

    def _look(self, folder: Path, place: str, above: frozenset[str]) -> _FolderView:
        entries: dict[str, str] = {}
        hidden: list[str] = []
        whole, above = True, above | {os.path.realpath(folder)}
        for entry in sorted(folder.iterdir()):
            inside, link = f"{place}/{entry.name}", entry.is_symlink()
            if not entry.exists():  # A link to nothing.
                continue
            if self.has(entry, inside):
                whole = False
                hidden += [] if link else _names_of(entry, inside)
            elif not self._names or not entry.is_dir():
                entries[inside] = str(entry)
            elif os.path.realpath(entry) in above:  # Would show again, by another name, what is taken apart here.
                whole = False
            else:
                seen = self._look(entry, inside, above)
                whole = whole and seen.whole
                hidden += [] if link else seen.hidden
                if seen.whole:
                    entries[inside] = str(entry)
                else:
                    entries |= seen.entries if len(seen.entries) <= CROWD else seen.cover(entry, inside)
        return _FolderView(entries, hidden, whole)


@dataclass(frozen=True, slots=True)
class _FolderView:
    """What may be seen of a folder.

    Arguments:
        entries: from the place in the workspace to the path.
        hidden: the places of files that may not be seen. Those behind links are none: a link that is shown as such leads to
            what the sandbox has there.
        whole: nothing is hidden, and the folder may be seen as it is.
    """

    entries: dict[str, str]
    hidden: list[str]
    whole: bool

    def cover(self, folder: Path, place: str) -> dict[str, str]:
        """The folder as it is, with nothing in the place of each hidden file."""
        return {place: str(folder), **dict.fromkeys(self.hidden, os.devnull)}


def below(root: Path, name: str) -> Path | None:
    """A path of the checkout, unless it leads out of it."""
    path = (root / name).resolve()
    return path if path.is_relative_to(root) else None


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those below it, in order. A folder to which links lead is entered once."""
    entered = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(here) / name).is_file())


def _names_of(path: Path, place: str) -> list[str]:
    """The place of a file, or those of the files in a folder."""
    return [f"{place}/{one.relative_to(path).as_posix()}" for one in files_below(path)] if path.is_dir() else [place]


def _identity(path: Path) -> tuple[int, int] | None:
    """The file itself, whatever it is called; a folder has none."""
    with suppress(OSError):
        if path.is_file():
            about = path.stat()
            return about.st_dev, about.st_ino
    return None
