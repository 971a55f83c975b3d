"""The tools: results, rejected arguments, and descriptions for models."""

from __future__ import annotations

import builtins
import json
from collections import defaultdict
from typing import Any, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.tools.library import DOMAINS, LIBRARY
from palaestra.tasks.tools.library.tool import ArgumentError
from palaestra.tasks.tools.requests import SKILLS

KNOWN: list[tuple[str, tuple[Any, ...], Any]] = [
    ("add_days", ("2024-02-28", 2), "2024-03-01"),
    ("add_days", ("2023-01-01", -1), "2022-12-31"),
    ("add_months", ("2023-01-31", 1), "2023-02-28"),
    ("add_months", ("2023-12-15", 2), "2024-02-15"),
    ("add_months", ("2023-03-31", -13), "2022-02-28"),
    ("days_between", ("2024-02-01", "2024-03-01"), 29),
    ("weekday", ("2000-01-01",), "Saturday"),
    ("next_weekday", ("2000-01-01", "Saturday"), "2000-01-08"),
    ("next_weekday", ("2000-01-01", "Sunday"), "2000-01-02"),
    ("month_end", ("2024-02-05",), "2024-02-29"),
    ("add_minutes", ("23:50", 25), "00:15"),
    ("add_minutes", ("00:10", -20), "23:50"),
    ("minutes_between", ("22:00", "01:30"), 210),
    ("convert_length", (2, "mi", "km"), 3.218688),
    ("convert_mass", (1, "lb", "g"), 453.59237),
    ("convert_volume", (2, "gal", "ml"), 7570.823568),
    ("convert_temperature", (100, "C", "F"), 212.0),
    ("convert_temperature", (0, "K", "C"), -273.15),
    ("convert_currency", (100, "EUR", "USD"), 108.7),
    ("add_percent", (80, 25), 100.0),
    ("take_percent", (80, 25), 60.0),
    ("split_evenly", (100, 3), 33.33),
    ("savings", (1000, 10, 2), 1210.0),
    ("mean", ([1, 2, 6],), 3.0),
    ("median", ([9, 1, 2, 4],), 3.0),
    ("largest", ([3, 9, 4],), 9.0),
    ("smallest", ([3, 9, 4],), 3.0),
    ("count_above", ([3, 9, 4], 3), 2),
    ("top", ([3, 9, 4], 2), [9.0, 4.0]),
    ("scale", ([3, 1], 0.5), [1.5, 0.5]),
    ("round_to", (2.71828,), 3.0),
    ("round_to", (2.71828, 2), 2.72),
    ("total", ([0.1, 0.2],), 0.3),
    ("difference", (5, 7), -2.0),
    ("product", (1.5, 4), 6.0),
    ("ratio", (1, 4), 0.25),
    ("count_words", ("a  b c",), 3),
    ("count_letter", ("Banana", "A"), 3),
    ("longest_word", ("one three seven",), "three"),
    ("nth_word", ("one two", 2), "two"),
    ("replace_word", ("a bad a", "a", "x"), "x bad x"),
    ("reverse_text", ("abc",), "cba"),
    ("capitals", ("abc",), "ABC"),
    ("first_letters", ("red green",), "rg"),
    ("shift_letters", ("xyZ!", 2), "zaB!"),
    ("shift_letters", ("ab", -1), "za"),
    ("distance", ("Arvik", "Grenna"), 114),
    ("population", ("Lunde",), 12395),
    ("elevation", ("Lunde",), 720),
    ("nearest_town", ("Belmora",), "Arvik"),
    ("drive_minutes", (90, 60), 90),
    ("ticket_price", (100,), 17.5),
    ("ticket_price", (100, "first"), 28.0),
    ("local_time", ("10:00", "Arvik", "Lunde"), "12:30"),
    ("town_of", ("Freya",), "Arvik"),
    ("manager_of", ("Yuki",), "Rosa"),
    ("birthday_of", ("Yuki",), "2000-03-22"),
    ("age_on", ("Yuki", "2020-03-21"), 19),
    ("age_on", ("Yuki", "2020-03-22"), 20),
    ("shift_start", ("Aino", "Wednesday"), "08:50"),
    ("order_cost", ("lamp", 3), 103.5),
    ("stock_of", ("lamp",), 41),
    ("weight_of", ("lamp",), 2.4),
    ("made_in", ("lamp",), "Dunholm"),
    ("delivery_days", ("stove", "Isembro"), 5),
    ("delivery_days", ("clock", "Isembro"), 7),
]


@pytest.mark.parametrize(("tool", "given", "wanted"), KNOWN)
def test_tool_results(tool: str, given: tuple[Any, ...], wanted: Any) -> None:
    value = LIBRARY[tool].function(**LIBRARY[tool].bind(given))
    assert value == pytest.approx(wanted) if isinstance(wanted, float) else value == wanted


def test_every_tool_has_a_known_result() -> None:
    assert {tool for tool, _, _ in KNOWN} == set(LIBRARY)
    assert len(LIBRARY) >= 24
    assert len(DOMAINS) >= 6


def test_tool_names_shadow_nothing() -> None:
    assert not set(LIBRARY) & (set(dir(builtins)) | {"answer"})
    assert all(name.isidentifier() and name.islower() for name in LIBRARY)


def test_interface_of_tools() -> None:
    tool = LIBRARY["ticket_price"]
    assert tool.signature == "ticket_price(kilometres: float, seat: 'first'|'second' = 'second') -> float"
    assert tool.short_signature == "ticket_price(kilometres, seat)"
    assert tool.schema() == {
        "type": "function",
        "function": {
            "name": "ticket_price",
            "description": "The price of a train ticket in EUR",
            "parameters": {
                "type": "object",
                "properties": {
                    "kilometres": {"type": "number", "description": "of the way"},
                    "seat": {
                        "type": "string",
                        "enum": ["first", "second"],
                        "description": "the class",
                        "default": "second",
                    },
                },
                "required": ["kilometres"],
                "additionalProperties": False,
            },
        },
    }
    for tool in LIBRARY.values():
        assert json.loads(json.dumps(tool.schema())) == tool.schema()


@pytest.mark.parametrize(
    ("tool", "args", "kwargs", "message"),
    [
        (
            "add_days",
            ("2024-01-01",),
            {},
            r"add_days\(date: str, days: int\) -> str; .*'days'",
        ),
        ("add_days", ("2024-01-01", 1, 2), {}, "too many positional arguments"),
        ("add_days", ("2024-01-01", "1"), {}, 'days .*int; .*str "1"'),
        ("add_days", ("2024-01-01", 1.5), {}, r"days .*int; .*float 1\.5"),
        ("add_days", ("2024-01-01", True), {}, "days .*int; .*bool true"),
        ("add_days", (20240101, 1), {}, "date .*str; .*int 20240101"),
        ("add_days", ("2024-01-01",), {"date": "2024-01-01"}, "multiple .*'date'"),
        (
            "add_days",
            ("2024-01-01",),
            {"day": 1},
            "unexpected .*'day'|missing .*'days'",
        ),
        ("add_percent", (1, float("nan")), {}, "percent lies between"),
        ("add_percent", (10**400, 1), {}, "amount lies between"),
        ("mean", ([],), {}, r"numbers .*1 to 100 numbers; .*list \[\]"),
        ("mean", ([1] * 101,), {}, "numbers .*1 to 100 numbers"),
        ("mean", ([1, "2"],), {}, "item of mean: .*float"),
        ("mean", (3,), {}, "numbers .*1 to 100 numbers; .*int 3"),
        ("convert_mass", (1, "kg", "stone"), {}, 'target .*g, kg, t, oz, lb; .*"stone"'),
        ("count_words", ("x" * 3000,), {}, "2000 characters; .*3000"),
    ],
)
def test_invalid_arguments_are_named(tool: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LIBRARY[tool].bind(args, kwargs)


@pytest.mark.parametrize(
    ("tool", "args", "message"),
    [
        ("weekday", ("2024-02-30",), "YYYY-MM-DD; .*'2024-02-30'"),
        ("weekday", ("2024-2-3",), "YYYY-MM-DD"),
        ("add_minutes", ("24:00", 1), "HH:MM"),
        ("population", ("Atlantis",), "town 'Atlantis'; .*Arvik"),
        ("town_of", ("Zeno",), "'Zeno'"),
        ("stock_of", ("sofa",), "item 'sofa'"),
        ("ratio", (1, 0), "divided by 0"),
        ("add_percent", (100, -10), "percentage"),
        ("top", ([1, 2], 3), "1 and the 2 numbers; .*3"),
        ("nth_word", ("a b", 3), "1 and the 2 words; .*3"),
        ("savings", (1, 1, 1000), "years .*0 and 100"),
    ],
)
def test_invalid_values(tool: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LIBRARY[tool].function(**LIBRARY[tool].bind(args))


def test_conversion_and_defaults() -> None:
    assert LIBRARY["add_days"].bind(("2024-01-01", 3.0)) == {"date": "2024-01-01", "days": 3}
    assert LIBRARY["ticket_price"].bind((), {"kilometres": 5}) == {"kilometres": 5.0, "seat": "second"}


def test_canonical_arguments() -> None:
    far, total = LIBRARY["distance"], LIBRARY["total"]
    assert far.canonical(far.bind(("Lunde", "Arvik"))) == far.canonical(far.bind(("Arvik", "Lunde")))
    assert total.canonical(total.bind(([3, 1, 2],))) == {"numbers": [1.0, 2.0, 3.0]}
    minus = LIBRARY["difference"]
    assert minus.canonical(minus.bind((1, 2))) != minus.canonical(minus.bind((2, 1)))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(st.sampled_from(sorted(LIBRARY)), st.lists(anything, max_size=4))
def test_any_arguments_are_bound_or_rejected(name: str, args: list[Any]) -> None:
    tool = LIBRARY[name]
    try:
        bound = tool.bind(args)
        value = tool.function(**bound)
    except (ValueError, OverflowError):
        return
    assert len(json.dumps(value)) < 20_000


def test_tools_are_pure_and_distinct() -> None:
    seen: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for kinds in SKILLS.values():
        for recipe in [tool for recipes in kinds.values() for tool in recipes]:
            for _ in range(4):
                for call in recipe.draw(rng).plan.execute():
                    seen[call.tool].append(tuple(call.arguments.values()))
                    assert LIBRARY[call.tool].function(**call.arguments) == call.value
                    declared = LIBRARY[call.tool].returns
                    assert type(call.value) is (get_origin(declared) or declared), call
    assert set(seen) == set(LIBRARY)
    for name, several in seen.items():
        for other in LIBRARY.values():
            if other.name != name and len(several) > 1:
                assert not all(_same(LIBRARY[name], other, args) for args in several), (name, other.name)


def _same(tool: Any, other: Any, args: tuple[Any, ...]) -> bool:
    try:
        return bool(other.function(**other.bind(args)) == tool.function(**tool.bind(args)))
    except (ValueError, OverflowError):
        return False
