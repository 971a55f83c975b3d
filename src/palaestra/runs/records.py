"""Records to JSON and back. Pydantic checks what crosses the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a type, built once: building is far slower than using it."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: Any) -> str:
    """A record as JSON text."""
    return _adapter(type(record)).dump_json(record).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """A record of `kind` from JSON text; raises `ValueError` where it does not fit."""
    record: T = _adapter(kind).validate_json(text)
    return record


def to_data(record: Any) -> Any:
    """A record as plain dictionaries, lists and values."""
    return _adapter(type(record)).dump_python(record, mode="json")
