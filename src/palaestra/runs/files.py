"""Atomic writes of files and folders, records as JSON, and disk and SQLite errors with advice for the user."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.core.errors import RunError, StorageError
from palaestra.core.secrets import mask, mask_data, mask_rows

if TYPE_CHECKING:
    from pydantic import TypeAdapter


PARTIAL = ".partial"


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, atomically. Secrets are masked."""
    _write(path, json.dumps(mask_data(data), indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` to a temporary file, then rename it into place. Secrets are masked."""
    _write(path, mask(text))


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path, f"writing {path.name}"):
        try:
            with open(partial, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises `RunError` if it does not exist or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} has no file {path.name}") from None
    except (ValueError, OSError) as error:
        raise RunError(f"the file {path} cannot be read: {error}") from error


def check_empty_folder(folder: Path) -> None:
    """Raise if `folder`, which is about to be written, exists and is not an empty folder.

    Raises:
        RunError: names the folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty; choose another --out")


def write_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, then rename it to `path`.

    A kill at any instant leaves the old folder, the new one or none, but never a part of one. If the disk is full, the
    temporary folder is removed.
    """
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path, f"writing the checkpoint {path.name}"):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write(partial)
            for file in partial.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as stream:
                        os.fsync(stream.fileno())
            if path.exists():
                shutil.rmtree(path)
            os.replace(partial, path)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            # safetensors raises its own error for a full disk, with the error number only in the text.
            if match := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
            raise


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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
        raise StorageError(f"failed while {doing}: {path}: {error.strerror or error}") from error
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


class MaskingConnection(sqlite3.Connection):
    """A database that stores no secrets: those in the values of a statement are masked."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().execute(sql, *mask_rows([values]))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().executemany(sql, mask_rows(rows))


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


T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type. It is cached because building one is slow."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: Any) -> str:
    """Convert a record to JSON text."""
    return _adapter(type(record)).dump_json(record).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse a record of `kind` from JSON text. Raises `ValueError` if it is invalid."""
    record: T = _adapter(kind).validate_json(text)
    return record


def to_data(record: Any) -> Any:
    """Convert a record to dictionaries, lists and plain values."""
    return _adapter(type(record)).dump_python(record, mode="json")
