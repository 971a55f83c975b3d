"""Call code of other packages: with a time limit, and with its own state of the global random generators.

Some packages draw from the global generators of `random` and NumPy and seed them anew in every episode. `GlobalRandom`
gives each caller a state of its own and restores the former state afterwards, so that seeds hold in several threads.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from palaestra.core.errors import PalaestraError
from palaestra.core.registry import describe_error

T = TypeVar("T")
_LOCK = threading.RLock()
"""Held while the global generators have the state of one caller."""


class ForeignCallError(PalaestraError):
    """Code of another package raised an error, or did not return in time."""


class ForeignTimeoutError(ForeignCallError):
    """Code of another package did not return in time. It may still run."""


class GlobalRandom:
    """The state of the global generators of `random` and `numpy.random` for one caller.

    >>> own = GlobalRandom(0)
    >>> with own.active():
    ...     first = random.random()
    >>> with GlobalRandom(0).active():
    ...     random.random() == first
    True
    """

    def __init__(self, seed: int) -> None:
        numpy_state = np.random.RandomState(seed % 2**32).get_state()
        self._states: tuple[Any, Any] = random.Random(seed).getstate(), numpy_state

    @contextmanager
    def active(self) -> Iterator[None]:
        """Put this state in place. Other threads wait until it is saved again."""
        with _LOCK:
            former = _get_states()
            _set_states(self._states)
            try:
                yield
            finally:
                self._states = _get_states()
                _set_states(former)


def call_foreign(name: str, function: Callable[..., T], *arguments: object, seconds: float) -> T:
    """Call a function of another package in a thread and wait for its result.

    A call that exceeds its time keeps its thread, which ends with the process. Python cannot stop it.

    Arguments:
        name: what is called, for the error message.
        seconds: maximum time of the call.

    Raises:
        ForeignCallError: the function raised an exception.
        ForeignTimeoutError: it did not return in time.
        PalaestraError: the function raised one.

    >>> call_foreign("int", int, "7", seconds=1)
    7
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:  # Also SystemExit: it must not end the process.
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name=f"foreign-{name}")
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    if not errors:
        raise ForeignTimeoutError(f"{name} did not return within {seconds:g} seconds")
    if isinstance(errors[0], PalaestraError):
        raise errors[0]
    raise ForeignCallError(f"{name} raised {describe_error(errors[0])}") from errors[0]


def _get_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
