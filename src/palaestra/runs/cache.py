"""The cache of completions and the ledger of calls, in one SQLite file.

A call is recorded before it starts. Its answer and cost are written in one transaction when the answer arrives. A kill at
any instant loses only the running calls, and those are still counted. Several processes may share one file.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.records import Completion, Failure, Usage
from palaestra.runs.files import MaskingConnection, from_json, storage_errors, to_json, transaction
from palaestra.runs.ledger import Spending

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, kind TEXT, data TEXT NOT NULL, made REAL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (id INTEGER PRIMARY KEY, owner TEXT, phase TEXT, model TEXT, key TEXT, started REAL,
                    ended INTEGER DEFAULT 0, measured INTEGER DEFAULT 0, priced INTEGER DEFAULT 1,
                    prompt_tokens INTEGER DEFAULT 0, completion_tokens INTEGER DEFAULT 0,
                    seconds REAL DEFAULT 0, money REAL DEFAULT 0);
CREATE TABLE IF NOT EXISTS hits (owner TEXT, phase TEXT, model TEXT, count INTEGER, PRIMARY KEY (owner, phase, model));
CREATE INDEX IF NOT EXISTS calls_of ON calls (owner, phase);
"""
_KINDS: dict[str, type[Completion] | type[Failure]] = {"completion": Completion, "failure": Failure}


def digest(parts: Any) -> str:
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
        with storage_errors(self.path, "opening the cache"):
            if str(path) != ":memory:":
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, isolation_level=None, timeout=30.0, check_same_thread=False, factory=MaskingConnection
            )
        try:
            with storage_errors(self.path, "opening the cache"):
                self._db.execute("PRAGMA journal_mode=WAL")
                # A kill loses no committed answer. A power cut may lose the last ones, which are requested again.
                self._db.execute("PRAGMA synchronous=NORMAL")
                version = self._prepare()
        except RunError as error:
            self._db.close()
            if "damaged" in str(error):
                raise RunError(
                    f"{self.path} is not a cache or is damaged; delete it: its answers are requested again"
                ) from error
            raise
        except BaseException:
            self._db.close()
            raise
        if version != str(SCHEMA_VERSION):
            self._db.close()
            raise RunError(
                f"the cache {self.path} has version {version}; expected {SCHEMA_VERSION}; delete it or use another"
            )

    def _prepare(self) -> str:
        """Create missing tables. Returns the version of the schema."""
        exists = self._db.execute("SELECT 1 FROM sqlite_master WHERE name='meta'").fetchone()
        if not exists:
            self._db.executescript(
                f"BEGIN IMMEDIATE; {_SCHEMA} INSERT OR IGNORE INTO meta VALUES ('schema', '{SCHEMA_VERSION}'); COMMIT;"
            )
        return str(self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()[0])

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def __enter__(self) -> Cache:
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
        answers: dict[str, Completion | Failure] = {}
        with self._lock, storage_errors(self.path, "reading the cache"):
            for key in keys:
                row = self._db.execute("SELECT kind, data FROM answers WHERE key=?", (key,)).fetchone()
                if row is not None:
                    answers[key] = self._parse(*row)
        return answers

    def _parse(self, kind: str, data: str) -> Completion | Failure:
        try:
            return from_json(_KINDS[kind], data)
        except (KeyError, ValueError) as error:
            raise RunError(f"the cache {self.path} is damaged; delete it: its answers are requested again") from error

    # Calls

    def begin(self, owner: str, phase: str, model: str, key: str, *, priced: bool = True) -> int:
        """Record that a call is about to start. Returns its number, for `end`."""
        with self._transaction("recording a call") as db:
            row = db.execute(
                "INSERT INTO calls (owner, phase, model, key, started, priced) VALUES (?, ?, ?, ?, ?, ?)",
                (owner, phase, model, key, time.time(), priced),
            )
            return int(row.lastrowid or 0)

    def end(
        self,
        call: int,
        usage: Usage | None,
        seconds: float,
        money: float = 0.0,
        keep: tuple[str, Completion | Failure] | None = None,
    ) -> None:
        """Record the cost of a call and store its answer, in one transaction.

        Arguments:
            usage: `None` if it is unknown.
            keep: the key and the answer to store.
        """
        tokens = usage or Usage()
        with self._transaction("storing an answer") as db:
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

    def find_calls(self, owner: str, phase: str) -> dict[str, Spending]:
        """Return the cost of an owner's calls in a phase, by key."""
        query = (
            "SELECT key, COUNT(*), SUM(prompt_tokens), SUM(completion_tokens), SUM(seconds), SUM(money), "
            "SUM(NOT priced), SUM(NOT measured) FROM calls WHERE owner=? AND phase=? GROUP BY key"
        )
        with self._lock, storage_errors(self.path, "reading the cache"):
            rows = self._db.execute(query, (owner, phase)).fetchall()
        return {
            key: Spending(calls, 0, Usage(prompt, completion), seconds, money, unpriced, unmeasured, calls - 1)
            for key, calls, prompt, completion, seconds, money, unpriced, unmeasured in rows
        }

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
        with self._lock, storage_errors(self.path, "reading the cache"):
            calls, prompt, completion, seconds, money, unpriced, unmeasured, again = self._db.execute(
                "SELECT COUNT(*), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(completion_tokens), 0), "
                "COALESCE(SUM(seconds), 0.0), COALESCE(SUM(money), 0.0), COALESCE(SUM(NOT priced), 0), "
                f"COALESCE(SUM(NOT measured), 0), COUNT(*) - COUNT(DISTINCT key) FROM calls {where}",
                values,
            ).fetchone()
            (hits,) = self._db.execute(f"SELECT COALESCE(SUM(count), 0) FROM hits {where}", values).fetchone()
        return Spending(calls, hits, Usage(prompt, completion), seconds, money, unpriced, unmeasured, again)
