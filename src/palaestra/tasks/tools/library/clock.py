"""Tools for times of the day, written as 08:30."""

from __future__ import annotations

from palaestra.tasks.tools.library.values import MINUTES_A_DAY, parse_time, show_time


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
