"""Alternative paths of a plan: those with the same result for all values, and those with the same result by chance."""

from __future__ import annotations

import pytest

from palaestra.tasks.tools.matching import is_other_path
from palaestra.tasks.tools.plans import ExecutedCall, read_plan

TIMES = {"a": "12:25", "b": "04:50", "c": "01:40"}
DATES = {"a": "2020-09-21", "b": "2027-02-19", "c": "2020-04-22", "d": "2020-08-01"}


@pytest.mark.parametrize(
    ("plan", "other", "values"),
    [
        ("add_minutes(add_minutes(a, 20), 35)", "add_minutes(add_minutes(a, 35), 20)", TIMES),
        ("local_time(add_minutes(a, 50), 'Halver', 'Marwick')", "add_minutes(local_time(a, 'Halver', 'Marwick'), 50)", TIMES),
        ("add_minutes(c, minutes_between(a, b))", "add_minutes(b, minutes_between(a, c))", TIMES),
        ("difference(days_between(a, b), days_between(c, d))", "difference(days_between(d, b), days_between(c, a))", DATES),
        ("add_days(add_days(a, 3), 40)", "add_days(add_days(a, 40), 3)", DATES),
    ],
)  # fmt: skip
def test_other_paths_with_the_same_result(plan: str, other: str, values: dict[str, str]) -> None:
    gold, executed = read_plan(plan, values).execute(), read_plan(other, values).execute()
    assert gold[-1].value == executed[-1].value
    assert is_other_path(gold, executed)
    assert is_other_path(executed, gold)


@pytest.mark.parametrize(
    ("plan", "other"),
    [
        # Right by chance: the towns have one time, the factors are alike, seven days are a week.
        ("local_time('15:20', 'Halver', nearest_town('Marwick'))", "local_time('15:20', nearest_town('Marwick'), 'Halver')"),
        ("total([convert_length(342, 'km', 'm'), convert_length(366.5, 'mm', 'm')])", "total([convert_length(342, 'm', 'mm'), convert_length(366.5, 'm', 'km')])"),
        ("next_weekday(add_days('2024-01-01', 7), 'Monday')", "add_days(next_weekday('2024-01-01', 'Monday'), 6)"),
        # A tool less, another tool, a value of one's own, a result that goes nowhere.
        ("weekday(add_days('2024-01-01', 5))", "weekday('2024-01-06')"),
        ("weekday(add_days('2024-01-01', 5))", "weekday(add_days('2024-01-06', 0))"),
        ("weekday(add_days('2024-01-01', 5))", "weekday(add_days('2024-01-01', 12))"),
        ("add_days(add_days('2024-01-01', 3), 4)", "add_days('2024-01-01', 7)"),
        ("add_minutes(add_minutes('08:00', 20), 20)", "x = add_minutes('08:00', 20)\nadd_minutes('08:35', 5)"),
        ("product(total([2, 2]), 2)", "total([product(2, 2), 2])"),
    ],
)  # fmt: skip
def test_result_by_chance_is_no_path(plan: str, other: str) -> None:
    assert not is_other_path(read_plan(plan, {}).execute(), read_plan(other, {}).execute())


def test_failed_call_is_no_path() -> None:
    gold = read_plan("weekday(add_days('2024-01-01', 5))", {}).execute()
    assert not is_other_path(gold, [gold[1], ExecutedCall("add_days", {"date": "x"}, error="no date")])
    assert not is_other_path(gold, [])
