"""Tools for days of the calendar, written as 2024-03-05."""

from __future__ import annotations

import calendar
import datetime
from typing import Literal

from palaestra.tasks.tools.library.values import parse_date

Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
WEEKDAYS: tuple[Weekday, ...] = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def add_days(date: str, days: int) -> str:
    """The date some days later.

    Arguments:
        date: YYYY-MM-DD
        days: how many; below 0 for an earlier date
    """
    return (parse_date(date) + datetime.timedelta(days=days)).isoformat()


def add_months(date: str, months: int) -> str:
    """The same day some months later, or that month's last day if it is shorter.

    Arguments:
        date: YYYY-MM-DD
        months: how many; below 0 for an earlier date
    """
    day = parse_date(date)
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise ValueError(f"add_months: the year must lie between 1 and 9999; got {year}")
    return datetime.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1])).isoformat()


def days_between(start: str, end: str) -> int:
    """The number of days from one date to another.

    Arguments:
        start: YYYY-MM-DD
        end: YYYY-MM-DD
    """
    return (parse_date(end) - parse_date(start)).days


def weekday(date: str) -> str:
    """The day of the week of a date.

    Arguments:
        date: YYYY-MM-DD
    """
    return WEEKDAYS[parse_date(date).weekday()]


def next_weekday(date: str, day: Weekday) -> str:
    """The first date after a date that is a given day of the week.

    Arguments:
        date: YYYY-MM-DD
        day: of the week
    """
    start = parse_date(date)
    ahead = (WEEKDAYS.index(day) - start.weekday() - 1) % 7 + 1
    return (start + datetime.timedelta(days=ahead)).isoformat()


def month_end(date: str) -> str:
    """The last day of the month of a date.

    Arguments:
        date: YYYY-MM-DD
    """
    day = parse_date(date)
    return day.replace(day=calendar.monthrange(day.year, day.month)[1]).isoformat()
