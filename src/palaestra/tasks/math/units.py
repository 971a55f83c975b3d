"""Units of measurement, with their sizes."""

from __future__ import annotations

import re

_UNITS = {
    "length": {"millimet": 1, "mm": 1, "centimet": 10, "cm": 10, "decimet": 100, "met": 1000, "m": 1000,
               "kilomet": 10**6, "km": 10**6},
    "mass": {"milligram": 1, "mg": 1, "gram": 1000, "g": 1000, "kilogram": 10**6, "kg": 10**6, "kilo": 10**6,
             "tonne": 10**9},
    "time": {"second": 1, "sec": 1, "minute": 60, "min": 60, "hour": 3600, "h": 3600, "day": 86400, "week": 604800},
    "volume": {"millilit": 1, "ml": 1, "centilit": 10, "cl": 10, "lit": 1000, "l": 1000},
    "money": {"cent": 1, "dollar": 100, "euro": 100},
}  # fmt: skip


def find_unit(word: str) -> tuple[str, int] | None:
    """The dimension and the size of a unit of measurement; `None` for another word.

    >>> find_unit("centimeters"), find_unit("cm"), find_unit("apples")
    (('length', 10), ('length', 10), None)
    """
    stem = re.sub(r"(?<=met|lit)(?:re|er)s?$", "", word.lower().rstrip("."))
    for name, sizes in _UNITS.items():
        for candidate in (stem, stem.removesuffix("s")):
            if candidate in sizes:
                return name, sizes[candidate]
    return None
