"""Atomic writes of files and folders, records as JSON, and disk and SQLite errors with advice for the user."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.core.errors import RunError, StorageError
from palaestra.core.text import clean_text, mask, mask_data, mask_rows

if TYPE_CHECKING:
    from pydantic import TypeAdapter


PARTIAL = ".partial"
_MAX_TEXT = 1 << 25
"""Maximum size in bytes of a text file that is read at once."""
_MARKS = ("store.sqlite", "study.json", "bench.json")
"""Files by which the folder of a run, a study or a bench is recognized."""


def write_json(path: Path, data: object) -> None:
    """Write `data` as JSON, atomically. Secrets are masked."""
    write_bytes(path, clean_text(json.dumps(mask_data(data), indent=2, ensure_ascii=False) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    """Write `text` in UTF-8 as `write_bytes` does. Secrets are masked."""
    write_bytes(path, clean_text(mask(text)).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new temporary file, then rename it into place. No link is followed: one in place of the file is replaced."""
    partial = path.with_name(path.name + PARTIAL)
    with storage_errors(path, f"writing {path.name}"):
        refuse_links(path.parent)
        try:
            partial.unlink(missing_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def refuse_links(path: Path) -> None:
    """Raise if `path`, or a folder between it and its run folder, is a link. Links to the run folder itself are allowed.

    A run folder may come from somebody else: a link in it would let Palaestra write to any file of the user.

    Raises:
        StorageError: names the link.
    """
    roots = [folder for folder in path.parents if any(os.path.lexists(folder / name) for name in _MARKS)]
    inside = [part for part in (path, *path.parents) if roots and roots[-1] in part.parents]
    if link := next((part for part in inside if part.is_symlink()), None):
        raise StorageError(
            f"{link} is a link, and Palaestra writes to no link inside a run folder; replace it by a folder"
        )


def check_own_file(path: Path, *, writable: bool = True) -> None:
    """Raise if an existing file is not a regular file, or (`writable`) if writing to it would change another file as well.

    Raises:
        StorageError: the file is a link, a pipe, a device or a folder, or has several names (hard links).
    """
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{path} is a {_name_kind(status.st_mode)}; expected a regular file")
        if writable and status.st_nlink > 1:
            raise StorageError(
                f"{path} has {status.st_nlink} names (hard links); copy the run folder, then use the copy"
            )


def _name_kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "link", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def read_text(path: Path, *, follow_link: bool = False) -> str:
    """Read a text file in UTF-8.

    Arguments:
        follow_link: read the target of a link. A link in a run folder could show, and a report publish, any file of the user.

    Raises:
        FileNotFoundError: it does not exist.
        RunError: it is not a regular file, is too large, or cannot be read.
    """
    try:
        # A pipe without a writer would block.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_link else os.O_NOFOLLOW))
        with open(file, "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise RunError(f"the file {path} cannot be read: it is a {_name_kind(status.st_mode)}")
            data = stream.read(_MAX_TEXT + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise RunError(f"the file {path} cannot be read: {reason}") from error
    if len(data) > _MAX_TEXT:
        raise RunError(f"the file {path} cannot be read: it has more than {_MAX_TEXT >> 20} MB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RunError(f"the file {path} cannot be read: {error}") from error


def read_json(path: Path, *, follow_link: bool = False) -> Any:
    """Read a JSON file. Raises `RunError` if it does not exist or is not JSON; see `read_text`."""
    try:
        return json.loads(read_text(path, follow_link=follow_link))
    except FileNotFoundError:
        raise RunError(f"{path.parent} has no file {path.name}") from None
    except ValueError as error:
        raise RunError(f"the file {path} cannot be read: {error}") from error
    except RecursionError:
        raise RunError(f"the file {path} cannot be read: its values are nested too deeply") from None


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
            refuse_links(path.parent)
            _remove(partial)
            partial.mkdir(parents=True)
            write(partial)
            for file in partial.rglob("*"):
                if file.is_file():
                    with open(file, "rb") as stream:
                        os.fsync(stream.fileno())
            _remove(path)
            os.replace(partial, path)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            # safetensors raises its own error for a full disk, with the error number only in the text.
            if match := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(match[1]), os.strerror(int(match[1])), str(path)) from error
            raise


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, if it exists. The target of a link is kept."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
        if code == sqlite3.SQLITE_INTERRUPT:
            raise RunError(
                f"reading {path} took too long; it may be damaged, or written to keep readers busy"
            ) from error
        if "readonly" in text or "unable to open" in text:
            raise StorageError(f"cannot write while {doing}: {path} is read-only for this user") from error
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
            raise
        raise RunError(
            f"the run folder is damaged: {path}: {text}; restore it from a copy or start a new run"
        ) from error


class MaskingConnection(sqlite3.Connection):
    """A database that stores no secrets: those in the values of a statement are masked."""

    def execute(self, sql: str, values: Sequence[object] = (), /) -> sqlite3.Cursor:  # type: ignore[override]
        return super().execute(sql, *mask_rows([values]))

    def executemany(self, sql: str, rows: Iterable[Sequence[object]], /) -> sqlite3.Cursor:  # type: ignore[override]
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


_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return the adapter of a type. It is cached because building one is slow."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: object) -> str:
    """Convert a record to JSON text."""
    return _adapter(type(record)).dump_json(record).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse a record of `kind` from JSON text. Raises `ValueError` if it is invalid."""
    return _adapter(kind).validate_json(text)


def from_data(kind: type[T], data: object) -> T:
    """Read a record of `kind` from dictionaries, lists and plain values. Raises `ValueError` if they are invalid."""
    return _adapter(kind).validate_python(data)


def to_data(record: object) -> Any:
    """Convert a record to dictionaries, lists and plain values."""
    return _adapter(type(record)).dump_python(record, mode="json")
