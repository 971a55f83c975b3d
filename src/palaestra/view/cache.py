"""An LRU cache invalidated by file changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from palaestra.view.runs import RunCard, file_state

T = TypeVar("T")
MAX_VALUES = 64

_values: OrderedDict[Hashable, tuple[tuple[int, ...], Any]] = OrderedDict()
_lock = threading.Lock()


def recall(card: RunCard, key: Hashable, read: Callable[[], T]) -> T:
    """Return what `read` returned the last time for this run and key, or call it if the run has changed since."""
    state, name = file_state(card.folder), (card.folder, key)
    with _lock:
        if name in _values and _values[name][0] == state:
            _values.move_to_end(name)
            value: T = _values[name][1]
            return value
    value = read()
    with _lock:
        _values[name] = state, value
        _values.move_to_end(name)
        while len(_values) > MAX_VALUES:
            _values.popitem(last=False)
    return value
