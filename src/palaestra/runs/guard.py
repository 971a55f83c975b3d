"""What a disk or a database says when it refuses, in the words of a user."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palaestra.core.errors import RunError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def guarded(path: Path, doing: str) -> Iterator[None]:
    """Turn the errors of disk and database into `StorageError` and `RunError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(_full(path, doing)) from error
        if error.errno in _REFUSED:
            raise StorageError(f"cannot write while {doing}: {path} is read-only for this user") from error
        if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}:
            raise StorageError(f"cannot write while {doing}: {path} is not a folder that can be written to") from error
        raise
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "full" in text or getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
            raise StorageError(_full(path, doing)) from error
        if "readonly" in text or "unable to open" in text:
            raise StorageError(f"cannot write while {doing}: {path} is read-only for this user") from error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise RunError(
            f"the run folder is damaged: {path}: {text}; restore it from a copy or start a new run"
        ) from error


def _full(path: Path, doing: str) -> str:
    return f"no space left on the disk while {doing} ({path}); free some space, then: palaestra resume {_run_of(path)}"


def _run_of(path: Path) -> Path:
    """The run folder that `path` lies in: the nearest one above it that has settings."""
    for folder in (path, *path.parents):
        if (folder / "settings.json").exists():
            return folder
    return path
