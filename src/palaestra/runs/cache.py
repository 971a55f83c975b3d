"""The cache of completions and the ledger of calls, in one SQLite file.

A call is recorded before it starts. Its answer and cost are written in one transaction when the answer arrives. A kill at
any instant loses only the running calls, and those are still counted.

Several processes may share one file. A running call claims its key until it ends, so no other call with this key starts. Each
open cache that makes calls holds a lock on a file of its own (`FILE-ID.lock`), which the system releases when the process
dies: the claims of a dead process are void.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from palaestra.core.errors import RunError
from palaestra.core.records import Completion, Failure, Usage
from palaestra.runs.files import MaskingConnection, from_json, storage_errors, to_json, transaction
from palaestra.runs.provenance import Spending

_SCHEMA_VERSION = 1
_TIMEOUT = 30.0
"""Maximum seconds to wait for another process that writes."""
_SCHEMA = (Path(__file__).parent / "cache.sql").read_text(encoding="utf-8")
# Files of earlier releases do not have this table.
_CLAIMS = "CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, holder TEXT NOT NULL) WITHOUT ROWID"
_SUMS = (
    "COUNT(*), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(completion_tokens), 0), COALESCE(SUM(seconds), 0.0), "
    "COALESCE(SUM(money), 0.0), COALESCE(SUM(NOT priced), 0), COALESCE(SUM(NOT measured), 0), "
    "COUNT(*) - COUNT(DISTINCT key)"
)
"""SQL for the cost of calls, in the order of the fields of `Spending`."""
_KINDS: dict[str, type[Completion] | type[Failure]] = {"completion": Completion, "failure": Failure}


def digest(parts: object) -> str:
    """Return the key of a request: a hash of plain data, the same in every process."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class Cache:
    """Stores answers by key, and calls by owner.

    Arguments:
        path: the SQLite file, created if it does not exist; `":memory:"` stores nothing on disk.

    An owner is the id of a run; a phase is a part of it, as in the run's ledger.

    Raises:
        RunError: the file is not a cache, is damaged, or has another version.
        StorageError: the file cannot be written to.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._holder, self._alive = uuid.uuid4().hex, -1
        self._running: set[str] = set()
        """Keys of the running calls of this object."""
        with storage_errors(self.path, "opening the cache"):
            if str(path) != ":memory:":
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=_TIMEOUT, check_same_thread=False, factory=MaskingConnection
            )
        try:
            with storage_errors(self.path, "opening the cache"):
                self._use_wal()
                # A kill loses no committed answer. A power cut may lose the last ones, which are requested again.
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._prepare()
        except BaseException as error:
            self._db.close()
            if isinstance(error, RunError) and "damaged" in str(error):
                advice = "delete it: its answers are requested again"
                raise RunError(f"{self.path} is not a cache or is damaged; {advice}") from error
            raise

    def _use_wal(self) -> None:
        """Turn on the write-ahead log. SQLite does not wait if another process does the same."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _prepare(self) -> None:
        """Check the version of the schema, and create missing tables."""
        exists = self._db.execute("SELECT 1 FROM sqlite_master WHERE name='meta'").fetchone()
        if not exists:
            self._db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} INSERT OR IGNORE INTO meta VALUES ('schema', '{_SCHEMA_VERSION}'); COMMIT;"
            )
        version = str(self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()[0])
        if version != str(_SCHEMA_VERSION):
            raise RunError(
                f"the cache {self.path} has version {version}; expected {_SCHEMA_VERSION}; delete it or use another"
            )
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name='claims'").fetchone():
            self._db.execute(_CLAIMS)

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._alive >= 0:
                os.close(self._alive)
                self._find_lock(self._holder).unlink(missing_ok=True)
                self._alive = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, transaction(self._db, self.path, doing) as db:
            yield db

    # Answers

    def get(self, keys: Iterable[str]) -> dict[str, Completion | Failure]:
        """Return the stored answers by key."""
        query = "SELECT kind, data FROM answers WHERE key=?"
        return {key: self._parse(*row) for key in keys for row in self._select(query, key)}

    def _select(self, query: str, *values: object) -> list[Any]:
        with self._lock, storage_errors(self.path, "reading the cache"):
            return self._db.execute(query, values).fetchall()

    def _parse(self, kind: str, data: str) -> Completion | Failure:
        try:
            return from_json(_KINDS[kind], data)
        except (KeyError, ValueError) as error:
            raise RunError(f"the cache {self.path} is damaged; delete it: its answers are requested again") from error

    # Calls

    def begin(
        self, owner: str, phase: str, model: str, keys: Sequence[str], *, priced: bool = True
    ) -> list[int] | None:
        """Record that calls are about to start, and claim their keys until they end.

        Returns:
            The numbers of the calls, for `end`. `None` if no call may start: all keys have answers, or a call with one of
            the keys is running, in this process or another.
        """
        with self._lock:
            self._hold()
            with self._transaction("recording a call") as db:
                missing = [k for k in keys if not db.execute("SELECT 1 FROM answers WHERE key=?", (k,)).fetchone()]
                if not missing or self.is_running(keys):
                    return None
                db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", [(key, self._holder) for key in missing])
                query = "INSERT INTO calls (owner, phase, model, key, started, priced) VALUES (?, ?, ?, ?, ?, ?)"
                rows = [(owner, phase, model, key, time.time(), priced) for key in keys]
                calls = [db.execute(query, row).lastrowid or 0 for row in rows]
            self._running.update(missing)
            return calls

    def is_running(self, keys: Iterable[str]) -> bool:
        """Whether a call with one of the keys is running, in this process or another."""
        with self._lock, storage_errors(self.path, "reading the cache"):
            for key in keys:
                row = self._db.execute("SELECT holder FROM claims WHERE key=?", (key,)).fetchone()
                if row is not None and (key in self._running if row[0] == self._holder else self._is_alive(row[0])):
                    return True
        return False

    def _find_lock(self, holder: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{holder}.lock")

    def _hold(self) -> None:
        """Lock the file that shows that this object is alive, and remove the files of dead ones."""
        if self._alive >= 0 or str(self.path) == ":memory:":
            return
        with storage_errors(self.path, "locking the cache"):
            prefix = f"{self.path.name}-"
            for path in self.path.parent.iterdir():
                is_lock = path.name.startswith(prefix) and path.suffix == ".lock"
                if is_lock and not self._is_alive(path.stem.removeprefix(prefix)):
                    path.unlink(missing_ok=True)
            path = self._find_lock(self._holder)
            while True:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(handle, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):  # Another process may have removed the file before it was locked.
                    if os.path.samestat(os.fstat(handle), path.stat()):
                        break
                os.close(handle)
        self._alive = handle

    def _is_alive(self, holder: str) -> bool:
        try:
            handle = os.open(self._find_lock(holder), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(handle)

    def end(
        self,
        call: int,
        usage: Usage | None,
        seconds: float,
        money: float = 0.0,
        keep: tuple[str, Completion | Failure] | None = None,
    ) -> None:
        """Record the cost of a call, store its answer and release its key, in one transaction.

        Arguments:
            usage: `None` if it is unknown.
            keep: the key and the answer to store.
        """
        tokens = usage or Usage()
        with self._transaction("storing an answer") as db:
            (called,) = db.execute("SELECT key FROM calls WHERE id=?", (call,)).fetchone()
            self._running.discard(called)
            db.execute("DELETE FROM claims WHERE key=? AND holder=?", (called, self._holder))
            db.execute(
                "UPDATE calls SET ended=1, measured=?, prompt_tokens=?, completion_tokens=?, seconds=?, money=? WHERE id=?",
                (usage is not None, tokens.prompt_tokens, tokens.completion_tokens, seconds, money, call),
            )
            if keep is not None:
                key, answer = keep
                kind = "completion" if isinstance(answer, Completion) else "failure"
                # The first answer wins, because another process may have read it already.
                db.execute(
                    "INSERT OR IGNORE INTO answers SELECT ?, model, ?, ?, ? FROM calls WHERE id=?",
                    (key, kind, to_json(answer), time.time(), call),
                )

    def spent_by_key(self, owner: str, phase: str) -> dict[str, Spending]:
        """Return the cost of an owner's calls in a phase, by key."""
        query = f"SELECT key, {_SUMS} FROM calls WHERE owner=? AND phase=? GROUP BY key"
        return {key: _make_spending(sums) for key, *sums in self._select(query, owner, phase)}

    def hit(self, owner: str, phase: str, model: str, count: int) -> None:
        """Record that `count` answers came from the cache."""
        with self._transaction("recording cache hits") as db:
            db.execute(
                "INSERT INTO hits VALUES (?, ?, ?, ?) "
                "ON CONFLICT (owner, phase, model) DO UPDATE SET count = count + excluded.count",
                (owner, phase, model, count),
            )

    def spent(self, owner: str = "", phase: str = "") -> Spending:
        """Return the cost of an owner's calls so far, in total or in phases that start with `phase`.

        Calls of killed processes are included; those that were running are `unmeasured`.
        """
        where = "WHERE owner=? AND substr(phase, 1, ?)=?"
        values = (owner, len(phase), phase)
        [sums] = self._select(f"SELECT {_SUMS} FROM calls {where}", *values)
        [(hits,)] = self._select(f"SELECT COALESCE(SUM(count), 0) FROM hits {where}", *values)
        return _make_spending(sums, hits)


def _make_spending(sums: Sequence[Any], hits: int = 0) -> Spending:
    """Convert the `_SUMS` of calls."""
    calls, prompt, completion, *others = sums
    return Spending(calls, hits, Usage(prompt, completion), *others)
