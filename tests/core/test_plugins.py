"""An error about a user's code points at the user's file and line."""

from __future__ import annotations

import functools
import json

import pytest

from palaestra.core.registry import describe_location, describe_origin, is_user_file


def user_function(value: object) -> int:
    return int(value)  # type: ignore[call-overload]


def test_a_function_is_found_where_it_is_defined():
    line = user_function.__code__.co_firstlineno
    assert describe_location(user_function) == f" (test_plugins.py, line {line})"


def test_a_decorated_function_is_found_where_it_is_defined():
    @functools.wraps(user_function)
    def wrapped(value: object) -> int:
        return user_function(value)

    assert describe_location(wrapped) == describe_location(user_function)


@pytest.mark.parametrize("function", [len, json.loads, functools.partial(print), describe_location])
def test_nothing_is_said_of_functions_that_no_user_wrote(function):
    assert describe_location(function) == ""


def test_an_error_is_traced_to_the_users_deepest_line():
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads(user_function.__name__)  # The error itself is raised inside the standard library.
    assert describe_origin(raised.value) == f" (test_plugins.py, line {raised.traceback[0].lineno + 1})"


def test_the_cause_is_what_counts():
    def wrap() -> None:
        try:
            user_function("x")
        except ValueError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(RuntimeError) as raised:
        wrap()
    assert describe_origin(raised.value) == f" (test_plugins.py, line {user_function.__code__.co_firstlineno + 1})"


def test_an_error_without_a_users_line_says_nothing():
    assert describe_origin(ValueError("never raised")) == ""
    assert not is_user_file("<string>")
