"""Calls of other packages: time limits and the global random generators."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from palaestra.core.errors import EnvError
from palaestra.core.foreign import ForeignCallError, GlobalRandom, call_foreign


def test_an_error_names_its_call_and_our_own_errors_pass() -> None:
    with pytest.raises(ForeignCallError, match=r"step of Game .*ZeroDivisionError"):
        call_foreign("step of Game", lambda: 1 / 0, seconds=5)
    with pytest.raises(EnvError, match="own"):
        call_foreign("step of Game", _raise_own, seconds=5)
    with pytest.raises(ForeignCallError, match="raised SystemExit"):
        call_foreign("step of Game", exit, seconds=5)


def _raise_own() -> None:
    raise EnvError("own")


def test_a_call_that_blocks_is_left_after_its_time() -> None:
    release = threading.Event()
    with pytest.raises(ForeignCallError, match=r"reset of Game .*0\.05 seconds"):
        call_foreign("reset of Game", release.wait, seconds=0.05)
    release.set()


def test_each_caller_has_its_own_random_state() -> None:
    def draw() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002

    def play(state: GlobalRandom) -> tuple[float, float]:
        with state.active():
            return draw()

    outside = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    alone = GlobalRandom(1)
    expected = [play(alone), play(alone)]
    first, second = GlobalRandom(1), GlobalRandom(2)
    mixed = [play(first), play(second), play(first)]
    assert [mixed[0], mixed[2]] == expected
    assert mixed[1] not in expected
    assert (random.getstate(), np.random.get_state()[1].tolist()) == outside  # noqa: NPY002
