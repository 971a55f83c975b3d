"""Are the calls that were made those of the plan, in an order that its data flow allows?

Calls that do not need each other may come in any order. Arguments are compared as values, however the caller came by
them; numbers with a point may differ in their last digits. Where the request does not prescribe the order of its steps,
another order of the same tools over the same given values is as good, if its result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.paths import is_other_path
from palaestra.tasks.tools.plans import ExecutedCall, Plan, brief
from palaestra.tasks.tools.values import same_value


class PlanOutcome(StrEnum):
    """What became of an answer."""

    RIGHT = "right"
    WRONG_CALLS = "wrong_calls"
    """A tool of the plan was not called, or not often enough."""
    WRONG_ARGUMENTS = "wrong_arguments"
    """The tools are right, what they were given is not."""
    WRONG_ORDER = "wrong_order"
    """A call came before one whose result it needs."""
    EXTRA_CALLS = "extra_calls"
    """All calls of the plan were made, and others."""
    WRONG_ANSWER = "wrong_answer"
    """The calls are right, what was answered is not their result."""
    NO_ANSWER = "no_answer"
    """The program ended without `answer(value)`."""
    RUNTIME_ERROR = "runtime_error"
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed, or sent, more than allowed."""
    TOO_MANY_CALLS = "too_many_calls"
    NO_PLAN = "no_plan"
    """The response holds no program that answers, or no calls."""


@dataclass(frozen=True, slots=True)
class Match:
    """How far calls are those of a plan.

    Arguments:
        outcome: right, or one of wrong calls, arguments, order, extra calls.
        matched: how many calls of the plan were made, in whatever order.
    """

    outcome: PlanOutcome
    matched: int
    detail: str = ""


def match(
    plan: Plan,
    gold: Sequence[ExecutedCall],
    calls: Sequence[ExecutedCall],
    extra_calls: bool = False,
    *,
    free_order: bool = False,
) -> Match:
    """Compare what was made with the plan.

    Arguments:
        gold: the plan, executed.
        made: what was called, in its order.
        extra_calls: whether superfluous calls are forgiven.
        free_order: whether another path to the same result is right; see `paths`.
    """
    needs = [call.needs() for call in plan.calls]
    same = [[same_call(wanted, other) for other in calls] for wanted in gold]
    matched = _most(same)
    if matched == len(gold):
        if not _embed(same, lambda call: needs[call]):
            return Match(PlanOutcome.WRONG_ORDER, matched, _out_of_order(gold, same, needs))
        if len(calls) > len(gold) and not extra_calls:
            return Match(PlanOutcome.EXTRA_CALLS, matched, f"expected {len(gold)} calls; got {len(calls)}")
        return Match(PlanOutcome.RIGHT, matched)
    if free_order and is_other_path(gold, calls):
        return Match(PlanOutcome.RIGHT, len(gold), "another path to the same result")
    missing = [wanted.tool for wanted in gold]
    for other in calls:
        if other.tool in missing:
            missing.remove(other.tool)
    if missing:
        return Match(PlanOutcome.WRONG_CALLS, matched, f"expected a call of {missing[0]}; got {_names(calls)}")
    return Match(PlanOutcome.WRONG_ARGUMENTS, matched, _first_fault(gold, calls, same))


def same_call(call: ExecutedCall, other: ExecutedCall) -> bool:
    """Whether two calls ask the same of the same tool."""
    if call.tool != other.tool or call.error or other.error:
        return False
    tool = LIBRARY[call.tool]
    return same_value(tool.canonical(call.arguments), tool.canonical(other.arguments))


def _most(same: Sequence[Sequence[bool]]) -> int:
    """How many calls of the plan find one of their own among those made: a matching of two sides."""
    taken: dict[int, int] = {}

    def place(call: int, seen: set[int]) -> bool:
        for other, fits in enumerate(same[call]):
            if fits and other not in seen:
                seen.add(other)
                if other not in taken or place(taken[other], seen):
                    taken[other] = call
                    return True
        return False

    return sum(place(call, set()) for call in range(len(same)))


def _embed(same: Sequence[Sequence[bool]], needs: Callable[[int], set[int]]) -> bool:
    """Whether each call of the plan has one of its own, and after those that it needs."""

    def place(chosen: list[int]) -> bool:
        call = len(chosen)
        if call == len(same):
            return True
        first = max((chosen[before] for before in needs(call)), default=-1) + 1
        fitting = [other for other in range(first, len(same[call])) if same[call][other] and other not in chosen]
        return any(place([*chosen, other]) for other in fitting)

    return place([])


def _out_of_order(gold: Sequence[ExecutedCall], same: Sequence[Sequence[bool]], needs: Sequence[set[int]]) -> str:
    for call, before in enumerate(needs):
        for other in sorted(before):
            if same[call].index(True) <= same[other].index(True):
                return f"expected {gold[other].tool} before {gold[call].tool}, which needs its result"
    return "a call came before one whose result it needs"


def _first_fault(gold: Sequence[ExecutedCall], calls: Sequence[ExecutedCall], same: Sequence[Sequence[bool]]) -> str:
    """What the first call of the plan that was not made looks like, and what was made instead."""
    call = next(place for place, row in enumerate(same) if not any(row)) if not all(map(any, same)) else 0
    wanted = gold[call]
    own = [o for k, o in enumerate(calls) if o.tool == wanted.tool and not any(row[k] for row in same)]
    if not own:
        return f"expected {wanted}"
    if own[0].error:
        return own[0].error
    given = own[0].arguments
    name = next((n for n, v in wanted.arguments.items() if not same_value(v, given.get(n))), "")
    if not name:
        return f"expected {wanted}; got {own[0]}"
    return f"{wanted.tool}: expected {name} {brief(wanted.arguments[name])}; got {brief(given.get(name))}"


def _names(calls: Sequence[ExecutedCall]) -> str:
    return ", ".join(call.tool for call in calls) or "none"
