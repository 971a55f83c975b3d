"""The requests of `tools-skills`, by skill and subskill, and the tools that are offered for each.

A request is drawn from a recipe: a plan with placeholders (places), its wordings, and the pools of values for the places.
Question, plan and answer come from the same draw, so they always agree. Each wording states exactly what the plan
does and in which order. If two orders would give the same result, it states which comes first.

The recipes are data: one JSON file per domain, with `pools` of its own and `skills`. A new skill is an entry in a file; a
new domain is a file and its name in `DOMAINS`.
"""

from __future__ import annotations

import ast
import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from string import Formatter
from typing import Any

import numpy as np

from palaestra.core.records import Json
from palaestra.core.seeding import Seeds
from palaestra.tasks.tools.library import LIBRARY
from palaestra.tasks.tools.library.dates import WEEKDAYS
from palaestra.tasks.tools.library.quantities import EUROS, GRAMS, LITERS, METERS
from palaestra.tasks.tools.library.world import ITEMS, PEOPLE, TOWNS
from palaestra.tasks.tools.plans import Plan, read_plan

Rng = np.random.Generator
Drawer = Callable[[Rng], "ToolDraft"]


@dataclass(frozen=True, slots=True)
class ToolDraft:
    """One drawn request.

    Arguments:
        question: the request, without the list of tools and the form of the answer.
        plan: the calls that answer it.
        without: tools that must not be offered, because they allow another plan.
    """

    question: str
    plan: Plan
    without: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ValuePool:
    """Draws the values of a place and formats them. Places that share a pool get different values."""

    draw: Callable[[Rng], Any]
    format: Callable[[Any], str] = str

    def read(self, text: str) -> object:
        """The value of a text that `format` wrote. Raises `ValueError` if it is another text."""
        sample = self.draw(np.random.default_rng(0))
        if isinstance(sample, list):
            value: object = [int(number) for number in text.replace(" and ", ", ").split(", ")]
        elif isinstance(sample, str):
            return text
        else:
            value = _plain(float(text))
        if self.format(value) != text:
            raise ValueError(f"expected a value such as {self.format(sample)}; got {text}")
        return value


def _to_pattern(wording: str) -> str:
    parts, seen = [], set()
    for literal, name, _, _ in Formatter().parse(wording):
        parts.append(re.escape(literal))
        if name is not None:
            parts.append(f"(?P={name})" if name in seen else f"(?P<{name}>.+?)")
            seen.add(name)
    return "".join(parts)


@dataclass(frozen=True)
class Recipe:
    """A kind of request.

    Arguments:
        plan: a program of calls, see `read_plan`; its free names are the places.
        wordings: templates with the places.
        places: the pool of each place.
        rising: groups of places whose values are sorted.
        above: the answer must be greater; None for any answer.
        without: see `ToolDraft`.
    """

    plan: str
    wordings: Sequence[str]
    places: Mapping[str, ValuePool]
    rising: Sequence[Sequence[str]] = ()
    above: float | None = None
    without: Sequence[str] = ()

    @property
    def level(self) -> int:
        """The number of calls."""
        return sum(isinstance(node, ast.Call) for node in ast.walk(ast.parse(self.plan)))

    def draw(self, rng: Rng) -> ToolDraft:
        """A request with random values and a random wording."""
        while True:
            values = self._values(rng)
            plan = read_plan(self.plan, values)
            if self.above is None or plan.execute()[-1].value > self.above:
                break
        texts = {name: self.places[name].format(value) for name, value in values.items()}
        wording = self.wordings[int(rng.integers(len(self.wordings)))]
        return ToolDraft(wording.format(**texts), plan, self.without)

    def read(self, question: str) -> Plan | None:
        """The plan of a request in one of the wordings; `None` if it is not one of them."""
        for pattern in self.patterns:
            match = pattern.fullmatch(question)
            if match is None:
                continue
            try:
                values = {name: self.places[name].read(text) for name, text in match.groupdict().items()}
                plan = read_plan(self.plan, values)
                plan.execute()
            except (ValueError, TypeError, LookupError, ArithmeticError):  # The text is no value of the place.
                continue
            return plan
        return None

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The wordings as patterns with a group for each place."""
        return tuple(re.compile(_to_pattern(wording)) for wording in self.wordings)

    def _values(self, rng: Rng) -> Json:
        values: Json = {}
        for name, pool in self.places.items():
            others = [values[other] for other in values if self.places[other] is pool]
            values[name] = pool.draw(rng)
            while values[name] in others:
                values[name] = pool.draw(rng)
        for group in self.rising:
            values.update(zip(group, sorted(values[name] for name in group), strict=True))
        return values


def make_drawer(recipes: Sequence[Recipe]) -> Drawer:
    """A function that draws a request of one of the recipes, with equal probability."""
    return lambda rng: recipes[int(rng.integers(len(recipes)))].draw(rng)


def among(values: Sequence[object]) -> ValuePool:
    """One of the values."""
    return ValuePool(lambda rng: values[int(rng.integers(len(values)))])


def whole(low: int, high: int) -> ValuePool:
    """A whole number from `low` to `high`, both included."""
    return ValuePool(lambda rng: int(rng.integers(low, high + 1)))


def decimal(low: int, high: int, step: float) -> ValuePool:
    """A number from `low` to `high` in steps, without trailing zeros."""
    steps = round((high - low) / step)
    return ValuePool(lambda rng: _plain(round(low + step * int(rng.integers(steps + 1)), 6)))


def several(shortest: int, longest: int, low: int, high: int) -> ValuePool:
    """A list of different whole numbers, written as 3, 8 and 5."""

    def draw(rng: Rng) -> list[int]:
        count = int(rng.integers(shortest, longest + 1))
        return [int(number) for number in rng.choice(np.arange(low, high + 1), count, replace=False)]

    return ValuePool(draw, lambda numbers: f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}")


def words(shortest: int, longest: int) -> ValuePool:
    """A text of different words."""
    return ValuePool(
        lambda rng: " ".join(rng.choice(_SHARED["words"], int(rng.integers(shortest, longest + 1)), replace=False))
    )


def _date(rng: Rng) -> str:
    return (datetime.date(2019, 1, 1) + datetime.timedelta(days=int(rng.integers(4000)))).isoformat()


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


_SHARED: Json = json.loads((files(__name__) / "shared.json").read_text(encoding="utf-8"))
_POOLS: dict[str, ValuePool] = {
    "dates": ValuePool(_date),
    "times": ValuePool(lambda rng: f"{int(rng.integers(24)):02d}:{5 * int(rng.integers(12)):02d}"),
    "days_of_week": among(WEEKDAYS),
    "town": among(tuple(TOWNS)),
    "person": among(tuple(PEOPLE)),
    "item": among(tuple(ITEMS)),
    "word": among(_SHARED["words"]),
    "currency": among(tuple(EUROS)),
    "lengths": among(tuple(METERS)),
    "masses": among(tuple(GRAMS)),
    "volumes": among(tuple(LITERS)),
}
"""The pools that every domain may use, by name."""
_KINDS: Mapping[str, Callable[..., ValuePool]] = {
    "among": lambda *values: among(values),
    **{make.__name__: make for make in (whole, decimal, several, words)},
}


def read_pool(data: str | Mapping[str, Sequence[object]], pools: Mapping[str, ValuePool] = _POOLS) -> ValuePool:
    """A pool of a data file: the name of one of `pools`, or a definition such as `{"whole": [2, 9]}`."""
    if isinstance(data, str):
        return pools[data]
    ((kind, arguments),) = data.items()
    return _KINDS[kind](*arguments)


def read_recipe(data: Json, pools: Mapping[str, ValuePool]) -> Recipe:
    """A recipe of a data file."""
    return Recipe(**{**data, "places": {name: read_pool(pool, pools) for name, pool in data["places"].items()}})


ARITHMETIC = "arithmetic"
"""The domain whose tools are never distractors, because they would allow a second plan for most requests."""
RIVALS: Mapping[str, frozenset[str]] = {
    "ratio": frozenset({"split_evenly"}),
    "product": frozenset({"scale"}),
    "add_percent": frozenset({"savings"}),
    "largest": frozenset({"top"}),
}
"""Tools that can replace a tool, and so are not offered as distractors with it."""


def offer(draft: ToolDraft, distractors: int) -> list[str]:
    """The names of the offered tools, shuffled. The same request always has the same tools; more distractors only add to them.

    Every second distractor is from a domain of the plan, where confusion is most likely.
    """
    rng = Seeds(0).derive("tools", draft.plan.canonical()).generator()
    needed = list(dict.fromkeys(call.tool for call in draft.plan.calls))
    shut = {*needed, *draft.without}.union(*(RIVALS.get(name, ()) for name in needed))
    open_ = [tool for tool in LIBRARY.values() if tool.name not in shut and tool.domain != ARITHMETIC]
    shuffled = [open_[int(place)] for place in rng.permutation(len(open_))]
    domains = {LIBRARY[name].domain for name in needed}
    near = [tool.name for tool in shuffled if tool.domain in domains]
    others = [tool.name for tool in shuffled]
    chosen: list[str] = []
    while len(chosen) < distractors:
        rest = near if near and len(chosen) % 2 == 0 else others
        chosen.append(rest[0])
        near, others = ([name for name in names if name != chosen[-1]] for names in (near, others))
    offered = needed + chosen
    return [offered[int(place)] for place in rng.permutation(len(offered))]


_POOLS |= {name: read_pool(pool) for name, pool in _SHARED["pools"].items()}
DOMAINS = ("time", "quantities", "data", "places", "people", "shop", "together")
Kinds = Mapping[str, Sequence[Recipe]]
"""The recipes of a skill, by subskill. The subskills are shapes of plans: `single`, `chain`, `join`."""


def _read_domain(name: str) -> dict[str, Kinds]:
    data = json.loads((files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    pools = _POOLS | {own: read_pool(pool) for own, pool in data.get("pools", {}).items()}
    return {
        skill: {subskill: [read_recipe(recipe, pools) for recipe in recipes] for subskill, recipes in kinds.items()}
        for skill, kinds in data["skills"].items()
    }


SKILLS: Mapping[str, Kinds] = {skill: kinds for name in DOMAINS for skill, kinds in _read_domain(name).items()}


def read_request(question: str) -> tuple[str, str, ToolDraft] | None:
    """The skill, subskill and draft of a request in one of the wordings; `None` if it is none, or is ambiguous."""
    drafts = [
        (skill, subskill, ToolDraft(question, plan, recipe.without))
        for skill, kinds in SKILLS.items()
        for subskill, recipes in kinds.items()
        for recipe in recipes
        if (plan := recipe.read(question)) is not None
    ]
    return drafts[0] if len({draft.plan.canonical() for _, _, draft in drafts}) == 1 else None
