"""Normalise the spelling of skill names."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 80
"""Maximum characters of a name."""
_AROUND = " \t.,;:!\"'`*_-"


def tidy(name: str) -> str:
    """Remove line breaks, and the quotes and full stops around a name.

    >>> tidy(' "Adding\\n fractions". ')
    'Adding fractions'
    """
    return " ".join(name.split()).strip(_AROUND)


def key(name: str) -> str:
    """A key that is equal for all spellings of a name.

    >>> key("Two-digit_sums.") == key("two digit  Sums")
    True
    """
    return " ".join(tidy(name).casefold().replace("-", " ").replace("_", " ").split())


def fault(name: str) -> str:
    """Describe the error of a name, in words that a model can act on; empty if it is valid."""
    if not key(name):
        return "a name is empty"
    if len(tidy(name)) > LONGEST:
        return (
            f"the name {tidy(name)[:30]!r}... has {len(tidy(name))} characters, expected at most {LONGEST}; shorten it"
        )
    return ""


def quote_names(names: Iterable[str], most: int = 10) -> str:
    """Quote the first of some names for a message."""
    given = list(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(repr(name[:LONGEST]) for name in given[:most]) + more
