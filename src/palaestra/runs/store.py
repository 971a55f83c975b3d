"""The store of a run: one SQLite file that survives a kill at any instant.

Every method that writes is one transaction, and one step of a run is written by one call. After a kill a step is stored
completely, with its cost, or not at all.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt, Decision, Example, Lesson, Trajectory
from palaestra.runs.files import MaskingConnection, check_own_file, from_json, storage_errors, to_json, transaction
from palaestra.runs.provenance import CallRecord, LedgerEntry, LedgerTotal

T = TypeVar("T")

_SCHEMA_VERSION = 5
_RENAMED_METRICS = {"decisions": "actions", "total_decisions": "total_actions"}
"""Metrics of earlier versions, with their names now."""
_SCHEMA = (Path(__file__).parent / "store.sql").read_text(encoding="utf-8")
_CALLS = (Path(__file__).parent / "calls.sql").read_text(encoding="utf-8")
"""Created with the first call. Runs of earlier versions and runs without calls do not have this table."""

_TEXTS = "texts"
"""The table that trajectories are searched in, without reading them. Runs of earlier versions do not have it."""
MAX_SECONDS = 60.0
"""Maximum seconds of a query of a store that is open for reading only."""
_MAX_VALUE = 1 << 28
"""Maximum bytes of a value in such a store."""
_PROGRESS_STEPS = 1_000_000
"""Steps of SQLite between two looks at the time."""


class Store:
    """Reads and writes the records of one run.

    Arguments:
        path: the SQLite file; created if `create` is set, otherwise it must exist.
        read_only: open for reading, for example for a report of a running run.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.path, self._deadline = path, time.monotonic() + MAX_SECONDS
        if not create and not path.exists():
            raise RunError(f"{path.parent} has no store {path.name}")
        for end in ("", "-wal", "-shm", "-journal"):  # SQLite follows links.
            check_own_file(path.with_name(path.name + end), writable=not read_only)
        with storage_errors(path, "opening the store"):
            self._db = sqlite3.connect(path, isolation_level=None, factory=MaskingConnection)
            try:
                self._db.execute("PRAGMA trusted_schema=OFF")
                if read_only:
                    self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
                    self._db.set_progress_handler(lambda: time.monotonic() > self._deadline, _PROGRESS_STEPS)
                if create:
                    self._db.execute("PRAGMA journal_mode=WAL")
                    self._db.executescript(
                        f"BEGIN; {_SCHEMA} INSERT INTO meta VALUES ('schema', '{_SCHEMA_VERSION}'), ('id', '{uuid4().hex}'); COMMIT;"
                    )
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute(f"PRAGMA query_only={'ON' if read_only else 'OFF'}")
                self._refuse_code()
                version = self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()
            except sqlite3.DatabaseError:
                self._db.close()
                raise
        if version is None or version[0] != str(_SCHEMA_VERSION):
            self._db.close()
            raise RunError(f"{path} was written by another version of Palaestra (schema {version and version[0]})")

    def _refuse_code(self) -> None:
        """Raise if the schema computes something. A view may never end, and a trigger changes other tables."""
        kinds = {name: kind for _, name, kind, *_ in self._db.execute("PRAGMA table_list")}
        kinds |= {
            name: "trigger" for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type='trigger'")
        }
        for name, kind in kinds.items():
            if kind != "table" or any(row[-1] for row in self._db.execute(f"PRAGMA table_xinfo({_quote(name)})")):
                raise sqlite3.DatabaseError(f"{name} is not a plain table")

    def close(self) -> None:
        self._db.close()

    def _transaction(self, doing: str) -> AbstractContextManager[sqlite3.Connection]:
        return transaction(self._db, self.path, doing)

    def select(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query."""
        with storage_errors(self.path, "reading the store"):
            self._deadline = time.monotonic() + MAX_SECONDS
            return self._db.execute(query, values).fetchall()

    def has_table(self, name: str) -> bool:
        """Whether the store has a table. Runs of earlier versions lack some."""
        return bool(self.select("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,)))

    @property
    def id(self) -> str:
        """The unique id of the run, which does not depend on its folder."""
        return str(self.select("SELECT value FROM meta WHERE key='id'")[0][0])

    @property
    def planned(self) -> int:
        """The number of answers that the run asks for; 0 if it is not stored."""
        rows = self.select("SELECT value FROM meta WHERE key='planned'")
        return int(rows[0][0]) if rows else 0

    def plan(self, answers: int) -> None:
        """Store the number of answers that the run asks for, for its progress."""
        with self._transaction("storing the plan") as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('planned', ?)", (str(answers),))

    # Attempts

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        """Store the attempts of a phase, for example `"2/validation"`, with their cost."""
        with self._transaction("storing attempts") as db:
            db.executemany(
                "INSERT INTO attempts VALUES (?, ?, ?, ?, ?)",
                [(phase, a.problem.id, a.sample, a.correct, to_json(a)) for a in attempts],
            )
            _insert_cost(db, cost)

    def attempts(self, phase: str, with_tokens: bool = True) -> list[Attempt]:
        """Return the attempts of a phase in order, optionally without token ids and log-probs."""
        names = ", ".join(f"'$.completion.{name}', json('[]')" for name in ("token_ids", "logprobs", "prompt_ids"))
        data = "data" if with_tokens else f"json_set(data, {names})"
        query = f"SELECT rowid, {data} FROM attempts WHERE phase=? ORDER BY rowid"
        return list(self._read_records(Attempt, query, phase).values())

    def outcomes(self, phase: str) -> list[Attempt]:
        """Return the attempts of a phase in order, without the questions and the completions, which take most of the memory."""
        light = "json_set(data, '$.problem.messages', json('[]'), '$.completion', json('null'))"
        query = f"SELECT rowid, {light} FROM attempts WHERE phase=? ORDER BY rowid"
        return list(self._read_records(Attempt, query, phase).values())

    def attempt(self, phase: str, problem: str, sample: int) -> Attempt | None:
        """Return one attempt; `None` if there is none."""
        query = "SELECT sample, data FROM attempts WHERE phase=? AND problem=? AND sample=?"
        return self._read_records(Attempt, query, phase, problem, sample).get(sample)

    def phases(self) -> list[str]:
        return [phase for (phase,) in self.select("SELECT phase FROM attempts GROUP BY phase ORDER BY MIN(rowid)")]

    # Lessons

    def add_lesson(
        self,
        round_: int,
        lesson: Lesson,
        cost: LedgerEntry,
        inspection: object = None,
        delivery: object = None,
        calls: Sequence[CallRecord] = (),
    ) -> None:
        """Store a lesson as it will be taught.

        Arguments:
            inspection: the record of its quality checks, if any.
            delivery: the record of the ordered and the delivered examples.
            calls: the calls to models that led to it.
        """
        with self._transaction("storing a lesson") as db:
            if delivery is not None:
                db.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?)", (round_, to_json(delivery)))
            if inspection is not None:
                db.execute("INSERT INTO inspections VALUES (?, ?)", (round_, to_json(inspection)))
            db.execute(
                "INSERT INTO lessons VALUES (?, ?)", (round_, to_json(lesson.decisions) if lesson.decisions else "[]")
            )
            db.executemany(
                "INSERT INTO examples VALUES (?, ?, ?, ?, ?)",
                [(round_, k, e.skill, e.subskill, to_json(e)) for k, e in enumerate(lesson.examples)],
            )
            _insert_calls(db, calls)
            _insert_cost(db, cost)

    def lesson(self, round_: int) -> Lesson | None:
        """Return the lesson of a round; `None` if it has not been written."""
        rows = self.select("SELECT decisions FROM lessons WHERE round=?", (round_,))
        if not rows:
            return None
        query = "SELECT position, data FROM examples WHERE round=? ORDER BY position"
        examples = self._read_records(Example, query, round_)
        return Lesson(tuple(examples.values()), self.parse(tuple[Decision, ...], rows[0][0]))

    def lesson_rounds(self) -> list[int]:
        """Return the rounds whose lesson has been written."""
        return [round_ for (round_,) in self.select("SELECT round FROM lessons ORDER BY round")]

    def inspections(self, kind: type[T]) -> dict[int, T]:
        """Return the quality checks of each round's lesson, as records of `kind`."""
        return self._read_records(kind, "SELECT round, data FROM inspections ORDER BY round")

    def add_delivery(self, round_: int, delivery: object, cost: LedgerEntry, calls: Sequence[CallRecord] = ()) -> None:
        """Store the delivery of an order without a lesson. It is replaced when the round is repeated."""
        with self._transaction("storing a delivery") as db:
            db.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?)", (round_, to_json(delivery)))
            _insert_calls(db, calls)
            _insert_cost(db, cost)

    def deliveries(self, kind: type[T]) -> dict[int, T]:
        """Return the orders and deliveries of each round, as records of `kind`."""
        return self._read_records(kind, "SELECT round, data FROM deliveries ORDER BY round")

    def add_skills(
        self, stage: str, skills: object, cost: LedgerEntry | None = None, calls: Sequence[CallRecord] = ()
    ) -> None:
        """Store the result of a stage of skill discovery, with its cost."""
        with self._transaction("storing skills") as db:
            db.execute("INSERT OR REPLACE INTO skills VALUES (?, ?)", (stage, to_json(skills)))
            _insert_calls(db, calls)
            if cost is not None:
                _insert_cost(db, cost)

    def forget_skills(self, keep: Sequence[str]) -> None:
        """Delete all stages of skill discovery except `keep`, and all attempts, which depend on the skills."""
        with self._transaction("deleting skills") as db:
            for (stage,) in db.execute("SELECT stage FROM skills").fetchall():
                if stage not in keep:
                    db.execute("DELETE FROM skills WHERE stage=?", (stage,))
            db.execute("DELETE FROM attempts")

    def skills(self, kind: type[T]) -> dict[str, T]:
        """Return the results of skill discovery by stage, as records of `kind`."""
        return self._read_records(kind, "SELECT stage, data FROM skills")

    def allocation(self) -> dict[int, dict[tuple[str, str], int]]:
        """Return the number of examples by round, skill and subskill."""
        counts: dict[int, dict[tuple[str, str], int]] = {}
        query = "SELECT round, skill, subskill, COUNT(*) FROM examples GROUP BY round, skill, subskill ORDER BY round"
        for round_, skill, subskill, count in self.select(query):
            counts.setdefault(round_, {})[skill, subskill] = count
        return counts

    # Training

    def add_training(
        self, round_: int, weights_sha256: str, curve: Sequence[tuple[int, float]], cost: LedgerEntry
    ) -> None:
        """Store that a round's training is done and its weights are in the checkpoint."""
        steps = curve[-1][0] if curve else 0
        with self._transaction("storing a training") as db:
            db.execute("INSERT INTO trainings VALUES (?, ?, ?, ?)", (round_, weights_sha256, steps, cost.seconds))
            db.executemany("INSERT INTO curves VALUES (?, ?, ?)", [(round_, step, loss) for step, loss in curve])
            _insert_cost(db, cost)

    def weights_sha256(self, round_: int) -> str | None:
        """Return the hash of the weights after a round's training; `None` before it."""
        rows = self.select("SELECT weights_sha256 FROM trainings WHERE round=?", (round_,))
        return str(rows[0][0]) if rows else None

    def curves(self) -> dict[int, list[tuple[int, float]]]:
        """Return the training loss by round: pairs of step and loss."""
        curves: dict[int, list[tuple[int, float]]] = {}
        for round_, step, loss in self.select("SELECT round, step, loss FROM curves ORDER BY round, step"):
            curves.setdefault(round_, []).append((step, loss))
        return curves

    # Iterations of reinforcement learning

    def add_iteration(
        self, iteration: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory], cost: LedgerEntry
    ) -> None:
        """Store the metrics and trajectories of an iteration. Non-finite metrics are left out."""
        with self._transaction("storing an iteration") as db:
            _insert_metrics(db, "INSERT", iteration, metrics)
            db.executemany(
                "INSERT INTO trajectories VALUES (?, ?, ?, ?)",
                [(iteration, k, t.total_reward, to_json(t)) for k, t in enumerate(trajectories)],
            )
            if self.has_table(_TEXTS):
                rows = [(iteration, k, *_read_text(t)) for k, t in enumerate(trajectories)]
                db.executemany("INSERT INTO texts VALUES (?, ?, ?, ?)", rows)
            _insert_cost(db, cost)

    def add_metrics(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Store further metrics of an iteration, for example of an evaluation after it."""
        with self._transaction("storing metrics") as db:
            _insert_metrics(db, "INSERT OR REPLACE", iteration, metrics)

    def metrics(self, *names: str) -> dict[int, dict[str, float]]:
        """Return all metrics by iteration, or only those called `names`."""
        metrics: dict[int, dict[str, float]] = {}
        stored = (*names, *(old for old, name in _RENAMED_METRICS.items() if name in names))
        where = f"WHERE name IN ({', '.join('?' * len(stored))})" if names else ""
        query = f"SELECT iteration, name, value FROM metrics {where} ORDER BY iteration"
        for iteration, name, value in self.select(query, stored):
            metrics.setdefault(iteration, {})[_RENAMED_METRICS.get(name, name)] = value
        return metrics

    def trajectories(self, iteration: int) -> list[Trajectory]:
        query = "SELECT position, data FROM trajectories WHERE iteration=? ORDER BY position"
        return list(self._read_records(Trajectory, query, iteration).values())

    def trajectory(self, iteration: int, position: int) -> Trajectory | None:
        """Return one stored trajectory; `None` if there is none."""
        query = "SELECT position, data FROM trajectories WHERE iteration=? AND position=?"
        return self._read_records(Trajectory, query, iteration, position).get(position)

    def trajectory_iterations(self) -> list[int]:
        """Return the iterations with stored trajectories."""
        rows = self.select("SELECT DISTINCT iteration FROM trajectories ORDER BY iteration")
        return [iteration for (iteration,) in rows]

    def forget_after(self, iteration: int) -> None:
        """Delete everything after a checkpoint. It will be repeated with the same result."""
        with self._transaction("going back to a checkpoint") as db:
            db.execute("DELETE FROM metrics WHERE iteration > ?", (iteration,))
            db.execute("DELETE FROM trajectories WHERE iteration > ?", (iteration,))
            if self.has_table(_TEXTS):
                db.execute("DELETE FROM texts WHERE iteration > ?", (iteration,))
            for table in ("attempts", "ledger"):
                for (phase,) in db.execute(f"SELECT DISTINCT phase FROM {table}").fetchall():
                    if phase.split("/")[0].isdigit() and int(phase.split("/")[0]) > iteration:
                        db.execute(f"DELETE FROM {table} WHERE phase=?", (phase,))

    # Steps of episodes at the turn scale

    def save_step(self, episode: int, position: int, step: object, costs: Sequence[LedgerEntry] = ()) -> None:
        """Store a step of an episode with its cost. A repeated step replaces the first."""
        with self._transaction("storing a step") as db:
            db.execute("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", (episode, position, to_json(step)))
            for cost in costs:
                _insert_cost(db, cost)

    def steps(self, kind: type[T], episode: int) -> list[T]:
        """Return the steps of an episode in order, as records of `kind`."""
        query = "SELECT position, data FROM steps WHERE episode=? ORDER BY position"
        return list(self._read_records(kind, query, episode).values())

    def episodes(self) -> list[int]:
        """Return the numbers of the episodes that have begun."""
        return [episode for (episode,) in self.select("SELECT DISTINCT episode FROM steps ORDER BY episode")]

    def forget_steps(self, episode: int, position: int) -> None:
        """Delete the steps of an episode from `position` on, after a repeated episode ended earlier."""
        with self._transaction("deleting steps") as db:
            db.execute("DELETE FROM steps WHERE episode=? AND position>=?", (episode, position))

    # Cost

    def add_cost(self, cost: LedgerEntry) -> None:
        with self._transaction("storing a cost") as db:
            _insert_cost(db, cost)

    def total(self, phase: str = "") -> LedgerTotal:
        """Return the total cost, of all phases or of those that start with `phase`."""
        columns = ", ".join(f"COALESCE(SUM({c}), 0)" for c in LedgerTotal.__dataclass_fields__)
        rows = self.select(f"SELECT {columns} FROM ledger WHERE substr(phase, 1, ?) = ?", (len(phase), phase))
        return LedgerTotal(*rows[0])

    def costs(self) -> Mapping[str, LedgerTotal]:
        """Return the total cost of each phase."""
        phases = [phase for (phase,) in self.select("SELECT phase FROM ledger GROUP BY phase ORDER BY MIN(id)")]
        columns = ", ".join(f"SUM({c})" for c in LedgerTotal.__dataclass_fields__)
        return {p: LedgerTotal(*self.select(f"SELECT {columns} FROM ledger WHERE phase=?", (p,))[0]) for p in phases}

    def _read_records(self, kind: type[T], query: str, *values: object) -> dict[Any, T]:
        """Read the records of a query that selects a key and the data."""
        return {key: self.parse(kind, data) for key, data in self.select(query, values)}

    def parse(self, kind: type[T], data: str) -> T:
        """Read a record of `kind` from its JSON. Raises `RunError` if it is damaged."""
        try:
            return from_json(kind, data)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"the run folder is damaged: {self.path} has an invalid record: {reason}") from error


def _quote(name: str) -> str:
    """Quote an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _read_text(trajectory: Trajectory) -> tuple[int | None, str]:
    """The group of a trajectory, and what was asked and answered."""
    info = trajectory.infos[0] if trajectory.infos else {}
    group = info.get("group")
    return group if isinstance(group, int) else None, f"{info.get('prompt', '')}\n{info.get('response', '')}"


def _insert_metrics(db: sqlite3.Connection, verb: str, iteration: int, metrics: Mapping[str, float]) -> None:
    rows = [(iteration, name, float(value)) for name, value in metrics.items() if math.isfinite(value)]
    db.executemany(f"{verb} INTO metrics VALUES (?, ?, ?)", rows)


def _insert_calls(db: sqlite3.Connection, calls: Sequence[CallRecord]) -> None:
    if not calls:
        return
    db.execute(_CALLS)
    columns = ("phase", "model", "failed", "calls", "prompt_tokens", "completion_tokens", "money", "unpriced", "data")
    changes = ", ".join(f"{name}=excluded.{name}" for name in columns)
    rows = []
    for call in calls:
        spent, failed = call.spent, call.failure is not None
        numbers = (spent.calls, spent.usage.prompt_tokens, spent.usage.completion_tokens, spent.money, spent.unpriced)
        rows.append((call.key, call.phase, call.model, failed, *numbers, to_json(call)))
    # A call that is found again in the cache, by a resumed run, keeps its cost.
    db.executemany(
        f"INSERT INTO calls (key, {', '.join(columns)}) VALUES ({', '.join('?' * (len(columns) + 1))}) "
        f"ON CONFLICT (key) DO UPDATE SET {changes} WHERE excluded.calls > 0",
        rows,
    )


def _insert_cost(db: sqlite3.Connection, cost: LedgerEntry) -> None:
    tokens = cost.usage.prompt_tokens, cost.usage.completion_tokens
    db.execute(
        "INSERT INTO ledger (phase, model, calls, prompt_tokens, completion_tokens, seconds, money) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (cost.phase, cost.model, cost.calls, *tokens, cost.seconds, cost.money),
    )
