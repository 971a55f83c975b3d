"""Tools for the people of an invented firm."""

from __future__ import annotations

from typing import NamedTuple

from palaestra.tasks.tools.library.dates import WEEKDAYS, Weekday
from palaestra.tasks.tools.library.values import parse_date, parse_time, show_time


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
