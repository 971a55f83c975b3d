"""The problems of a run with the answers of two evaluations, or of one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from starlette.responses import Response

from palaestra.core.records import Attempt, Failure, Problem
from palaestra.runs import browse
from palaestra.runs.browse import CHANGES, OUTCOMES, ProblemEntry, read_attempts
from palaestra.runs.files import read_json
from palaestra.runs.store import Store
from palaestra.view.cache import recall
from palaestra.view.export import FORMATS, Columns, export_table, read_fields
from palaestra.view.pages import ViewerPage, open_store, render
from palaestra.view.query import PAGE, PagePlace, Query, read_query_number
from palaestra.view.runs import RunCard
from palaestra.view.texts import join_messages


@dataclass(frozen=True, slots=True)
class _ProblemFilter:
    """Which problems to show.

    Arguments:
        split: the split that the evaluations are about.
        first, last: the rounds or iterations of the evaluations to compare; the same twice for one evaluation.
        change: one of `CHANGES` or `OUTCOMES`.
        text: what the question, the reference or an answer contains.
    """

    split: str
    first: int
    last: int
    change: str = ""
    skill: str = ""
    text: str = ""

    @property
    def is_single(self) -> bool:
        return self.first == self.last

    @property
    def phases(self) -> tuple[str, str]:
        return f"{self.first}/{self.split}", f"{self.last}/{self.split}"


class _ShownAnswer(NamedTuple):
    """An answer with its verdict and the evidence of the scorer."""

    text: str
    verdict: str
    evidence: dict[str, str]
    sample: int
    tokens: int
    stop: str


class _ShownProblem(NamedTuple):
    """A problem with its answers in the two evaluations; the second has none if there is a single evaluation."""

    entry: ProblemEntry
    problem: Problem
    before: list[_ShownAnswer]
    after: list[_ShownAnswer]


def _show_side(side: str) -> Columns[_ShownProblem]:
    """The columns of the first answer of one evaluation."""
    return {
        side: lambda row: getattr(row, side)[0].text,
        f"{side}_verdict": lambda row: getattr(row, side)[0].verdict,
        f"{side}_extracted": lambda row: getattr(row, side)[0].evidence.get("extracted", ""),
    }


_COLUMNS: Columns[_ShownProblem] = {
    **read_fields("entry.id", "problem.skill", "problem.subskill"),
    "question": lambda row: join_messages(row.problem.messages),
    **read_fields("problem.reference"),
}
_SINGLE_COLUMNS: Columns[_ShownProblem] = {
    **_COLUMNS,
    "outcome": attrgetter("entry.change"),
    **read_fields("entry.before.right", "entry.before.scored"),
    "answers": lambda row: [answer.text for answer in row.before],
    "verdicts": lambda row: [answer.verdict for answer in row.before],
}
_PAIR_COLUMNS: Columns[_ShownProblem] = {
    **_COLUMNS,
    **read_fields("entry.change"),
    **_show_side("before"),
    **_show_side("after"),
}


def _show_answer(attempt: Attempt) -> _ShownAnswer:
    """Read the answer of an attempt, its verdict and the evidence."""
    if isinstance(attempt.outcome, Failure):
        verdict, evidence = f"failed: {attempt.outcome.cause}", {"message": attempt.outcome.message}
    else:
        verdict, evidence = "right" if attempt.correct else "wrong", dict(attempt.outcome.evidence)
    completion = attempt.completion
    if completion is None:
        return _ShownAnswer("", verdict, evidence, attempt.sample, 0, "")
    tokens = completion.usage.completion_tokens
    return _ShownAnswer(completion.text, verdict, evidence, attempt.sample, tokens, str(completion.stop_reason))


def render_problems(card: RunCard, query: Query) -> ViewerPage | Response:
    """The problems that were asked, with the answers of two evaluations, or of one."""
    with open_store(card) as store:
        rounds = _list_rounds(store)
        wanted = _read_filter(card, rounds, query)
        entries, skills = _find_problems(card, store, wanted)
        if query.get("format") in FORMATS:
            rows = (_read_problem(store, wanted, entry) for entry in entries)
            columns = _SINGLE_COLUMNS if wanted.is_single else _PAIR_COLUMNS
            return export_table(f"{card.id}-problems", columns, rows, query["format"])
        place = PagePlace.find(query, len(entries), PAGE)
        shown = [_read_problem(store, wanted, e) for e in entries[place.offset : place.offset + PAGE]]
    unit, changes = "iteration" if card.kind == "train" else "round", OUTCOMES if wanted.is_single else CHANGES
    choices = {"splits": list(rounds), "rounds": rounds.get(wanted.split, []), "skills": sorted(skills)}
    counts = Counter(entry.change for entry in entries)
    values = {"rows": shown, "counts": counts, "place": place, "wanted": wanted, "unit": unit, "changes": changes}
    return render("problems", {**values, **choices}, card, "problems", query)


def render_problem(card: RunCard, query: Query) -> ViewerPage | None:
    """One problem with the answers of all evaluations of its split."""
    name, split = query.get("id", ""), query.get("split", "")
    groups: dict[int, list[Attempt]] = {}
    with open_store(card) as store:
        for round_ in _list_rounds(store).get(split, []):
            if attempts := list(read_attempts(store, f"{round_}/{split}", name)):
                groups[round_] = attempts
    if not groups:
        return None
    problem = next(iter(groups.values()))[0].problem
    answers = {round_: list(map(_show_answer, attempts)) for round_, attempts in groups.items()}
    unit = "Iteration" if card.kind == "train" else "Round"
    values = {"problem": problem, "groups": answers, "split": split, "unit": unit}
    return render("problem_answers", values, card, "problems")


def _list_rounds(store: Store) -> dict[str, list[int]]:
    """Return the rounds or iterations of the evaluations of each split. A phase is named like `2/test`."""
    rounds: dict[str, list[int]] = {}
    for phase in store.phases():
        number, _, split = phase.partition("/")
        rounds.setdefault(split, []).append(int(number))
    return {split: sorted(numbers) for split, numbers in rounds.items()}


def _read_filter(card: RunCard, rounds: dict[str, list[int]], query: Query) -> _ProblemFilter:
    """The evaluations to compare: by default the first and the last of the test problems, or those of the kept student."""
    split = query.get("split", "")
    split = split if split in rounds else "test" if "test" in rounds else next(iter(rounds), "")
    known = rounds.get(split, [0])
    first, last = read_query_number(query, "from"), read_query_number(query, "to")
    if first is None or first not in known:
        first = known[0]
    if last is None or last not in known:
        kept = _read_kept_round(card)
        last = kept if kept and kept in known else known[-1]
    change = query.get("change", "")
    change = change if change in (OUTCOMES if first == last else CHANGES) else ""
    return _ProblemFilter(split, first, last, change, query.get("skill", ""), query.get("q", ""))


def _read_kept_round(card: RunCard) -> int:
    """Return the round whose student a teach run has kept; 0 before its end."""
    path = card.folder / "summary.json"
    return int(read_json(path).get("kept_round") or 0) if path.exists() else 0


def _find_problems(card: RunCard, store: Store, wanted: _ProblemFilter) -> tuple[list[ProblemEntry], set[str]]:
    """The problems that match, in the order in which they were asked, and the skills of all."""
    first, last = wanted.phases
    before = recall(card, ("outcomes", first), lambda: browse.read_outcomes(store, first))
    after = recall(card, ("outcomes", last), lambda: browse.read_outcomes(store, last))
    skills = recall(card, ("skills", first), lambda: browse.read_skills(store, first))
    entries = browse.compare_outcomes(before, None if wanted.is_single else after)
    if wanted.change:
        entries = [entry for entry in entries if entry.change == wanted.change]
    if wanted.skill:
        entries = [entry for entry in entries if skills.get(entry.id) == wanted.skill]
    if wanted.text:
        key = ("search", wanted.phases, wanted.text)
        matching = recall(card, key, lambda: browse.search_problems(store, wanted.phases, wanted.text))
        entries = [entry for entry in entries if entry.id in matching]
    return entries, {skill for skill in skills.values() if skill}


def _read_problem(store: Store, wanted: _ProblemFilter, entry: ProblemEntry) -> _ShownProblem:
    first, last = (list(read_attempts(store, phase, entry.id)) for phase in wanted.phases)
    after = [] if wanted.is_single else list(map(_show_answer, last))
    return _ShownProblem(entry, first[0].problem, list(map(_show_answer, first)), after)
