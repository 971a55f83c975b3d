"""Turn errors of the disk and of SQLite into errors with advice for the user."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palaestra.core.errors import RunError, StorageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# SQLite's codes for files that could not grow.
_NO_ROOM = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_TRUNCATE,
}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def storage_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn errors of disk and database into `StorageError` and `RunError` about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(_full(path, doing)) from error
        if error.errno in _REFUSED:
            raise StorageError(f"cannot write while {doing}: {path} is read-only for this user") from error
        if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.EISDIR}:
            raise StorageError(f"cannot write while {doing}: {path} is not a folder that can be written to") from error
        raise StorageError(f"cannot go on while {doing}: {path}: {error.strerror or error}") from error
    except sqlite3.DatabaseError as error:
        text, code = str(error), getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF == sqlite3.SQLITE_FULL or code in _NO_ROOM:
            raise StorageError(_full(path, doing)) from error
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise RunError(f"{path} is in use by another process; wait for it or stop it") from error
        if "readonly" in text or "unable to open" in text:
            raise StorageError(f"cannot write while {doing}: {path} is read-only for this user") from error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise RunError(
            f"the run folder is damaged: {path}: {text}; restore it from a copy or start a new run"
        ) from error


@contextmanager
def transaction(db: sqlite3.Connection, path: Path, doing: str) -> Iterator[sqlite3.Connection]:
    """Commit all writes in this context in one transaction, or none of them."""
    with storage_errors(path, doing):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def _full(path: Path, doing: str) -> str:
    """Return the message for a full disk, with the command to resume the run if there is one."""
    message = f"no space left on the disk while {doing} ({path}); free some space"
    for folder in (path, *path.parents):
        if (folder / "settings.json").exists() and (folder / "store.sqlite").exists():
            return f"{message}, then: palaestra resume {folder}"
    return f"{message} and start again"
