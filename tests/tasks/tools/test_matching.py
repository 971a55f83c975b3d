"""Matching the calls that were made with a plan."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.matching import PlanOutcome, match, same_call, same_value
from palaestra.tasks.tools.plans import Call, CallResult, ExecutedCall, Plan, read_plan


@st.composite
def plans(draw: Any) -> Plan:
    """Plans of one to four calls of numbers, every one of which flows into the last."""
    calls: list[Call] = []
    for place in range(draw(st.integers(0, 3))):
        values = st.integers(-9, 9) | (
            st.sampled_from([CallResult(k) for k in range(place)]) if place else st.nothing()
        )
        tool = draw(st.sampled_from(["difference", "product"]))
        calls.append(Call(tool, {"a": draw(values), "b": draw(values)}))
    used = {need for call in calls for need in call.needs()}
    loose = [CallResult(place) for place in range(len(calls)) if place not in used]
    calls.append(Call("total", {"numbers": [draw(st.integers(-9, 9)), *loose]}))
    return Plan(tuple(calls))


def distinct(gold: Sequence[ExecutedCall]) -> bool:
    return not any(same_call(a, b) for a, b in itertools.combinations(gold, 2))


def is_valid_order(plan: Plan, order: Sequence[int]) -> bool:
    """By the definition: every call stands behind those that it needs."""
    return all(order.index(need) < order.index(call) for call in order for need in plan.calls[call].needs())


@given(plans())
def test_orders_that_the_data_flow_allows(plan: Plan) -> None:
    gold = plan.execute()
    assume(distinct(gold))
    for order in itertools.permutations(range(len(gold))):
        result = match(plan, gold, [gold[place] for place in order])
        assert result.outcome is (PlanOutcome.RIGHT if is_valid_order(plan, order) else PlanOutcome.WRONG_ORDER)
        assert result.matched == len(gold)


@given(plans(), st.lists(st.integers(0, 3), max_size=6), st.booleans())
def test_match_agrees_with_a_brute_force_search(plan: Plan, places: list[int], extra: bool) -> None:
    gold = plan.execute()
    answer = [gold[place % len(gold)] for place in places]
    by_hand = any(
        all(same_call(gold[call], answer[place]) for call, place in enumerate(chosen))
        and all(chosen[need] < chosen[call] for call in range(len(gold)) for need in plan.calls[call].needs())
        for chosen in itertools.permutations(range(len(answer)), len(gold))
    )
    right = by_hand and (extra or len(answer) == len(gold))
    assert (match(plan, gold, answer, extra).outcome is PlanOutcome.RIGHT) is right


@given(plans(), st.data())
def test_changed_argument(plan: Plan, data: Any) -> None:
    gold = plan.execute()
    place = data.draw(st.integers(0, len(gold) - 1))
    arguments = dict(gold[place].arguments)
    name = data.draw(st.sampled_from(sorted(arguments)))
    value = arguments[name]
    arguments[name] = [*value[:-1], value[-1] + 1] if isinstance(value, list) else value + 1
    changed = replace(gold[place], arguments=arguments)
    result = match(plan, gold, [*gold[:place], changed, *gold[place + 1 :]])
    assert result.outcome is not PlanOutcome.RIGHT
    if distinct(gold) and not any(same_call(changed, first) for first in gold):
        assert (result.outcome, result.matched) == (PlanOutcome.WRONG_ARGUMENTS, len(gold) - 1)
        assert "expected" in result.detail


@given(plans(), st.data())
def test_missing_other_and_extra_calls(plan: Plan, data: Any) -> None:
    gold = plan.execute()
    place = data.draw(st.integers(0, len(gold) - 1))
    without = [*gold[:place], *gold[place + 1 :]]
    assert match(plan, gold, without).outcome is PlanOutcome.WRONG_CALLS
    other = ExecutedCall("mean", {"numbers": [1.0]}, 1.0)
    assert match(plan, gold, [*gold[:place], other, *gold[place + 1 :]]).outcome is PlanOutcome.WRONG_CALLS
    more = [*gold[:place], other, *gold[place:]]
    assert match(plan, gold, more).outcome is PlanOutcome.EXTRA_CALLS
    assert match(plan, gold, more, extra_calls=True).outcome is PlanOutcome.RIGHT


@given(plans(), st.randoms())
def test_unordered_arguments(plan: Plan, random: Any) -> None:
    gold = plan.execute()
    mixed = []
    for first in gold:
        arguments = dict(first.arguments)
        if first.tool == "product":
            arguments = {"a": arguments["b"], "b": arguments["a"]}
        elif first.tool == "total":
            arguments["numbers"] = random.sample(arguments["numbers"], len(arguments["numbers"]))
        mixed.append(replace(first, arguments=arguments))
    assert match(plan, gold, mixed).outcome is PlanOutcome.RIGHT


@given(plans())
def test_plan_round_trip(plan: Plan) -> None:
    assert Plan.from_data(json.loads(json.dumps(plan.to_data()))) == plan
    assert plan.canonical() == Plan.from_data(plan.to_data()).canonical()


@given(plans())
def test_program_of_a_plan(plan: Plan) -> None:
    answer, answers = [], []

    def record_calls(name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = LIBRARY[name].bind(args, kwargs)
            answer.append(ExecutedCall(name, bound, LIBRARY[name].function(**bound)))
            return answer[-1].value

        return call

    exec(plan.program(), {"answer": answers.append, **{call.tool: record_calls(call.tool) for call in plan.calls}})
    assert tuple(answer) == plan.execute()
    assert answers == [answer[-1].value]


def test_failed_calls_do_not_match() -> None:
    plan = read_plan("weekday(date)", {"date": "2024-01-01"})
    gold = plan.execute()
    failed = ExecutedCall("weekday", {"date": "tomorrow"}, error="a date is written YYYY-MM-DD")
    assert match(plan, gold, [failed]).outcome is PlanOutcome.WRONG_ARGUMENTS
    assert match(plan, gold, [failed]).detail == "a date is written YYYY-MM-DD"
    assert match(plan, gold, [failed, *gold]).outcome is PlanOutcome.EXTRA_CALLS
    assert match(plan, gold, [failed, *gold], extra_calls=True).outcome is PlanOutcome.RIGHT


def test_read_plan() -> None:
    plan = read_plan(
        "d = add_days(date, days)\ndifference(days_between(date, d), 3)", {"date": "2024-01-01", "days": 5}
    )
    assert [call.tool for call in plan.calls] == ["add_days", "days_between", "difference"]
    assert plan.calls[1].arguments == {"start": "2024-01-01", "end": CallResult(0)}
    assert plan.shape == "chain"
    assert read_plan("total([mean([1]), mean([2])])", {}).shape == "join"
    assert read_plan("ticket_price(5, seat='first')", {}).calls[0].arguments == {"kilometres": 5, "seat": "first"}


def test_canonical_form() -> None:
    towns = {"a": "Arvik", "b": "Lunde", "c": "Pellin"}
    first = read_plan("total([distance(a, b), distance(b, c)])", towns).canonical()
    assert read_plan("total([distance(c, b), distance(b, a)])", towns).canonical() == first
    assert read_plan("total([distance(a, b), distance(a, c)])", towns).canonical() != first


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        (1, 1.0, True), (0.1 + 0.2, 0.3, True), (10**17, 10**17 + 1, False), (1, True, False), (1, "1", False),
        ([1, [2]], (1, [2.0]), True), ([1], [1, 2], False), ("a", "A", False), (None, None, True), (None, 0, False),
        ({"a": 1}, {"a": 1.0}, True), ({"a": 1}, {"b": 1}, False), (10**400, 1.0, False), (float("nan"), 1.0, False),
    ],
)  # fmt: skip
def test_same_value(first: Any, other: Any, same: bool) -> None:
    assert same_value(first, other) is same
    assert same_value(other, first) is same
