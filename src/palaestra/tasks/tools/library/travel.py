"""Tools for travel between the towns of an invented country: nobody can know the answers without asking."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from palaestra.tasks.tools.library.marks import alike
from palaestra.tasks.tools.library.values import parse_time, show_time

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


@alike("town", "other")
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
