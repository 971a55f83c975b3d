"""Compare the calls of an answer with a plan.

Independent calls may come in any order. Arguments are compared by value; floating-point numbers with a tolerance. If the
request does not prescribe the order of its steps, another path to the same result is accepted: it must call the same tools
equally often with the same given values, use every result, and have the same result. It must also have the same result
as the plan for other values, so that a result that is right by chance is not accepted.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from palaestra.tasks.code.comparison import ABSOLUTE, RELATIVE
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.library.dates import WEEKDAYS, parse_date, parse_time, show_time
from palaestra.tasks.tools.library.quantities import EUROS, GRAMS, LITERS, METERS
from palaestra.tasks.tools.library.world import ITEMS, PEOPLE, TOWNS
from palaestra.tasks.tools.plans import Call, CallResult, ExecutedCall, Plan, map_leaves

_VARIATIONS, _MIN_ACCEPTED = 12, 3
"""The number of other sets of values to try, and how many of them the tools must accept."""
_NAMES = [
    list(names) for names in (TOWNS, PEOPLE, ITEMS, EUROS, METERS, GRAMS, LITERS, WEEKDAYS, "CFK", ("first", "second"))
]
"""Names that can replace each other."""
MAX_CALLS = 16
"""Maximum number of calls of an answer; the longest plan has four."""


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
class Record:
    """The record of an answer.

    Arguments:
        calls: its calls, in order.
        fault: the reason if it ended without an answer.
        value: the answer.
    """

    calls: tuple[ExecutedCall, ...]
    fault: PlanOutcome | None
    detail: str = ""
    value: object = None


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
        free_order: accept another path to the same result; see above.
    """
    needs = [call.needs() for call in plan.calls]
    same = [[same_call(wanted, other) for other in calls] for wanted in gold]
    matched = _most(same)
    if matched == len(gold):
        if not _embed(same, needs):
            return Match(PlanOutcome.WRONG_ORDER, matched, "a call came before one whose result it needs")
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
        names = ", ".join(call.tool for call in calls) or "none"
        return Match(PlanOutcome.WRONG_CALLS, matched, f"expected a call of {missing[0]}; got {names}")
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


def _embed(same: Sequence[Sequence[bool]], needs: Sequence[set[int]]) -> bool:
    """Whether each call of the plan can be matched to a separate call after those that it needs."""

    def place(chosen: list[int]) -> bool:
        call = len(chosen)
        if call == len(same):
            return True
        first = max((chosen[before] for before in needs[call]), default=-1) + 1
        fitting = [other for other in range(first, len(same[call])) if same[call][other] and other not in chosen]
        return any(place([*chosen, other]) for other in fitting)

    return place([])


def _first_fault(gold: Sequence[ExecutedCall], calls: Sequence[ExecutedCall], same: Sequence[Sequence[bool]]) -> str:
    """A description of the first missing call of the plan and of the call that was made instead."""
    wanted = next((call for call, row in zip(gold, same, strict=True) if not any(row)), gold[0])
    others = [o for k, o in enumerate(calls) if o.tool == wanted.tool and not any(row[k] for row in same)]
    if not others:
        return f"expected {wanted}"
    return others[0].error or f"expected {wanted}; got {others[0]}"


def same_value(value: object, other: object) -> bool:
    """Whether two values are equal; floating-point numbers are compared with a tolerance.

    >>> same_value([0.1 + 0.2, "a"], [0.3, "a"]), same_value(3, 3.0), same_value(3, "3"), same_value(1, True)
    (True, True, False, False)
    """
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        if isinstance(value, int) and isinstance(other, int):
            return value == other
        try:
            return math.isclose(value, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:
            return False
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same_value, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same_value(value[key], other[key]) for key in value)
    return type(value) is type(other) and bool(value == other)


def is_other_path(gold: Sequence[ExecutedCall], calls: Sequence[ExecutedCall]) -> bool:
    """Whether `calls` are another path to the result of the plan whose executed calls are `gold`."""
    if sorted(call.tool for call in gold) != sorted(call.tool for call in calls) or any(call.error for call in calls):
        return False
    if not same_value(gold[-1].value, calls[-1].value):
        return False
    (first, given), (second, other) = _find_flow(gold), _find_flow(calls)
    if sorted(map(repr, given)) != sorted(map(repr, other)) or not _flows_together(second):
        return False
    tried = [_agree(first, second, given, step) for step in range(1, _VARIATIONS + 1)]
    return False not in tried and tried.count(True) >= _MIN_ACCEPTED


def _find_flow(executed: Sequence[ExecutedCall]) -> tuple[Plan, list[object]]:
    """The plan of executed calls, in which a value that equals an earlier result refers to it; and the given values."""
    given: list[object] = []

    def read(value: object, place: int) -> object:
        for before in range(place - 1, -1, -1):
            if same_value(value, executed[before].value):
                return CallResult(before)
        # A tool may convert 5 to 5.0, which is the same given value.
        plain = int(value) if isinstance(value, float) and value.is_integer() else value
        given.append(plain)
        return plain

    arguments = [map_leaves(call.arguments, partial(read, place=place)) for place, call in enumerate(executed)]
    return Plan(tuple(Call(call.tool, own) for call, own in zip(executed, arguments, strict=True))), given


def _flows_together(plan: Plan) -> bool:
    """Whether every result but the last is used by a later call."""
    return set().union(*(call.needs() for call in plan.calls)) == set(range(len(plan.calls) - 1))


def _agree(first: Plan, second: Plan, given: Sequence[object], step: int) -> bool | None:
    """Whether two plans have the same result for other values; `None` if a tool rejects these values."""
    names = list(dict.fromkeys(map(repr, given)))
    moved = {repr(value): _move(value, step * (names.index(repr(value)) + 1)) for value in given}
    try:
        results = [_replace_values(plan, moved).execute()[-1].value for plan in (first, second)]
    except (ValueError, OverflowError, ArithmeticError):
        return None
    return same_value(*results)


def _replace_values(plan: Plan, moved: Mapping[str, object]) -> Plan:
    def replace(leaf: object) -> object:
        return leaf if isinstance(leaf, CallResult) else moved[repr(leaf)]

    return Plan(tuple(Call(call.tool, map_leaves(call.arguments, replace)) for call in plan.calls))


def _move(value: object, step: int) -> object:
    """Another value of the same kind."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    if not isinstance(value, str):
        return value + step
    for names in _NAMES:
        if value in names:
            return names[(names.index(value) + step) % len(names)]
    for read, show in (
        (parse_time, lambda minutes: show_time(minutes + 37 * step)),
        (parse_date, lambda date: (date + datetime.timedelta(days=17 * step)).isoformat()),
    ):
        try:
            return show(read(value))
        except ValueError:
            continue
    return value
