"""The training examples of a teach run, with their checks."""

from __future__ import annotations

from starlette.responses import Response

from palaestra.report.parts import list_images
from palaestra.runs.browse.conditions import iterate
from palaestra.runs.browse.examples import (
    STATES,
    ExampleEntry,
    ExampleFilter,
    count_examples,
    find_examples,
    list_checks,
)
from palaestra.runs.store import Store
from palaestra.view.memory import recall
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PAGE, PagePlace, Query, Row, read_number
from palaestra.view.runs import RunCard
from palaestra.view.tables import FORMATS, DataTable, export_table
from palaestra.view.texts import LONG, cut, excerpt, join_messages


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
