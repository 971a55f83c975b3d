"""Tools for dates, written as 2024-03-05, and times of day, written as 08:30."""

from __future__ import annotations

import calendar
import datetime
import re
from typing import Literal

Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MINUTES_A_DAY = 24 * 60
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


def add_minutes(time: str, minutes: int) -> str:
    """The time of day some minutes later.

    Arguments:
        time: HH:MM
        minutes: how many; below 0 for an earlier time
    """
    return show_time(parse_time(time) + minutes)


def minutes_between(start: str, end: str) -> int:
    """The minutes from one time of day to the next moment when it is another.

    Arguments:
        start: HH:MM
        end: HH:MM
    """
    return (parse_time(end) - parse_time(start)) % MINUTES_A_DAY


def parse_date(text: str) -> datetime.date:
    """A date in the form YYYY-MM-DD; raises `ValueError` for other texts."""
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"a date of the calendar is written YYYY-MM-DD; got {text[:40]!r}")


def parse_time(text: str) -> int:
    """The minutes since midnight of a time in the form HH:MM; raises `ValueError` for other texts."""
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    if match is None:
        raise ValueError(f"a time is written HH:MM, from 00:00 to 23:59; got {text[:40]!r}")
    return int(match[1]) * 60 + int(match[2])


def show_time(minutes: int) -> str:
    """The time of day in the form HH:MM, some minutes after a midnight."""
    return f"{minutes % MINUTES_A_DAY // 60:02d}:{minutes % 60:02d}"
