"""When two names are the same name."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 80
"""Characters of a name; what is longer is a sentence."""
_AROUND = " \t.,;:!\"'`*_-"


def tidy(name: str) -> str:
    """A name on one line, without the quotes and full stops that models put around it.

    >>> tidy(' "Adding\\n fractions". ')
    'Adding fractions'
    """
    return " ".join(name.split()).strip(_AROUND)


def key(name: str) -> str:
    """What two spellings of one name share.

    >>> key("Two-digit_sums.") == key("two digit  Sums")
    True
    """
    return " ".join(tidy(name).casefold().replace("-", " ").replace("_", " ").split())


def fault(name: str) -> str:
    """What is wrong with a name, in words that a model can act on; empty where nothing is."""
    if not key(name):
        return "a name is empty"
    if len(tidy(name)) > LONGEST:
        return (
            f"the name {tidy(name)[:30]!r}... has {len(tidy(name))} characters, expected at most {LONGEST}; shorten it"
        )
    return ""


def quote_names(names: Iterable[str], most: int = 10) -> str:
    """The first of some names, for a message."""
    given = list(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(repr(name[:LONGEST]) for name in given[:most]) + more
