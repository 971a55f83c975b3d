"""The lesson scale: training examples with their checks, and the calls of the teacher."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from palaestra.report.parts import list_images, read_message
from palaestra.runs.browse.calls import CallFilter, count_calls, find_calls, list_call_phases, read_call, sum_calls
from palaestra.runs.browse.conditions import iterate
from palaestra.runs.browse.examples import (
    STATES,
    ExampleEntry,
    ExampleFilter,
    count_examples,
    find_examples,
    list_checks,
)
from palaestra.runs.calls import CallRecord
from palaestra.runs.store import Store
from palaestra.view.memory import recall
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PagePlace, Query, read_number
from palaestra.view.runs import RunCard
from palaestra.view.tables import FORMATS, DataTable, export_table
from palaestra.view.texts import LONG, cut, excerpt, join_messages

PAGE = 50
"""Rows of one page."""
Row = dict[str, Any]


# Examples


def render_examples(card: RunCard, query: Query) -> str | Response:
    """The training examples of a teach run."""
    wanted = ExampleFilter(
        read_number(query, "round"), query.get("state", ""), query.get("skill", ""), query.get("subskill", ""),
        query.get("check", ""), query.get("q", ""),
    )  # fmt: skip
    with open_store(card) as store:
        if query.get("format") in FORMATS:
            rows = (
                _to_example_row(store, entry)
                for entry in iterate(lambda limit, at: find_examples(store, wanted, limit, at))
            )
            return export_table(DataTable(f"{card.id}-examples", EXAMPLE_COLUMNS, rows), query["format"])
        counts = recall(card, wanted, lambda: count_examples(store, wanted))
        place = PagePlace.find(query, sum(counts.values()), PAGE)
        entries = list(find_examples(store, wanted, PAGE, place.offset, counts))
        parts = [part for round_ in store.allocation().values() for part in round_]
        checks = recall(
            card, "checks", lambda: {n: [c[0] for c in list_checks(store, n)] for n in store.lesson_rounds()}
        )
    names = dict.fromkeys(name for several in checks.values() for name in several)
    return render(
        "examples", rows=[_show_example(entry, wanted.text) for entry in entries], counts=counts, place=place, states=STATES,
        rounds=list(checks), skills=sorted({skill for skill, _ in parts if skill}), checks=list(names),
        subskills=sorted({s for skill, s in parts if s and wanted.skill in ("", skill)}), wanted=wanted,
        query=dict(query), folder=card.folder.name, run=card, tab="examples",
    )  # fmt: skip


def render_example(card: RunCard, query: Query, round: int, state: str, place: int) -> str | None:
    """One example with its conversation, its response and its checks."""
    with open_store(card) as store:
        entry = next(find_examples(store, ExampleFilter(round, state, place=place), 1), None)
        if entry is None:
            return None
        checks = describe_checks(store, entry)
        counts = count_examples(store, ExampleFilter(round, state))
    return render(
        "example", row=_show_example(entry), checks=checks, count=counts[state], entry=entry, query={},
        folder=card.folder.name, run=card, tab="examples",
    )  # fmt: skip


def describe_checks(store: Store, entry: ExampleEntry) -> list[tuple[str, str]]:
    """The checks that an example went through, with their results.

    The store counts the examples that a check did not judge, for example because it is about images, but not which ones.
    """
    results: list[tuple[str, str]] = []
    for name, given, unjudged in list_checks(store, entry.round):
        if name == entry.check:
            return [*results, (name, "dropped it" if entry.state == "dropped" else "failed to run")]
        result = "not judged" if unjudged == given else "passed or not judged" if unjudged else "passed"
        results.append((name, result))
    return results


EXAMPLE_COLUMNS = (
    "round", "state", "place", "skill", "subskill", "prompt", "response", "reference", "check", "reason", "detail", "checks",
)  # fmt: skip


def _to_example_row(store: Store, entry: ExampleEntry) -> Row:
    example = entry.example
    return {
        "round": entry.round, "state": entry.state, "place": entry.place, "skill": example.skill, "subskill": example.subskill,
        "prompt": join_messages(example.messages), "response": example.response, "reference": example.reference,
        "check": entry.check, "reason": entry.reason, "detail": entry.detail,
        "checks": [f"{name}: {result}" for name, result in describe_checks(store, entry)],
    }  # fmt: skip


def _show_example(entry: ExampleEntry, text: str | None = None) -> Row:
    """What a page shows of an example; parts of its texts if it is a row of a list that was searched for `text`."""
    example = entry.example

    def show(whole: str) -> str:
        return cut(whole, LONG) if text is None else excerpt(whole, text)

    return {
        "round": entry.round, "state": entry.state, "place": entry.place, "skill": example.skill, "subskill": example.subskill,
        "prompt": show(join_messages(example.messages)), "response": show(example.response), "reference": show(example.reference),
        "check": entry.check, "reason": entry.reason, "detail": show(entry.detail), "images": list_images(example.messages),
        "hypothesis": show(str(example.metadata.get("hypothesis", ""))),
    }  # fmt: skip


# Calls of the teacher


def render_calls(card: RunCard, query: Query) -> str | Response:
    """The calls of a teach run to its writer, its planner and the model that discovers skills."""
    failed = {"failed": True, "answered": False}.get(query.get("outcome", ""))
    wanted = CallFilter(query.get("phase", ""), failed, query.get("q", ""))
    with open_store(card) as store:
        if not store.has_table("calls"):
            if query.get("format") in FORMATS:
                return export_table(DataTable(f"{card.id}-calls", CALL_COLUMNS, ()), query["format"])
            total = store.total()
            return render(
                "calls", rows=[], stored=False, total=total, query=dict(query), folder=card.folder.name, run=card, tab="calls",
            )  # fmt: skip
        if query.get("format") in FORMATS:
            several = iterate(lambda limit, at: find_calls(store, wanted, limit, at))
            rows = (_to_call_row(position, call) for position, call in several)
            return export_table(DataTable(f"{card.id}-calls", CALL_COLUMNS, rows), query["format"])
        place = PagePlace.find(query, count := count_calls(store, wanted), PAGE)
        rows_shown = [_show_call(n, call, wanted.text) for n, call in find_calls(store, wanted, PAGE, place.offset)]
        phases, sums = list_call_phases(store), recall(card, wanted, lambda: sum_calls(store, wanted))
    return render(
        "calls", rows=rows_shown, stored=True, count=count, place=place, phases=phases, sums=sums, wanted=wanted,
        query=dict(query), folder=card.folder.name, run=card, tab="calls",
    )  # fmt: skip


def render_call(card: RunCard, query: Query, position: int) -> str | None:
    """One call with its prompt and its answer."""
    with open_store(card) as store:
        call = read_call(store, position)
        if call is None:
            return None
        last = read_call(store, position + 1) is None
    messages = [{"role": message.role, "text": cut(read_message(message), LONG)} for message in call.messages]
    return render(
        "call", row=_show_call(position, call), messages=messages, last=last, query={}, folder=card.folder.name,
        run=card, tab="calls",
    )  # fmt: skip


CALL_COLUMNS = (
    "call", "phase", "model", "prompt", "answer", "failure", "stop_reason", "prompt_tokens", "completion_tokens", "seconds",
    "money", "cached", "calls",
)  # fmt: skip


def _to_call_row(position: int, call: CallRecord) -> Row:
    spent = call.spent
    return {
        "call": position, "phase": call.phase, "model": call.model,
        "prompt": [{"role": message.role, "content": read_message(message)} for message in call.messages],
        "answer": call.answer, "failure": "" if call.failure is None else f"{call.failure.cause}: {call.failure.message}",
        "stop_reason": call.stop_reason, "prompt_tokens": spent.usage.prompt_tokens,
        "completion_tokens": spent.usage.completion_tokens, "seconds": round(spent.seconds, 3),
        "money": None if spent.unpriced else spent.money, "cached": call.is_cached, "calls": spent.calls,
    }  # fmt: skip


def _show_call(position: int, call: CallRecord, text: str | None = None) -> Row:
    """What a page shows of a call; of a row in a list, the part with `text` or the end of the prompt, which is its own."""
    row = _to_call_row(position, call)
    last = next((message for message in reversed(call.messages) if message.role == "user"), None)
    prompt = "" if last is None else read_message(last)
    if text is not None:
        return row | {
            "prompt": excerpt(prompt, text, at_end=True), "answer": excerpt(call.answer, text),
            "failure": excerpt(row["failure"], text), "unpriced": bool(call.spent.unpriced),
        }  # fmt: skip
    return row | {
        "answer": cut(call.answer, LONG), "failure": cut(row["failure"], LONG), "unpriced": bool(call.spent.unpriced),
        "tools": [f"{tool.name} {tool.arguments}" for tool in call.tool_calls], "unmeasured": bool(call.spent.unmeasured),
    }  # fmt: skip
