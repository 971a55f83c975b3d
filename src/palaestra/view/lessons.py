"""The training examples of a teach run with their quality checks, and the calls to its models."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from starlette.responses import Response

from palaestra.report.parts import read_message
from palaestra.runs import browse
from palaestra.runs.browse import STATES, CallFilter, ExampleEntry, ExampleFilter
from palaestra.runs.provenance import CallRecord
from palaestra.runs.store import Store
from palaestra.view.cache import recall
from palaestra.view.export import FORMATS, Columns, export_table, read_fields
from palaestra.view.pages import ViewerPage, open_store, render
from palaestra.view.query import PAGE, PagePlace, Query, read_query_number
from palaestra.view.runs import RunCard
from palaestra.view.texts import join_messages


class _CheckedExample(NamedTuple):
    """An example with the results of its checks."""

    entry: ExampleEntry
    checks: list[tuple[str, str]]


_EXAMPLE_COLUMNS: Columns[_CheckedExample] = {
    **read_fields("entry.round", "entry.state", "entry.place", "entry.example.skill", "entry.example.subskill"),
    "prompt": lambda row: join_messages(row.entry.example.messages),
    **read_fields("entry.example.response", "entry.example.reference", "entry.check", "entry.reason", "entry.detail"),
    "checks": lambda row: [f"{name}: {result}" for name, result in row.checks],
}


def render_examples(card: RunCard, query: Query) -> ViewerPage | Response:
    """The training examples of a teach run."""
    state, skill, subskill, check, text = (query.get(name, "") for name in ("state", "skill", "subskill", "check", "q"))
    wanted = ExampleFilter(read_query_number(query, "round"), state, skill, subskill, check, text)
    with open_store(card) as store:
        if query.get("format") in FORMATS:
            entries = browse.iterate(lambda limit, at: browse.find_examples(store, wanted, limit, at))
            rows = (_CheckedExample(entry, _describe_checks(store, entry)) for entry in entries)
            return export_table(f"{card.id}-examples", _EXAMPLE_COLUMNS, rows, query["format"])
        counts = recall(card, wanted, lambda: browse.count_examples(store, wanted))
        place = PagePlace.find(query, sum(counts.values()), PAGE)
        shown = list(browse.find_examples(store, wanted, PAGE, place.offset, counts))
        parts = [part for round_ in store.allocation().values() for part in round_]
        checks = recall(card, "checks", lambda: _list_check_names(store))
    skills = sorted({skill for skill, _ in parts if skill})
    subskills = sorted({subskill for skill, subskill in parts if subskill and wanted.skill in ("", skill)})
    names = dict.fromkeys(name for several in checks.values() for name in several)
    choices = {"rounds": list(checks), "skills": skills, "subskills": subskills, "checks": list(names)}
    values = {"rows": shown, "counts": counts, "place": place, "wanted": wanted, "states": STATES}
    return render("examples", {**values, **choices}, card, "examples", query)


def _list_check_names(store: Store) -> Mapping[int, list[str]]:
    return {number: [check[0] for check in browse.list_checks(store, number)] for number in store.lesson_rounds()}


def render_example(card: RunCard, query: Query, round: int, state: str, place: int) -> ViewerPage | None:
    """One example with its conversation, its response and its checks."""
    with open_store(card) as store:
        entry = next(browse.find_examples(store, ExampleFilter(round, state, place=place), 1), None)
        if entry is None:
            return None
        checks = _describe_checks(store, entry)
        count = browse.count_examples(store, ExampleFilter(round, state))[state]
    return render("example", {"row": entry, "checks": checks, "count": count}, card, "examples")


def _describe_checks(store: Store, entry: ExampleEntry) -> list[tuple[str, str]]:
    """The checks that an example went through, with their results.

    The store counts the examples that a check did not judge, for example because it is about images, but not which ones.
    """
    results: list[tuple[str, str]] = []
    for name, given, unjudged in browse.list_checks(store, entry.round):
        if name == entry.check:
            return [*results, (name, "dropped it" if entry.state == "dropped" else "failed to run")]
        result = "not judged" if unjudged == given else "passed or not judged" if unjudged else "passed"
        results.append((name, result))
    return results


class _StoredCall(NamedTuple):
    """A call to a model with its number."""

    number: int
    call: CallRecord

    @property
    def failure(self) -> str:
        failure = self.call.failure
        return "" if failure is None else f"{failure.cause}: {failure.message}"

    @property
    def prompt(self) -> str:
        """The last message of the user. The messages before it are often the same for many calls."""
        return next((read_message(m) for m in reversed(self.call.messages) if m.role == "user"), "")


_CALL_COLUMNS: Columns[_StoredCall] = {
    "call": attrgetter("number"),
    **read_fields("call.phase", "call.model"),
    "prompt": lambda row: [{"role": m.role, "content": read_message(m)} for m in row.call.messages],
    **read_fields("call.answer", "failure", "call.stop_reason"),
    **read_fields("call.spent.usage.prompt_tokens", "call.spent.usage.completion_tokens"),
    "seconds": lambda row: round(row.call.spent.seconds, 3),
    "money": lambda row: None if row.call.spent.unpriced else row.call.spent.money,
    "cached": attrgetter("call.is_cached"),
    **read_fields("call.spent.calls"),
}


def render_calls(card: RunCard, query: Query) -> ViewerPage | Response:
    """The calls of a teach run to its writer, its planner and the model that discovers skills."""
    failed = {"failed": True, "answered": False}.get(query.get("outcome", ""))
    wanted = CallFilter(query.get("phase", ""), failed, query.get("q", ""))
    with open_store(card) as store:
        stored = store.has_table("calls")
        if query.get("format") in FORMATS:
            calls = browse.iterate(lambda limit, at: browse.find_calls(store, wanted, limit, at)) if stored else ()
            rows = (_StoredCall(*call) for call in calls)
            return export_table(f"{card.id}-calls", _CALL_COLUMNS, rows, query["format"])
        if not stored:
            return render("calls", {"stored": False, "total": store.total()}, card, "calls", query)
        count = browse.count_calls(store, wanted)
        place = PagePlace.find(query, count, PAGE)
        shown = [_StoredCall(*call) for call in browse.find_calls(store, wanted, PAGE, place.offset)]
        phases, sums = browse.list_call_phases(store), recall(card, wanted, lambda: browse.sum_calls(store, wanted))
    values = {"rows": shown, "count": count, "place": place, "phases": phases, "sums": sums, "wanted": wanted}
    return render("calls", {"stored": True, **values}, card, "calls", query)


def render_call(card: RunCard, query: Query, position: int) -> ViewerPage | None:
    """One call with its prompt and its answer."""
    with open_store(card) as store:
        call = browse.read_call(store, position)
        if call is None:
            return None
        last = browse.read_call(store, position + 1) is None
    messages = [(message.role, read_message(message)) for message in call.messages]
    return render("call", {"row": _StoredCall(position, call), "messages": messages, "last": last}, card, "calls")
