"""What a request is drawn from: a plan with open places, ways to word it, and what may stand in the places.

Question, plan and answer come from the same draw, so they cannot disagree. Each wording says exactly what the plan
does and in which order; where two orders would give the same, it says which comes first.
"""

from __future__ import annotations

import ast
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palaestra.tasks.tools.library.dates import WEEKDAYS
from palaestra.tasks.tools.library.money import EUROS
from palaestra.tasks.tools.library.people import PEOPLE
from palaestra.tasks.tools.library.shop import ITEMS
from palaestra.tasks.tools.library.travel import TOWNS
from palaestra.tasks.tools.library.units import GRAMS, LITRES, METRES
from palaestra.tasks.tools.plans import Plan, read_plan

Rng = np.random.Generator
Drawer = Callable[[Rng], "ToolDraft"]


@dataclass(frozen=True, slots=True)
class ToolDraft:
    """One drawn request.

    Arguments:
        question: what is asked, without the tools and how to answer.
        plan: the calls that answer it.
        without: tools that may not be offered beside those of the plan, as they would be another way.
    """

    question: str
    plan: Plan
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ValuePool:
    """Where the value of a place comes from, and how it is said. Places of one pool get different values."""

    draw: Callable[[Rng], Any]
    say: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Recipe:
    """A kind of request.

    Arguments:
        plan: a program of calls, see `read_plan`; its free names are the places.
        wordings: templates over the places.
        places: the pool of each.
        rising: groups of places whose values come in rising order.
        accept: which answers make sense, for example a positive difference.
        without: see `ToolDraft`.
    """

    plan: str
    wordings: tuple[str, ...]
    places: Mapping[str, ValuePool]
    rising: tuple[tuple[str, ...], ...] = ()
    accept: Callable[[Any], bool] | None = None
    without: tuple[str, ...] = field(default=())

    @property
    def level(self) -> int:
        """How many calls it needs."""
        return sum(isinstance(node, ast.Call) for node in ast.walk(ast.parse(self.plan)))

    def draw(self, rng: Rng) -> ToolDraft:
        """A request, with values until they make sense."""
        while True:
            values = self._values(rng)
            plan = read_plan(self.plan, values)
            if self.accept is None or self.accept(plan.execute()[-1].value):
                break
        said = {name: self.places[name].say(value) for name, value in values.items()}
        wording = self.wordings[int(rng.integers(len(self.wordings)))]
        return ToolDraft(wording.format(**said), plan, self.without)

    def _values(self, rng: Rng) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, pool in self.places.items():
            others = [values[other] for other in values if self.places[other] is pool]
            values[name] = pool.draw(rng)
            while values[name] in others:
                values[name] = pool.draw(rng)
        for group in self.rising:
            values.update(zip(group, sorted(values[name] for name in group), strict=True))
        return values


Kinds = Mapping[str, Sequence[Recipe]]
"""Of a skill: subskill -> kinds of requests."""


def one_of(recipes: Sequence[Recipe]) -> Drawer:
    """Draws a request of one of the kinds, each as often."""

    def draw(rng: Rng) -> ToolDraft:
        return recipes[int(rng.integers(len(recipes)))].draw(rng)

    return draw


def among(values: Sequence[Any]) -> ValuePool:
    """One of some values."""
    known = tuple(values)
    return ValuePool(lambda rng: known[int(rng.integers(len(known)))])


def whole(low: int, high: int) -> ValuePool:
    """A whole number from `low` to `high`, both included."""
    return ValuePool(lambda rng: int(rng.integers(low, high + 1)))


def decimal(low: int, high: int, step: float) -> ValuePool:
    """A number from `low` to `high` in steps; said without needless zeros."""
    steps = round((high - low) / step)
    return ValuePool(lambda rng: _plain(round(low + step * int(rng.integers(steps + 1)), 6)))


def several(shortest: int, longest: int, low: int, high: int) -> ValuePool:
    """A list of different whole numbers, said as 3, 8 and 5."""

    def draw(rng: Rng) -> list[int]:
        count = int(rng.integers(shortest, longest + 1))
        return [int(one) for one in rng.choice(np.arange(low, high + 1), count, replace=False)]

    return ValuePool(draw, lambda numbers: f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}")


def words(shortest: int, longest: int) -> ValuePool:
    """A text of different words."""

    def draw(rng: Rng) -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(shortest, longest + 1)), replace=False))

    return ValuePool(draw)


def positive(value: Any) -> bool:
    return bool(value > 0)


def _date(rng: Rng) -> str:
    return (datetime.date(2019, 1, 1) + datetime.timedelta(days=int(rng.integers(4000)))).isoformat()


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


WORDS = (
    "amber", "basket", "candle", "copper", "dragon", "engine", "feather", "forest", "garden", "hammer", "island",
    "jacket", "kitten", "lantern", "marble", "meadow", "needle", "orange", "pepper", "piano", "pocket", "rabbit",
    "ribbon", "river", "saddle", "silver", "spider", "summer", "tiger", "tunnel", "velvet", "violet", "walnut",
    "window", "winter", "wizard", "yellow", "zebra", "cloud", "stone", "bread", "glass", "horse", "plate", "ship",
)  # fmt: skip
DATES = ValuePool(_date)
TIMES = ValuePool(lambda rng: f"{int(rng.integers(24)):02d}:{5 * int(rng.integers(12)):02d}")
DAYS_OF_WEEK = among(WEEKDAYS)
TOWN, PERSON, ITEM, WORD, CURRENCY = (among(tuple(known)) for known in (TOWNS, PEOPLE, ITEMS, WORDS, EUROS))
LENGTHS, MASSES, VOLUMES = (among(tuple(known)) for known in (METRES, GRAMS, LITRES))
DEGREES = among(("C", "F", "K"))
AMOUNT = decimal(20, 900, 0.5)
PERCENT = among((2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 20, 25, 30, 40))
QUANTITY = whole(2, 30)
LETTER = among(tuple("aeilnorst"))
