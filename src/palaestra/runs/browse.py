"""Filtered and paginated queries on the records of a store, for the viewer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from palaestra.core.records import Attempt, Example, Trajectory
from palaestra.runs.files import to_json
from palaestra.runs.provenance import CallRecord
from palaestra.runs.store import Store

T = TypeVar("T")
Condition = tuple[str, tuple[object, ...]]
"""A condition of an SQL query with its values."""
CHANGES = ("turned right", "turned wrong", "still right", "still wrong", "failed")
"""What became of a problem between two evaluations."""
OUTCOMES = ("right", "wrong", "mixed", "failed")
"""The outcomes of the answers to one problem; `mixed` if only some are right, `failed` if none was scored."""
_EXAMPLES = {
    "kept": "SELECT round, position AS place, skill, subskill, data, '' AS name, '' AS reason, '' AS detail FROM examples",
    "dropped": """
        SELECT i.round, d.key AS place, json_extract(d.value, '$.example.skill') AS skill,
               json_extract(d.value, '$.example.subskill') AS subskill, json_extract(d.value, '$.example') AS data,
               json_extract(d.value, '$.check') AS name, json_extract(d.value, '$.reason') AS reason,
               json_extract(d.value, '$.detail') AS detail
        FROM inspections AS i, json_each(i.data, '$.dropped') AS d""",
    "withheld": """
        SELECT i.round, f.key * 1000000 + x.key AS place, json_extract(x.value, '$.skill') AS skill,
               json_extract(x.value, '$.subskill') AS subskill, x.value AS data, json_extract(f.value, '$.check') AS name,
               'the check failed to run' AS reason, json_extract(f.value, '$.failure.message') AS detail
        FROM inspections AS i, json_each(i.data, '$.failures') AS f, json_each(f.value, '$.examples') AS x""",
}
STATES = tuple(_EXAMPLES)
"""What became of an example: `withheld` if a check failed to run on it."""
_SKILL = '","skill":"'
"""What stands before the skill in the JSON of an attempt. Quotes inside of texts are escaped, so it is in none of them."""


def iterate(read: Callable[[int, int], Iterable[T]], chunk: int = 500) -> Iterator[T]:
    """Yield all rows of `read(limit, offset)`, some at a time."""
    offset = 0
    while rows := list(read(chunk, offset)):
        yield from rows
        offset += len(rows)


def _escape_like(text: str) -> str:
    """Escape the wildcards of SQL's LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _match(text: str, *texts: str) -> Condition:
    """The condition that a record, the column `data`, contains a text. Letters of ASCII match in any case.

    Arguments:
        texts: SQL expressions for the texts of the record. Looking for the text as JSON has it needs no parsing and
            comes first.
    """
    pattern = "{} LIKE ? ESCAPE '\\'"
    spoken = " || ' ' || ".join(f"COALESCE({expression}, '')" for expression in texts)
    wanted = tuple(f"%{_escape_like(part)}%" for part in (to_json(text)[1:-1], text))
    return f"{pattern.format('data')} AND {pattern.format(spoken)}", wanted


def _extract(path: str) -> str:
    return f"json_extract(data, '$.{path}')"


def _join_contents(path: str) -> str:
    """SQL for the contents of the messages at a path of a record."""
    return f"(SELECT group_concat(json_extract(m.value, '$.content'), ' ') FROM json_each(data, '$.{path}') AS m)"


def _join_conditions(*conditions: Condition) -> Condition:
    text = " AND ".join(f"({condition})" for condition, _ in conditions)
    return text or "1", tuple(value for _, values in conditions for value in values)


# Calls to models


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls to show: of a phase, failed ones, those with a text in prompt or answer."""

    phase: str = ""
    failed: bool | None = None
    text: str = ""

    def where(self) -> Condition:
        conditions: list[Condition] = []
        if self.phase:
            conditions.append(("phase = ?", (self.phase,)))
        if self.failed is not None:
            conditions.append(("failed = ?", (self.failed,)))
        if self.text:
            texts = _extract("answer"), _extract("failure.message"), _join_contents("messages")
            conditions.append(_match(self.text, *texts))
        return _join_conditions(*conditions)


def count_calls(store: Store, wanted: CallFilter) -> int:
    where, values = wanted.where()
    return int(store.select(f"SELECT COUNT(*) FROM calls WHERE {where}", values)[0][0])


def find_calls(store: Store, wanted: CallFilter, limit: int, offset: int = 0) -> Iterator[tuple[int, CallRecord]]:
    """Yield matching calls with their numbers, in the order in which they were stored."""
    where, values = wanted.where()
    query = f"SELECT position, data FROM calls WHERE {where} ORDER BY position LIMIT ? OFFSET ?"
    for position, data in store.select(query, (*values, limit, offset)):
        yield position, store.parse(CallRecord, data)


def read_call(store: Store, position: int) -> CallRecord | None:
    rows = store.select("SELECT data FROM calls WHERE position = ?", (position,)) if store.has_table("calls") else []
    return store.parse(CallRecord, rows[0][0]) if rows else None


def list_call_phases(store: Store) -> list[str]:
    rows = store.select("SELECT phase FROM calls GROUP BY phase ORDER BY MIN(position)")
    return [str(phase) for (phase,) in rows]


def sum_calls(store: Store, wanted: CallFilter) -> dict[str, float]:
    """Return the tokens and the price of the matching calls that this run has made."""
    where, values = wanted.where()
    names = ("calls", "prompt_tokens", "completion_tokens", "money", "unpriced")
    sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
    rows = store.select(f"SELECT {sums} FROM calls WHERE calls > 0 AND {where}", values)
    return dict(zip(names, rows[0], strict=True))


# Training examples


@dataclass(frozen=True, slots=True)
class ExampleEntry:
    """An example with the result of its checks.

    Arguments:
        state: one of `STATES`.
        place: the index among the examples of the same round and state.
        check, reason, detail: the check that dropped or withheld it, and why.
    """

    round: int
    state: str
    place: int
    example: Example
    check: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ExampleFilter:
    """Which examples of a run to show; empty values match all."""

    round: int | None = None
    state: str = ""
    skill: str = ""
    subskill: str = ""
    check: str = ""
    text: str = ""
    place: int | None = None

    def where(self) -> Condition:
        columns = {"round": self.round, "place": self.place, "skill": self.skill, "subskill": self.subskill}
        equal = {**columns, "name": self.check}
        wanted = {name: value for name, value in equal.items() if value not in ("", None)}
        conditions: list[Condition] = [(f"{name} = ?", (value,)) for name, value in wanted.items()]
        if self.text:
            conditions.append(_match(self.text, _extract("response"), _join_contents("messages")))
        return _join_conditions(*conditions)


def count_examples(store: Store, wanted: ExampleFilter) -> dict[str, int]:
    """Return the number of matching examples by state."""
    where, values = wanted.where()
    counts = dict.fromkeys(STATES, 0)
    for state in STATES:
        if wanted.state in ("", state):
            counts[state] = int(store.select(f"SELECT COUNT(*) FROM ({_EXAMPLES[state]}) WHERE {where}", values)[0][0])
    return counts


def find_examples(
    store: Store, wanted: ExampleFilter, limit: int, offset: int = 0, counts: Mapping[str, int] | None = None
) -> Iterator[ExampleEntry]:
    """Yield matching examples: those that were kept, by round, then those that were not.

    Arguments:
        counts: the result of `count_examples`, if it is known.
    """
    where, values = wanted.where()
    for state, count in (counts or count_examples(store, wanted)).items():
        if offset >= count:
            offset -= count
            continue
        columns = f"SELECT round, place, data, name, reason, detail FROM ({_EXAMPLES[state]})"
        query = f"{columns} WHERE {where} ORDER BY round, place LIMIT ? OFFSET ?"
        rows = store.select(query, (*values, limit, offset))
        for round_, place, data, *why in rows:
            yield ExampleEntry(round_, state, place, store.parse(Example, data), *why)
        limit, offset = limit - len(rows), 0
        if limit <= 0:
            return


def list_checks(store: Store, round_: int) -> list[tuple[str, int, int]]:
    """Return the quality checks of a round in order: name, examples that it was given, and those that it did not judge."""
    columns = ", ".join(f"json_extract(c.value, '$.{name}')" for name in ("name", "given", "not_judged"))
    query = (
        f"SELECT {columns} FROM inspections AS i, json_each(i.data, '$.checks') AS c WHERE i.round = ? ORDER BY c.key"
    )
    return [(str(name), int(given), int(unjudged)) for name, given, unjudged in store.select(query, (round_,))]


# Problems with the outcomes of one evaluation, or of two that are compared


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
    columns = "problem, COALESCE(SUM(correct), 0), COUNT(correct), COUNT(*)"
    query = f"SELECT {columns} FROM attempts WHERE phase = ? GROUP BY problem ORDER BY MIN(rowid)"
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


def search_problems(store: Store, phases: tuple[str, str], text: str) -> set[str]:
    """Return the problems whose question, reference or answers in these phases contain a text."""
    texts = (_extract("completion.text"), _extract("problem.reference"), _extract("outcome.message"))
    condition, values = _match(text, *texts, _join_contents("problem.messages"), "problem")
    query = f"SELECT DISTINCT problem FROM attempts WHERE phase IN (?, ?) AND {condition}"
    return {str(problem) for (problem,) in store.select(query, (*phases, *values))}


def read_attempts(store: Store, phase: str, problem: str) -> Iterator[Attempt]:
    """Yield the attempts at one problem in a phase."""
    query = "SELECT rowid FROM attempts WHERE phase = ? AND problem = ? ORDER BY sample"
    for (row,) in store.select(query, (phase, problem)):
        yield store.parse(Attempt, store.select("SELECT data FROM attempts WHERE rowid = ?", (row,))[0][0])


# Steps of a conversation at the turn scale


def list_positions(store: Store, episode: int) -> list[int]:
    """Return the positions of the stored steps of an episode."""
    rows = store.select("SELECT position FROM steps WHERE episode = ? ORDER BY position", (episode,))
    return [position for (position,) in rows]


def read_step(store: Store, kind: type[T], episode: int, position: int) -> T | None:
    """Return one step as a record of `kind`; `None` if it is not stored."""
    rows = store.select("SELECT data FROM steps WHERE episode = ? AND position = ?", (episode, position))
    return store.parse(kind, rows[0][0]) if rows else None


def search_steps(store: Store, episode: int, text: str) -> list[int]:
    """Return the positions of the steps that may contain a text in a message, an action or a diff.

    The text of a tool call is JSON inside of JSON, so that it is looked for in both forms. A match may be in another field.
    """
    once = to_json(text)[1:-1]
    forms = {once, to_json(once)[1:-1]}
    like = " OR ".join("data LIKE ? ESCAPE '\\'" for _ in forms)
    query = f"SELECT position FROM steps WHERE episode = ? AND ({like}) ORDER BY position"
    rows = store.select(query, (episode, *(f"%{_escape_like(form)}%" for form in forms)))
    return [position for (position,) in rows]


def read_light_steps(store: Store, kind: type[T], episode: int) -> list[T]:
    """Return the steps of an episode as records of `kind`, with empty messages, and without outputs, states and files."""
    removed = ", ".join(f"'$.{name}'" for name in ("action", "observation", "state", "agent", "files"))
    empty = "CASE json_type(data, '$.message') WHEN 'object' THEN '{\"role\": \"assistant\", \"content\": \"\"}' ELSE 'null' END"
    light = f"json_set(json_remove(data, {removed}), '$.message', json({empty}))"
    rows = store.select(f"SELECT {light} FROM steps WHERE episode = ? ORDER BY position", (episode,))
    return [store.parse(kind, data) for (data,) in rows]


# Trajectories


def find_trajectories(
    store: Store,
    *,
    iteration: int | None = None,
    text: str = "",
    group: int | None = None,
    limit: int = 50,
    offset: int = 0,
) -> tuple[list[tuple[int, int, Trajectory]], int]:
    """Return a page of the stored trajectories, with iteration and position, and the number of all that match.

    Arguments:
        text: what the prompt or the response must contain; letters of ASCII match in any case.
        group: the group of episodes with the same prompt, as in their first `info`.
    """
    keys = find_trajectory_keys(store, iteration=iteration, text=text, group=group)
    stored = ((*key, store.trajectory(*key)) for key in keys[offset : offset + limit])
    return [(step, position, t) for step, position, t in stored if t is not None], len(keys)


def find_trajectory_keys(
    store: Store, *, iteration: int | None = None, text: str = "", group: int | None = None
) -> list[tuple[int, int]]:
    """Return iteration and position of all stored trajectories that match, as in `find_trajectories`."""
    has_texts = store.has_table("texts")
    conditions: list[Condition] = [] if iteration is None else [("iteration = ?", (iteration,))]
    if group is not None:
        conditions.append((f"{'group_number' if has_texts else _extract('infos[0].group')} = ?", (group,)))
    if text and has_texts:
        conditions.append(("text LIKE ? ESCAPE '\\'", (f"%{_escape_like(text)}%",)))
    elif text:
        conditions.append(_match(text, _extract("infos[0].prompt"), _extract("infos[0].response")))
    where, values = _join_conditions(*conditions)
    table = "texts" if has_texts else "trajectories"
    query = f"SELECT iteration, position FROM {table} WHERE {where} ORDER BY iteration, position"
    return [(step, position) for step, position in store.select(query, values)]
