"""What the lessons of a `teach` run came to, for its summary, its report and its study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, PalaestraError, WriterError
from palaestra.recipes.teach.delivery import Delivery, add_up, describe_counts
from palaestra.recipes.teach.skills import DISCOVERY
from palaestra.runs.ledger import describe_cost

if TYPE_CHECKING:
    from palaestra.runs.run import Run

CALLING = ("/lesson", DISCOVERY)
"""Endings of the phases in which models are called that may cost money."""
MODELS = ("writer", "planner", "discover")
"""Settings that name a model which may cost money."""


def summarize_lessons(run: Run) -> dict[str, Any]:
    """Count the examples that were ordered, delivered and lost, by cause; and name the models without a known price."""
    total = add_up(list(run.store.deliveries(Delivery).values()))
    return {
        "ordered": total.ordered,
        "delivered": total.delivered,
        "dropped": dict(total.dropped),
        "withheld": total.withheld,
        "writer_failures": dict(total.failures),
        "ordered_again": total.asked_again,
        "calls": count_calls(run),
        "unmeasured_calls": total.unmeasured,
        "unpriced": unpriced_models(run.settings) if count_calls(run) else [],
    }


def count_calls(run: Run) -> int:
    """The calls of the models that write, plan and discover skills; the student's own answers are not among them."""
    return sum(cost.calls for phase, cost in run.store.costs().items() if phase.endswith(CALLING))


def unpriced_models(settings: Mapping[str, Any]) -> list[str]:
    """The models of a run that are behind a service and in no price table."""
    from palaestra.engines.base import is_remote
    from palaestra.engines.prices import Prices

    names = {str(settings.get(name) or "") for name in MODELS} - {"", "task"}
    remote = sorted(name for name in names if is_remote(name))
    prices = Prices.load() if remote else None
    return [name for name in remote if prices is not None and prices.find(name) is None]


def name_failure(error: PalaestraError) -> str:
    """Why a run has no gain, in words that are the same for all errors of a kind."""
    return "the writer failed" if isinstance(error, WriterError | EngineError) else "the lesson could not be taught"


def describe_lessons(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a summary says of a run's lessons, a line each; the last one says what its calls cost."""
    ordered, delivered = summary["ordered"], summary["delivered"]
    short = f", {ordered - delivered} fewer than were ordered" if delivered < ordered else ""
    again = f"; missing ones were ordered again {summary['ordered_again']} x" if summary["ordered_again"] else ""
    yield f"examples: {ordered} ordered, {delivered} delivered{short}{again}"
    if summary["dropped"]:
        yield f"dropped by checks: {describe_counts(summary['dropped'])}"
    if summary["withheld"]:
        yield f"withheld because a check broke: {summary['withheld']}"
    if summary["writer_failures"]:
        yield f"writer failures: {describe_counts(summary['writer_failures'])}"
    if summary["calls"]:
        yield f"calls: {summary['calls']}, {describe_cost(summary)}"
