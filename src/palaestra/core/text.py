"""Clean text from models, programs, servers, data files and user code.

Python strings can contain lone surrogates (`"\\ud800"`), which UTF-8 cannot encode, so files, databases, tokenizers and
HTTP clients reject them. JSON and program output may contain them. The records in `palaestra.core.records` pass their text
through `clean`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clean_text(text: str) -> str:
    """Replace lone surrogates with U+FFFD and join surrogate pairs. Other text is returned unchanged.

    >>> clean_text("a\\ud800b") == "a\\N{REPLACEMENT CHARACTER}b", clean_text("\\ud83d\\ude00")
    (True, '😀')
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(value: Any) -> Any:
    """Clean a string, or all strings in nested mappings, lists and tuples.

    Values that need no change are returned themselves, not as copies.
    """
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind in (int, float, bool, type(None)):
        return value
    if kind is dict or isinstance(value, Mapping):
        for key, entry in value.items():
            if clean(key) is not key or clean(entry) is not entry:
                return {clean(key): clean(entry) for key, entry in value.items()}
        return value
    if kind in (list, tuple):
        for item in value:
            if clean(item) is not item:
                return kind(map(clean, value))
        return value
    return clean_text(value) if isinstance(value, str) else value


def clean_fields(record: object, *names: str) -> None:
    """Clean fields of a frozen dataclass. Called in its `__post_init__`."""
    for name in names:
        value = getattr(record, name)
        if type(value) is str and value.isascii():
            continue
        cleaned = clean(value)
        if cleaned is not value:
            object.__setattr__(record, name, cleaned)
