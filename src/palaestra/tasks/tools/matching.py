"""Compare the calls of an answer with a plan.

Independent calls may come in any order. Arguments are compared by value; floating-point numbers with a tolerance. If the
request does not prescribe the order of its steps, another order of the same tools on the same given values is accepted,
provided that it has the same result.
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
    """The outcome of an answer."""

    RIGHT = "right"
    WRONG_CALLS = "wrong_calls"
    """A tool of the plan was not called, or not often enough."""
    WRONG_ARGUMENTS = "wrong_arguments"
    """The tools are right, but their arguments are not."""
    WRONG_ORDER = "wrong_order"
    """A call came before one whose result it needs."""
    EXTRA_CALLS = "extra_calls"
    """All calls of the plan were made, and further ones."""
    WRONG_ANSWER = "wrong_answer"
    """The calls are right, but the answer is not their result."""
    NO_ANSWER = "no_answer"
    """The program ended without `answer(value)`."""
    RUNTIME_ERROR = "runtime_error"
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    """It printed or sent too much."""
    TOO_MANY_CALLS = "too_many_calls"
    NO_PLAN = "no_plan"
    """The response contains no program that calls `answer`, or no calls."""


@dataclass(frozen=True, slots=True)
class Match:
    """The result of the comparison of calls with a plan.

    Arguments:
        outcome: right, or one of wrong calls, arguments, order, extra calls.
        matched: the number of calls of the plan that were made, in any order.
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
    """Compare calls with a plan.

    Arguments:
        gold: the executed calls of the plan.
        calls: the calls of the answer, in order.
        extra_calls: accept superfluous calls.
        free_order: accept another path to the same result; see `paths`.
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
    """Whether two calls have the same tool and arguments."""
    if call.tool != other.tool or call.error or other.error:
        return False
    tool = LIBRARY[call.tool]
    return same_value(tool.canonical(call.arguments), tool.canonical(other.arguments))


def _most(same: Sequence[Sequence[bool]]) -> int:
    """The size of a maximum matching between the calls of the plan and those of the answer."""
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
    """Whether each call of the plan can be matched to a separate call after those that it needs."""

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
    """A description of the first missing call of the plan and of what was called instead."""
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
