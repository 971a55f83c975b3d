"""Problems with the outcomes of one evaluation, or of two that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from palaestra.core.records import Attempt
from palaestra.runs.browse.conditions import Where, join_contents, join_texts, match_text
from palaestra.runs.store import Store

CHANGES = ("turned right", "turned wrong", "still right", "still wrong", "failed")
"""What became of a problem between two evaluations."""
OUTCOMES = ("right", "wrong", "mixed", "failed")
"""The outcomes of the answers to one problem; `mixed` if only some are right, `failed` if none was scored."""


@dataclass(frozen=True, slots=True)
class ProblemEntry:
    """A problem with the outcomes of two evaluations, or of one.

    Arguments:
        before, after: right, scored and all answers.
        change: one of `CHANGES`, or one of `OUTCOMES` if there is a single evaluation.
    """

    id: str
    before: tuple[int, int, int]
    after: tuple[int, int, int] | None
    change: str


_OUTCOME = "CASE WHEN {0}.scored = 0 THEN 'failed' WHEN {0}.good = {0}.scored THEN 'right' WHEN {0}.good = 0 THEN 'wrong' ELSE 'mixed' END"
_CHANGE = """CASE WHEN b.scored = 0 OR a.scored = 0 THEN 'failed'
    WHEN a.good = a.scored THEN (CASE WHEN b.good = b.scored THEN 'still right' ELSE 'turned right' END)
    WHEN b.good = b.scored THEN 'turned wrong' ELSE 'still wrong' END"""
_ATTEMPT_TEXTS = join_texts(
    "json_extract(t.data, '$.completion.text')", "json_extract(t.data, '$.problem.reference')",
    "json_extract(t.data, '$.outcome.message')", join_contents("t.data", "$.problem.messages"), "t.problem",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProblemFilter:
    """Which problems to show.

    Arguments:
        before, after: the phases to compare, for example `0/test` and `2/test`; the same phase twice for one evaluation.
        change: one of `CHANGES` or `OUTCOMES`.
        text: what the question, the reference or an answer contains.
    """

    before: str
    after: str
    change: str = ""
    skill: str = ""
    text: str = ""

    @property
    def is_single(self) -> bool:
        return self.before == self.after

    def query(self, columns: str) -> tuple[str, tuple[Any, ...]]:
        """The SELECT of these columns, with its values."""
        grouped = (
            "SELECT problem, MIN(rowid) AS place, SUM(correct) AS good, COUNT(correct) AS scored, COUNT(*) AS total "
            "FROM attempts WHERE phase = ? GROUP BY problem"
        )
        spoken, values = match_text(self.text, "t.data", _ATTEMPT_TEXTS)
        if spoken:
            spoken = (
                f"EXISTS (SELECT 1 FROM attempts AS t WHERE t.phase IN (?, ?) AND t.problem = b.problem AND {spoken})"
            )
            values = (self.before, self.after, *values)
        where = Where.join(
            ("change = ?" if self.change else "", (self.change,)),
            (
                "(SELECT json_extract(t.data, '$.problem.skill') FROM attempts AS t WHERE t.rowid = b.place) = ?"
                if self.skill
                else "",
                (self.skill,),
            ),
            (spoken, values),
        )
        change = _OUTCOME.format("b") if self.is_single else _CHANGE
        query = f"WITH b AS ({grouped}), a AS ({grouped}) SELECT {columns} FROM (SELECT {change} AS change, b.*, a.good AS good2, a.scored AS scored2, a.total AS total2 FROM b JOIN a USING (problem)) AS b WHERE {where.text}"
        return query, (self.before, self.after, *where.values)


def count_problems(store: Store, wanted: ProblemFilter) -> int:
    query, values = wanted.query("COUNT(*)")
    return int(store.select(query, values)[0][0])


def count_changes(store: Store, wanted: ProblemFilter) -> dict[str, int]:
    """Return the number of matching problems by change."""
    query, values = wanted.query("change, COUNT(*)")
    return dict(store.select(f"{query} GROUP BY change", values))


def find_problems(store: Store, wanted: ProblemFilter, limit: int, offset: int = 0) -> list[ProblemEntry]:
    """Return matching problems in the order in which they were asked."""
    query, values = wanted.query("problem, good, scored, total, good2, scored2, total2, change")
    rows = store.select(f"{query} ORDER BY place LIMIT ? OFFSET ?", (*values, limit, offset))
    entries = []
    for problem, good, scored, total, good2, scored2, total2, change in rows:
        after = None if wanted.is_single else (good2 or 0, scored2, total2)
        entries.append(ProblemEntry(problem, (good or 0, scored, total), after, change))
    return entries


def read_attempts(store: Store, phase: str, problem: str) -> Iterator[Attempt]:
    """Yield the attempts at one problem in a phase."""
    query = "SELECT rowid FROM attempts WHERE phase = ? AND problem = ? ORDER BY sample"
    for (row,) in store.select(query, (phase, problem)):
        yield store.parse(Attempt, store.select("SELECT data FROM attempts WHERE rowid = ?", (row,))[0][0])


def list_skills(store: Store, phase: str) -> list[str]:
    """Return the skills of the problems of a phase."""
    query = "SELECT DISTINCT json_extract(data, '$.problem.skill') FROM attempts WHERE phase = ? ORDER BY 1"
    return [str(skill) for (skill,) in store.select(query, (phase,)) if skill]
