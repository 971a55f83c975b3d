"""Number checks: accepted values, limits, and error messages."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.settings import check_integer, check_number, short_repr


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_a_whole_number_is_an_int(value: Any) -> None:
    actual = check_integer("n", value, minimum=2, maximum=2)
    assert actual == 2 and type(actual) is int  # noqa: PT018


@pytest.mark.parametrize("value", [2.0, True, np.bool_(True), "2", None, math.nan, 1, 4])
def test_what_is_no_whole_number_within_the_limits_is_refused(value: Any) -> None:
    with pytest.raises(EnvError, match=r"^n .*2 to 3; "):
        check_integer("n", value, minimum=2, maximum=3)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2)])
def test_a_finite_number_is_a_float(value: Any) -> None:
    actual = check_number("x", value, minimum=0)
    assert actual == 0.5 and type(actual) is float  # noqa: PT018


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 1j, -0.5, 10**400], ids=type)
def test_what_is_no_finite_number_within_the_limits_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"^x .* at least 0"):
        check_number("x", value, minimum=0, error=SettingsError)


def test_what_came_is_said_in_one_line() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert short_repr(Silent()) == "Silent"
    assert len(short_repr("a\n" * 1000)) == 120 and "\n" not in short_repr(np.zeros((3, 3)))  # noqa: PT018
    assert check_integer("n", -5, maximum=-1) == -5
    with pytest.raises(EnvError, match=r"^n .*-1; .*0$"):
        check_integer("n", 0, maximum=-1)
