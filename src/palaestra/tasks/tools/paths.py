"""Decide whether a sequence of calls is another path to the result of a plan.

It must call the same tools equally often with the same given values, use every result, and have the same result. It must
also have the same result as the plan for other values, so that a result that is right by chance is not accepted.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.tasks.tools.library.dates import WEEKDAYS
from palaestra.tasks.tools.library.money import EUROS
from palaestra.tasks.tools.library.people import PEOPLE
from palaestra.tasks.tools.library.shop import ITEMS
from palaestra.tasks.tools.library.travel import TOWNS
from palaestra.tasks.tools.library.units import GRAMS, LITRES, METRES
from palaestra.tasks.tools.library.values import parse_date, parse_time, show_time
from palaestra.tasks.tools.plans import Call, CallResult, ExecutedCall, Plan
from palaestra.tasks.tools.values import same_value

VARIATIONS, LEAST = 12, 3
"""The number of other sets of values to try, and how many of them the tools must accept."""
NAMES = [
    list(names) for names in (TOWNS, PEOPLE, ITEMS, EUROS, METRES, GRAMS, LITRES, WEEKDAYS, "CFK", ("first", "second"))
]
"""Names that can replace each other."""


def is_other_path(gold: Sequence[ExecutedCall], calls: Sequence[ExecutedCall]) -> bool:
    """Whether `calls` are another path to the result of the plan whose executed calls are `gold`."""
    if sorted(call.tool for call in gold) != sorted(call.tool for call in calls) or any(call.error for call in calls):
        return False
    if not same_value(gold[-1].value, calls[-1].value):
        return False
    (first, given), (second, other) = _find_flow(gold), _find_flow(calls)
    if sorted(map(repr, given)) != sorted(map(repr, other)) or not _flows_together(second):
        return False
    tried = [_agree(first, second, given, step) for step in range(1, VARIATIONS + 1)]
    return False not in tried and tried.count(True) >= LEAST


def _find_flow(executed: Sequence[ExecutedCall]) -> tuple[Plan, list[Any]]:
    """The plan of executed calls, in which a value that equals an earlier result refers to it; and the given values."""
    given: list[Any] = []

    def read(value: Any, place: int) -> Any:
        if isinstance(value, list):
            return [read(item, place) for item in value]
        for before in range(place - 1, -1, -1):
            if same_value(value, executed[before].value):
                return CallResult(before)
        # A tool may convert 5 to 5.0, which is the same given value.
        plain = int(value) if isinstance(value, float) and value.is_integer() else value
        given.append(plain)
        return plain

    calls = [
        Call(call.tool, {name: read(value, place) for name, value in call.arguments.items()})
        for place, call in enumerate(executed)
    ]
    return Plan(tuple(calls)), given


def _flows_together(plan: Plan) -> bool:
    """Whether every result but the last is used by a later call."""
    return set().union(*(call.needs() for call in plan.calls)) == set(range(len(plan.calls) - 1))


def _agree(first: Plan, second: Plan, given: Sequence[Any], step: int) -> bool | None:
    """Whether two plans have the same result for other values; `None` if a tool rejects these values."""
    names = list(dict.fromkeys(map(repr, given)))
    moved = {repr(value): _move(value, step * (names.index(repr(value)) + 1)) for value in given}
    try:
        results = [_with_values(plan, moved).execute()[-1].value for plan in (first, second)]
    except (ValueError, OverflowError, ArithmeticError):
        return None
    return same_value(*results)


def _with_values(plan: Plan, moved: Mapping[str, Any]) -> Plan:
    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(item) for item in value]
        return value if isinstance(value, CallResult) else moved[repr(value)]

    return Plan(tuple(Call(call.tool, {name: read(v) for name, v in call.arguments.items()}) for call in plan.calls))


def _move(value: Any, step: int) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    if not isinstance(value, str):
        return value + step
    for names in NAMES:
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
