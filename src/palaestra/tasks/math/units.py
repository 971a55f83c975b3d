"""Units of measurement, with their sizes."""

from __future__ import annotations

import re

from palaestra.core.tables import load_table

_TABLE = load_table(__file__, "units")
_UNITS: dict[str, dict[str, int]] = _TABLE["units"]


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
