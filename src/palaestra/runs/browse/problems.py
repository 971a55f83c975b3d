"""Problems with the outcomes of one evaluation, or of two that are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from palaestra.core.records import Attempt
from palaestra.runs.browse.conditions import join_contents, join_texts, match_text
from palaestra.runs.store import Store

CHANGES = ("turned right", "turned wrong", "still right", "still wrong", "failed")
"""What became of a problem between two evaluations."""
OUTCOMES = ("right", "wrong", "mixed", "failed")
"""The outcomes of the answers to one problem; `mixed` if only some are right, `failed` if none was scored."""


class Outcome(NamedTuple):
    """The answers to one problem in one evaluation."""

    right: int
    scored: int
    total: int

    @property
    def name(self) -> str:
        """One of `OUTCOMES`."""
        if not self.scored:
            return "failed"
        return "right" if self.right == self.scored else "mixed" if self.right else "wrong"


class ProblemEntry(NamedTuple):
    """A problem with its outcome before and after.

    Arguments:
        after: `None` if there is a single evaluation.
        change: one of `CHANGES`, or one of `OUTCOMES` if there is a single evaluation.
    """

    id: str
    before: Outcome
    after: Outcome | None
    change: str


def read_outcomes(store: Store, phase: str) -> dict[str, Outcome]:
    """Return the outcomes of a phase by problem, in the order in which the problems were asked."""
    query = (
        "SELECT problem, COALESCE(SUM(correct), 0), COUNT(correct), COUNT(*) FROM attempts WHERE phase = ? "
        "GROUP BY problem ORDER BY MIN(rowid)"
    )
    return {problem: Outcome(*counts) for problem, *counts in store.select(query, (phase,))}


def compare_outcomes(before: Mapping[str, Outcome], after: Mapping[str, Outcome] | None) -> list[ProblemEntry]:
    """Return the problems of two evaluations, or of one, with what became of them."""
    if after is None:
        return [ProblemEntry(problem, outcome, None, outcome.name) for problem, outcome in before.items()]
    return [
        ProblemEntry(problem, outcome, after[problem], _name_change(outcome.name, after[problem].name))
        for problem, outcome in before.items()
        if problem in after
    ]


def _name_change(before: str, after: str) -> str:
    if "failed" in (before, after):
        return "failed"
    if after == "right":
        return "still right" if before == "right" else "turned right"
    return "turned wrong" if before == "right" else "still wrong"


_SKILL = '","skill":"'
"""What stands before the skill in the JSON of an attempt. Quotes inside of texts are escaped, so that it is in none of them."""


def read_skills(store: Store, phase: str) -> dict[str, str]:
    """Return the skills of the problems of a phase.

    The skill is near the beginning of a record. Parsing whole records, with their token ids, takes four times as long.
    """
    query = "SELECT problem, substr(data, instr(data, ?) + ?, 200) FROM attempts WHERE phase = ?"
    rows = store.select(query, (_SKILL, len(_SKILL), phase))
    return {problem: _decode_text(text) for problem, text in rows}


def _decode_text(text: str) -> str:
    """Decode a JSON string up to its closing quote. `text` begins inside of it."""
    try:
        return str(json.JSONDecoder().raw_decode(f'"{text}')[0])
    except ValueError:
        return text  # Longer than what was read.


_TEXTS = join_texts(
    "json_extract(data, '$.completion.text')", "json_extract(data, '$.problem.reference')",
    "json_extract(data, '$.outcome.message')", join_contents("data", "$.problem.messages"), "problem",
)  # fmt: skip


def search_problems(store: Store, phases: tuple[str, str], text: str) -> set[str]:
    """Return the problems whose question, reference or answers in these phases contain a text."""
    condition, values = match_text(text, "data", _TEXTS)
    query = f"SELECT DISTINCT problem FROM attempts WHERE phase IN (?, ?) AND {condition}"
    return {str(problem) for (problem,) in store.select(query, (*phases, *values))}


def read_attempts(store: Store, phase: str, problem: str) -> Iterator[Attempt]:
    """Yield the attempts at one problem in a phase."""
    query = "SELECT rowid FROM attempts WHERE phase = ? AND problem = ? ORDER BY sample"
    for (row,) in store.select(query, (phase, problem)):
        yield store.parse(Attempt, store.select("SELECT data FROM attempts WHERE rowid = ?", (row,))[0][0])
