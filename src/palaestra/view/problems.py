"""Problems with the answers of two evaluations, or of one: what turned right, what turned wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from starlette.responses import Response

from palaestra.core.records import Attempt, Failure
from palaestra.report.parts import list_images
from palaestra.runs.browse.problems import (
    CHANGES,
    OUTCOMES,
    ProblemEntry,
    compare_outcomes,
    read_attempts,
    read_outcomes,
    read_skills,
    search_problems,
)
from palaestra.runs.store import Store
from palaestra.view.memory import recall
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PAGE, PagePlace, Query, Row, read_kept_round, read_number
from palaestra.view.runs import RunCard
from palaestra.view.tables import FORMATS, DataTable, export_table
from palaestra.view.texts import LONG, cut, excerpt, join_messages


def render_problems(card: RunCard, query: Query) -> str | Response:
    """The problems that were asked, with the answers of two evaluations, or of one."""
    with open_store(card) as store:
        phases = store.phases()
        splits = list(dict.fromkeys(phase.partition("/")[2] for phase in phases))
        wanted = _choose_phases(card, phases, splits, query)
        entries, skills = _find_problems(card, store, wanted)
        if query.get("format") in FORMATS:
            rows = (_to_problem_row(store, wanted, entry) for entry in entries)
            columns = SINGLE_COLUMNS if wanted.is_single else PROBLEM_COLUMNS
            return export_table(DataTable(f"{card.id}-problems", columns, rows), query["format"])
        place = PagePlace.find(query, len(entries), PAGE)
        rows_shown = [_show_problem(store, wanted, e) for e in entries[place.offset : place.offset + PAGE]]
    counts = Counter(entry.change for entry in entries)
    rounds = [int(phase.partition("/")[0]) for phase in phases if phase.partition("/")[2] == _split(wanted.before)]
    return render(
        "problems", rows=rows_shown, counts=counts, place=place, wanted=wanted, splits=splits, split=_split(wanted.before),
        rounds=sorted(rounds), first=_round(wanted.before), last=_round(wanted.after), skills=sorted(skills),
        changes=OUTCOMES if wanted.is_single else CHANGES, query=dict(query), folder=card.folder.name, run=card, tab="problems",
        unit="iteration" if card.kind == "train" else "round",
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


def _find_problems(card: RunCard, store: Store, wanted: ProblemFilter) -> tuple[list[ProblemEntry], set[str]]:
    """The problems that match, in the order in which they were asked, and the skills of all."""
    before, after = (
        recall(card, ("outcomes", phase), lambda phase=phase: read_outcomes(store, phase))  # type: ignore[misc]
        for phase in (wanted.before, wanted.after)
    )
    skills = recall(card, ("skills", wanted.before), lambda: read_skills(store, wanted.before))
    entries = compare_outcomes(before, None if wanted.is_single else after)
    if wanted.change:
        entries = [entry for entry in entries if entry.change == wanted.change]
    if wanted.skill:
        entries = [entry for entry in entries if skills.get(entry.id) == wanted.skill]
    if wanted.text:
        phases = wanted.before, wanted.after
        matching = recall(card, ("search", phases, wanted.text), lambda: search_problems(store, phases, wanted.text))
        entries = [entry for entry in entries if entry.id in matching]
    return entries, {skill for skill in skills.values() if skill}


def render_problem(card: RunCard, query: Query) -> str | None:
    """One problem with the answers of all evaluations of its split."""
    name, split = query.get("id", ""), query.get("split", "")
    groups = []
    with open_store(card) as store:
        for phase in sorted((p for p in store.phases() if _split(p) == split), key=_round):
            answers = [_shorten(_show_attempt(attempt)) for attempt in read_attempts(store, phase, name)]
            if answers:
                groups.append({"round": _round(phase), "answers": answers})
                problem = next(read_attempts(store, phase, name)).problem
    if not groups:
        return None
    return render(
        "problem_answers", problem=problem, question=cut(join_messages(problem.messages), LONG), groups=groups, split=split,
        reference=cut(problem.reference, LONG), images=list_images(problem.messages), query={}, folder=card.folder.name,
        run=card, tab="problems", unit="Iteration" if card.kind == "train" else "Round",
    )  # fmt: skip


def _choose_phases(card: RunCard, phases: list[str], splits: list[str], query: Query) -> ProblemFilter:
    """The evaluations to compare: by default the first and the last of the test problems, or those of the kept student."""
    split = query.get("split", "")
    split = split if split in splits else "test" if "test" in splits else next(iter(splits), "")
    rounds = sorted(_round(phase) for phase in phases if _split(phase) == split) or [0]
    first, last = read_number(query, "from"), read_number(query, "to")
    first = first if first is not None and first in rounds else rounds[0]
    if last not in rounds:
        kept = read_kept_round(card)
        last = kept if kept and kept in rounds else rounds[-1]
    change = query.get("change", "")
    single = first == last
    return ProblemFilter(
        f"{first}/{split}", f"{last}/{split}", change if change in (OUTCOMES if single else CHANGES) else "",
        query.get("skill", ""), query.get("q", ""),
    )  # fmt: skip


def _split(phase: str) -> str:
    return phase.partition("/")[2]


def _round(phase: str) -> int:
    number = phase.partition("/")[0]
    return int(number) if number.isdecimal() else 0


SINGLE_COLUMNS = (
    "id",
    "skill",
    "subskill",
    "question",
    "reference",
    "outcome",
    "right",
    "scored",
    "answers",
    "verdicts",
)
PROBLEM_COLUMNS = (
    "id", "skill", "subskill", "question", "reference", "change", "before", "before_verdict", "before_extracted", "after",
    "after_verdict", "after_extracted",
)  # fmt: skip


def _to_problem_row(store: Store, wanted: ProblemFilter, entry: ProblemEntry) -> Row:
    first = list(read_attempts(store, wanted.before, entry.id))
    problem = first[0].problem
    row = {
        "id": entry.id, "skill": problem.skill, "subskill": problem.subskill, "question": join_messages(problem.messages),
        "reference": problem.reference,
    }  # fmt: skip
    if wanted.is_single:
        shown = [_show_attempt(attempt) for attempt in first]
        return row | {
            "outcome": entry.change, "right": entry.before[0], "scored": entry.before[1],
            "answers": [answer["text"] for answer in shown], "verdicts": [answer["verdict"] for answer in shown],
        }  # fmt: skip
    for name, attempt in (("before", first[0]), ("after", next(read_attempts(store, wanted.after, entry.id)))):
        answer = _show_attempt(attempt)
        row |= {
            name: answer["text"], f"{name}_verdict": answer["verdict"],
            f"{name}_extracted": answer["evidence"].get("extracted", ""),
        }  # fmt: skip
    return row | {"change": entry.change}


def _show_problem(store: Store, wanted: ProblemFilter, entry: ProblemEntry) -> Row:
    """A row of the list. Several answers are shown by the first of them and their counts."""
    attempt = next(read_attempts(store, wanted.before, entry.id))
    after = None if wanted.is_single else next(read_attempts(store, wanted.after, entry.id))
    problem = attempt.problem
    return {
        "id": entry.id, "skill": problem.skill, "subskill": problem.subskill, "change": entry.change,
        "question": excerpt(join_messages(problem.messages), wanted.text), "reference": excerpt(problem.reference, wanted.text),
        "before": _show_attempt(attempt, wanted.text), "after": None if after is None else _show_attempt(after, wanted.text),
        "before_counts": entry.before, "after_counts": entry.after,
    }  # fmt: skip


def _show_attempt(attempt: Attempt, text: str | None = None) -> Row:
    """An answer with its verdict; a part of it if it is in a list that was searched for `text`."""
    answer = attempt.completion.text if attempt.completion else ""
    if isinstance(attempt.outcome, Failure):
        verdict, evidence = f"failed: {attempt.outcome.cause}", {"message": attempt.outcome.message}
    else:
        verdict, evidence = "right" if attempt.correct else "wrong", dict(attempt.outcome.evidence)
    usage = attempt.completion.usage if attempt.completion else None
    return {
        "text": answer if text is None else excerpt(answer, text), "verdict": verdict, "sample": attempt.sample,
        "tokens": usage.completion_tokens if usage else 0, "evidence": evidence,
        "stop": str(attempt.completion.stop_reason) if attempt.completion else "",
    }  # fmt: skip


def _shorten(answer: Row) -> Row:
    """Cut the texts of an answer to what a page shows."""
    evidence = {name: cut(value, LONG) for name, value in answer["evidence"].items()}
    return answer | {"text": cut(answer["text"], LONG), "evidence": evidence}
