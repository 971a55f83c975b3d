"""The tools: results, rejected arguments, and descriptions for models."""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.tools import library
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
def test_a_tool_gives_what_it_says(tool: str, given: tuple[Any, ...], wanted: Any) -> None:
    found = LIBRARY[tool].function(**LIBRARY[tool].bind(given))
    assert found == pytest.approx(wanted) if isinstance(wanted, float) else found == wanted


def test_every_tool_is_held_to_a_known_value() -> None:
    assert {tool for tool, _, _ in KNOWN} == set(LIBRARY)
    assert len(LIBRARY) >= 24
    assert len(DOMAINS) >= 6


def test_names_are_free_in_a_program() -> None:
    assert not set(LIBRARY) & (set(dir(builtins)) | {"answer"})
    assert all(name.isidentifier() and name.islower() for name in LIBRARY)


def test_the_interface_follows_from_signature_and_docstring() -> None:
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
                        "type": "string", "enum": ["first", "second"], "description": "the class", "default": "second",
                    },
                },
                "required": ["kilometres"],
                "additionalProperties": False,
            },
        },
    }  # fmt: skip
    for one in LIBRARY.values():
        assert json.loads(json.dumps(one.schema())) == one.schema()


@pytest.mark.parametrize(
    ("tool", "args", "kwargs", "message"),
    [
        (
            "add_days",
            ("2024-01-01",),
            {},
            r"expected add_days\(date: str, days: int\) -> str; missing a required argument: 'days'",
        ),
        ("add_days", ("2024-01-01", 1, 2), {}, "too many positional arguments"),
        ("add_days", ("2024-01-01", "1"), {}, 'days is of type int; got str "1"'),
        ("add_days", ("2024-01-01", 1.5), {}, "days is of type int; got float 1.5"),
        ("add_days", ("2024-01-01", True), {}, "days is of type int; got bool true"),
        ("add_days", (20240101, 1), {}, "date is of type str; got int 20240101"),
        ("add_days", ("2024-01-01",), {"date": "2024-01-01"}, "multiple values for argument 'date'"),
        (
            "add_days",
            ("2024-01-01",),
            {"day": 1},
            "unexpected keyword argument 'day'|missing a required argument: 'days'",
        ),
        ("add_percent", (1, float("nan")), {}, "percent lies between"),
        ("add_percent", (10**400, 1), {}, "amount lies between"),
        ("mean", ([],), {}, r"numbers is a list of 1 to 100 numbers; got list \[\]"),
        ("mean", ([1] * 101,), {}, "numbers is a list of 1 to 100 numbers"),
        ("mean", ([1, "2"],), {}, "an item of mean: numbers is of type float"),
        ("mean", (3,), {}, "numbers is a list of 1 to 100 numbers; got int 3"),
        ("convert_mass", (1, "kg", "stone"), {}, 'target is one of g, kg, t, oz, lb; got str "stone"'),
        ("count_words", ("x" * 3000,), {}, "at most 2000 characters; got 3000"),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    tool: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        LIBRARY[tool].bind(args, kwargs)


@pytest.mark.parametrize(
    ("tool", "args", "message"),
    [
        ("weekday", ("2024-02-30",), "written YYYY-MM-DD; got '2024-02-30'"),
        ("weekday", ("2024-2-3",), "written YYYY-MM-DD"),
        ("add_minutes", ("24:00", 1), "written HH:MM"),
        ("population", ("Atlantis",), "there is no town 'Atlantis'; there are Arvik"),
        ("town_of", ("Zeno",), "there is nobody called 'Zeno'"),
        ("stock_of", ("sofa",), "there is no item 'sofa'"),
        ("ratio", (1, 0), "divided by 0"),
        ("add_percent", (100, -10), "a percentage is 0 or more"),
        ("top", ([1, 2], 3), "between 1 and the 2 numbers; got 3"),
        ("nth_word", ("a b", 3), "between 1 and the 2 words; got 3"),
        ("savings", (1, 1, 1000), "years lie between 0 and 100"),
    ],
)
def test_values_that_make_no_sense_are_refused(tool: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LIBRARY[tool].function(**LIBRARY[tool].bind(args))


def test_whole_numbers_may_come_with_a_point_and_defaults_are_filled_in() -> None:
    assert LIBRARY["add_days"].bind(("2024-01-01", 3.0)) == {"date": "2024-01-01", "days": 3}
    assert LIBRARY["ticket_price"].bind((), {"kilometres": 5}) == {"kilometres": 5.0, "seat": "second"}


def test_what_has_no_order_is_canonical() -> None:
    far, total = LIBRARY["distance"], LIBRARY["total"]
    assert far.canonical(far.bind(("Lunde", "Arvik"))) == far.canonical(far.bind(("Arvik", "Lunde")))
    assert total.canonical(total.bind(([3, 1, 2],))) == {"numbers": [1.0, 2.0, 3.0]}
    minus = LIBRARY["difference"]
    assert minus.canonical(minus.bind((1, 2))) != minus.canonical(minus.bind((2, 1)))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=4), max_leaves=6
)  # fmt: skip


@given(st.sampled_from(sorted(LIBRARY)), st.lists(anything, max_size=4))
def test_whatever_comes_is_bound_or_refused_and_never_breaks_a_tool(name: str, args: list[Any]) -> None:
    tool = LIBRARY[name]
    try:
        bound = tool.bind(args)
        value = tool.function(**bound)
    except (ValueError, OverflowError):
        return
    assert len(json.dumps(value)) < 20_000


def test_tools_are_pure_and_none_does_the_work_of_another() -> None:
    seen: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    rng = np.random.default_rng(0)
    for kinds in SKILLS.values():
        for recipe in [one for recipes in kinds.values() for one in recipes]:
            for _ in range(4):
                for made in recipe.draw(rng).plan.execute():
                    seen[made.tool].append(tuple(made.arguments.values()))
                    assert LIBRARY[made.tool].function(**made.arguments) == made.value
                    declared = LIBRARY[made.tool].returns
                    assert type(made.value) is (get_origin(declared) or declared), made
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


def test_the_library_needs_nothing_but_python() -> None:
    """It runs in a sandbox without our packages."""
    for file in Path(library.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                own = name.startswith("palaestra.tasks.tools.library")
                assert own or name.split(".")[0] in sys.stdlib_module_names, (file.name, name)
