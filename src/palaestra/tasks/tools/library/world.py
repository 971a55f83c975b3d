"""Tools for an invented country: its towns, the people of a firm, and a shop. No model has memorised the answers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from palaestra.core.tables import load_table
from palaestra.tasks.tools.library.dates import WEEKDAYS, Weekday, parse_date, parse_time, show_time

_TABLE = load_table(__file__, "world")
Seat = Literal["first", "second"]


class Town(NamedTuple):
    """Kilometres to the east and north of the country's corner, people, metres above the sea, minutes of local time."""

    east: int
    north: int
    people: int
    height: int
    clock: int


TOWNS: dict[str, Town] = {name: Town(*row) for name, row in _TABLE["towns"].items()}


def distance(town: str, other: str) -> int:
    """The distance between two towns in km.

    Arguments:
        town: its name
        other: the name of the other
    """
    here, there = _town(town), _town(other)
    return round(math.hypot(here.east - there.east, here.north - there.north))


def population(town: str) -> int:
    """How many people live in a town.

    Arguments:
        town: its name
    """
    return _town(town).people


def elevation(town: str) -> int:
    """The height of a town above the sea in m.

    Arguments:
        town: its name
    """
    return _town(town).height


def nearest_town(town: str) -> str:
    """The town that is nearest to a town.

    Arguments:
        town: its name
    """
    here = _town(town)
    others = {n: math.hypot(here.east - t.east, here.north - t.north) for n, t in TOWNS.items() if n != town}
    return min(others, key=others.__getitem__)


def drive_minutes(kilometres: float, speed: float) -> int:
    """The whole minutes that a way takes at a speed.

    Arguments:
        kilometres: of the way
        speed: in km per hour
    """
    if speed < 1 or kilometres < 0:
        raise ValueError(f"drive_minutes: the way is 0 km or more and the speed at least 1; got {kilometres}, {speed}")
    return round(kilometres / speed * 60)


def ticket_price(kilometres: float, seat: Seat = "second") -> float:
    """The price of a train ticket in EUR.

    Arguments:
        kilometres: of the way
        seat: the class
    """
    return round((3.5 + 0.14 * kilometres) * (1.6 if seat == "first" else 1.0), 2)


def local_time(time: str, town: str, other: str) -> str:
    """The local time in another town when it is a time in a town.

    Arguments:
        time: HH:MM, in `town`
        town: where it is that time
        other: where the time is asked for
    """
    return show_time(parse_time(time) + _town(other).clock - _town(town).clock)


def _town(name: str) -> Town:
    if name not in TOWNS:
        raise ValueError(f"there is no town {name[:40]!r}; there are {', '.join(TOWNS)}")
    return TOWNS[name]


class Person(NamedTuple):
    """Home town, birthday, manager, and when the week's first shift starts."""

    town: str
    born: str
    manager: str
    shift: str


PEOPLE: dict[str, Person] = {name: Person(*row) for name, row in _TABLE["people"].items()}


def town_of(person: str) -> str:
    """The town where a person lives.

    Arguments:
        person: the first name
    """
    return _person(person).town


def manager_of(person: str) -> str:
    """The name of a person's manager.

    Arguments:
        person: the first name
    """
    return _person(person).manager


def birthday_of(person: str) -> str:
    """The date on which a person was born.

    Arguments:
        person: the first name
    """
    return _person(person).born


def age_on(person: str, date: str) -> int:
    """How many years old a person is on a date.

    Arguments:
        person: the first name
        date: YYYY-MM-DD
    """
    day, born = parse_date(date), parse_date(_person(person).born)
    if day < born:
        raise ValueError(f"age_on: {person} was born on {born}; got the earlier date {date}")
    return day.year - born.year - ((day.month, day.day) < (born.month, born.day))


def shift_start(person: str, day: Weekday) -> str:
    """The time when a person starts to work on a day of the week.

    Arguments:
        person: the first name
        day: of the week
    """
    return show_time(parse_time(_person(person).shift) + 25 * WEEKDAYS.index(day))


def _person(name: str) -> Person:
    if name not in PEOPLE:
        raise ValueError(f"there is nobody called {name[:40]!r}; there are {', '.join(PEOPLE)}")
    return PEOPLE[name]


class ShopItem(NamedTuple):
    """Price of a piece in EUR, pieces in store, kilograms of a piece, town where it is made."""

    price: float
    stock: int
    mass: float
    town: str


ITEMS: dict[str, ShopItem] = {name: ShopItem(*row) for name, row in _TABLE["items"].items()}
DEPOT = "Isembro"


def order_cost(item: str, quantity: int) -> float:
    """What some pieces of an item cost together in EUR.

    Arguments:
        item: its name
        quantity: how many pieces, 1 or more
    """
    if quantity < 1:
        raise ValueError(f"order_cost: at least 1 piece is ordered; got {quantity}")
    return round(_item(item).price * quantity, 2)


def stock_of(item: str) -> int:
    """How many pieces of an item are in store.

    Arguments:
        item: its name
    """
    return _item(item).stock


def weight_of(item: str) -> float:
    """The mass of one piece of an item in kg.

    Arguments:
        item: its name
    """
    return _item(item).mass


def made_in(item: str) -> str:
    """The town where an item is made.

    Arguments:
        item: its name
    """
    return _item(item).town


def delivery_days(item: str, town: str) -> int:
    """The days that the delivery of an item to a town takes.

    Arguments:
        item: its name
        town: the name of the town
    """
    waiting = 0 if _item(item).stock else 6
    return 1 + waiting + round(distance(DEPOT, town) / 60 + _item(item).mass / 15)


def _item(name: str) -> ShopItem:
    if name not in ITEMS:
        raise ValueError(f"there is no item {name[:40]!r}; there are {', '.join(ITEMS)}")
    return ITEMS[name]
