"""Parameters of the tests of planted faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


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
