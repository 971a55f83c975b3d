"""What the tools share: how dates and times are read, and how numbers are rounded."""

from __future__ import annotations

import datetime
import re

MINUTES_A_DAY = 24 * 60


def neat(value: float) -> float:
    """Without the last digits, which are only the rounding of floating point."""
    return round(value, 9)


def parse_date(text: str) -> datetime.date:
    """Raises `ValueError` for anything but YYYY-MM-DD."""
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"a date of the calendar is written YYYY-MM-DD; got {text[:40]!r}")


def parse_time(text: str) -> int:
    """Minutes since midnight. Raises `ValueError` for anything but HH:MM."""
    match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    if match is None:
        raise ValueError(f"a time is written HH:MM, from 00:00 to 23:59; got {text[:40]!r}")
    return int(match[1]) * 60 + int(match[2])


def show_time(minutes: int) -> str:
    """HH:MM, of any number of minutes since any midnight."""
    return f"{minutes % MINUTES_A_DAY // 60:02d}:{minutes % 60:02d}"
