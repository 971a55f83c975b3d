"""Planted faults: their registration, and the parameters of their tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest


def make_planter(faults: dict[Any, str]) -> Callable[[str], Callable[[Any], Any]]:
    """A decorator of classes with a fault. It adds them to `faults` with the check that must find them."""

    def plant(check_id: str) -> Callable[[Any], Any]:
        def register(kind: Any) -> Any:
            faults[kind] = check_id
            return kind

        return register

    return plant


def list_faults(faults: Mapping[Any, str]) -> list[Any]:
    """The first fault of each check. The others run in `make test-backends`, because all of them take minutes.

    Arguments:
        faults: the check that must find each fault.
    """
    firsts = {check_id: fault for fault, check_id in reversed(faults.items())}
    return [
        pytest.param(
            fault,
            id=getattr(fault, "__name__", str(fault)),
            marks=() if firsts[check_id] is fault else pytest.mark.backends,
        )
        for fault, check_id in faults.items()
    ]


def list_sound(*subjects: Any) -> list[Any]:
    """The first sound subject. The others run in `make test-backends`."""
    first, *others = (pytest.param(s, id=getattr(s, "__name__", str(s)).rpartition(":")[2]) for s in subjects)
    return [first, *(pytest.param(*other.values, id=other.id, marks=pytest.mark.backends) for other in others)]
