"""The calls of a teach run to its models: prompt, answer, tokens and money."""

from __future__ import annotations

from starlette.responses import Response

from palaestra.report.parts import read_message
from palaestra.runs.browse.calls import CallFilter, count_calls, find_calls, list_call_phases, read_call, sum_calls
from palaestra.runs.browse.conditions import iterate
from palaestra.runs.calls import CallRecord
from palaestra.view.memory import recall
from palaestra.view.pages import open_store, render
from palaestra.view.reading import PAGE, PagePlace, Query, Row
from palaestra.view.runs import RunCard
from palaestra.view.tables import FORMATS, DataTable, export_table
from palaestra.view.texts import LONG, cut, excerpt


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
