"""Tools for an invented country: its towns, the people of a firm, and a shop. No model has memorised the answers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from palaestra.tasks.tools.library.dates import WEEKDAYS, Weekday, parse_date, parse_time, show_time

Seat = Literal["first", "second"]


class Town(NamedTuple):
    """Kilometres to the east and north of the country's corner, people, metres above the sea, minutes of local time."""

    east: int
    north: int
    people: int
    height: int
    clock: int


TOWNS: dict[str, Town] = {
    "Arvik": Town(34, 412, 18250, 12, -60), "Belmora": Town(127, 388, 64310, 145, -60),
    "Castrel": Town(211, 455, 9870, 610, 0), "Dunholm": Town(302, 431, 120440, 88, 0),
    "Eskary": Town(415, 470, 33905, 254, 60), "Farlow": Town(498, 402, 7460, 932, 60),
    "Grenna": Town(61, 301, 41280, 31, -60), "Halver": Town(158, 276, 15730, 377, -60),
    "Isembro": Town(243, 322, 230150, 64, 0), "Jorvale": Town(331, 289, 27640, 503, 0),
    "Kestrin": Town(437, 318, 88015, 171, 60), "Lunde": Town(522, 265, 12395, 720, 90),
    "Marwick": Town(19, 198, 53620, 8, -60), "Norrby": Town(142, 171, 6185, 418, -60),
    "Oster Bay": Town(229, 208, 97330, 3, 0), "Pellin": Town(318, 153, 22470, 266, 0),
    "Quenby": Town(409, 187, 14905, 581, 60), "Rothmoor": Town(507, 142, 36780, 839, 90),
    "Selwick": Town(88, 64, 71245, 19, -60), "Tarn Hill": Town(171, 37, 4310, 1104, 0),
    "Ulfsted": Town(262, 81, 159900, 52, 0), "Vesper": Town(354, 46, 29515, 118, 60),
    "Wendel": Town(446, 73, 48860, 205, 90), "Yarrow": Town(534, 22, 10640, 476, 90),
}  # fmt: skip


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


PEOPLE: dict[str, Person] = {
    "Aino": Person("Grenna", "1979-02-11", "Aino", "08:00"), "Boris": Person("Dunholm", "1984-07-30", "Aino", "07:15"),
    "Chiara": Person("Vesper", "1990-11-03", "Aino", "09:10"), "Deniz": Person("Halver", "1988-05-19", "Aino", "06:45"),
    "Emeka": Person("Kestrin", "1992-09-24", "Boris", "10:20"), "Freya": Person("Arvik", "1995-01-08", "Boris", "08:35"),
    "Goran": Person("Isembro", "1976-12-27", "Boris", "07:50"), "Hana": Person("Selwick", "1999-04-14", "Boris", "11:05"),
    "Idris": Person("Lunde", "1983-10-02", "Boris", "06:30"), "Jonna": Person("Belmora", "1991-06-21", "Chiara", "09:45"),
    "Karim": Person("Pellin", "1987-03-16", "Chiara", "08:10"), "Leila": Person("Wendel", "1996-08-05", "Chiara", "12:00"),
    "Mateo": Person("Quenby", "1981-01-29", "Chiara", "07:25"), "Nadia": Person("Farlow", "1993-12-12", "Chiara", "10:40"),
    "Oskar": Person("Ulfsted", "1978-09-09", "Deniz", "05:55"), "Priya": Person("Eskary", "1998-02-23", "Deniz", "13:15"),
    "Quinn": Person("Norrby", "1985-11-18", "Deniz", "08:50"), "Rosa": Person("Yarrow", "1989-07-07", "Deniz", "09:25"),
    "Sami": Person("Castrel", "1994-05-31", "Deniz", "06:10"), "Tilda": Person("Rothmoor", "1982-04-04", "Goran", "14:05"),
    "Umar": Person("Jorvale", "1997-10-26", "Goran", "07:35"), "Vera": Person("Marwick", "1980-08-17", "Goran", "10:00"),
    "Wim": Person("Selwick", "1986-06-13", "Rosa", "11:30"), "Yuki": Person("Isembro", "2000-03-22", "Rosa", "08:25"),
}  # fmt: skip


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


ITEMS: dict[str, ShopItem] = {
    "lamp": ShopItem(34.5, 41, 2.4, "Dunholm"), "chair": ShopItem(59.9, 18, 6.2, "Halver"), "desk": ShopItem(189.0, 7, 31.5, "Halver"),
    "shelf": ShopItem(74.25, 23, 17.8, "Norrby"), "kettle": ShopItem(27.8, 66, 1.3, "Pellin"), "clock": ShopItem(19.95, 0, 0.6, "Eskary"),
    "mirror": ShopItem(48.6, 12, 4.9, "Vesper"), "carpet": ShopItem(112.4, 9, 12.7, "Quenby"), "vase": ShopItem(16.3, 87, 1.1, "Grenna"),
    "blanket": ShopItem(39.75, 34, 1.8, "Arvik"), "pillow": ShopItem(14.2, 120, 0.7, "Arvik"), "bench": ShopItem(132.0, 5, 22.3, "Norrby"),
    "stove": ShopItem(415.5, 3, 58.0, "Isembro"), "toaster": ShopItem(31.1, 0, 1.6, "Isembro"), "fan": ShopItem(44.85, 29, 3.2, "Kestrin"),
    "heater": ShopItem(86.7, 14, 7.5, "Kestrin"), "bicycle": ShopItem(529.0, 6, 14.1, "Ulfsted"), "helmet": ShopItem(41.4, 52, 0.4, "Ulfsted"),
    "tent": ShopItem(158.2, 11, 3.9, "Lunde"), "rucksack": ShopItem(92.6, 0, 1.9, "Lunde"), "compass": ShopItem(23.15, 73, 0.2, "Farlow"),
    "guitar": ShopItem(247.3, 4, 2.8, "Selwick"), "drum": ShopItem(121.9, 8, 9.4, "Selwick"), "flute": ShopItem(68.05, 16, 0.5, "Yarrow"),
}  # fmt: skip
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
