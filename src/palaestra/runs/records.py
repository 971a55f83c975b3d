"""Convert records to JSON and back, validated by pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter of a type. It is cached because building one is slow."""
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_json(record: Any) -> str:
    """Convert a record to JSON text."""
    return _adapter(type(record)).dump_json(record).decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse a record of `kind` from JSON text. Raises `ValueError` if it is invalid."""
    record: T = _adapter(kind).validate_json(text)
    return record


def to_data(record: Any) -> Any:
    """Convert a record to dictionaries, lists and plain values."""
    return _adapter(type(record)).dump_python(record, mode="json")
