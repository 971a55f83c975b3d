import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds
from palaestra.engines.openai_endpoint import RetryPolicy, parse_retry_after


@pytest.mark.parametrize(
    ("headers", "wish"),
    [
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": email.utils.formatdate(1030.0, usegmt=True)}, 30.0),
        ({"retry-after": email.utils.formatdate(900.0, usegmt=True)}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({}, None),
    ],
)
def test_the_servers_wish_is_read_in_each_of_its_forms(headers: dict[str, str], wish: float | None) -> None:
    assert parse_retry_after(headers, now=1000.0) == wish


@given(st.integers(0, 2**62), st.integers(1, 200))
def test_wait_doubles_up_to_the_limit_with_seeded_jitter(seed: int, tried: int) -> None:
    retry_policy = RetryPolicy(first=0.5, longest=60.0, total=1e9, tries=1000)
    wait = retry_policy.wait(tried, 0.0, None, Seeds(seed))
    most = min(60.0, 0.5 * 2.0 ** (tried - 1))
    assert wait is not None
    assert 0.5 * most <= wait <= most
    assert wait == retry_policy.wait(tried, 0.0, None, Seeds(seed))


def test_patience_ends_by_tries_by_time_and_at_a_wish_beyond_it() -> None:
    retry_policy = RetryPolicy(first=1.0, total=10.0, tries=3)
    assert retry_policy.wait(2, 0.0, None, Seeds(0)) is not None
    assert retry_policy.wait(3, 0.0, None, Seeds(0)) is None
    assert retry_policy.wait(1, 9.9, None, Seeds(0)) is None
    assert retry_policy.wait(1, 0.0, 10.0, Seeds(0)) == 10.0
    assert retry_policy.wait(1, 0.0, 10.1, Seeds(0)) is None


def test_unreached_address_is_retried_for_a_short_time() -> None:
    retry_policy, elapsed, tried = RetryPolicy(), 0.0, 1
    while (wait := retry_policy.wait(tried, elapsed, None, Seeds(0), False)) is not None:
        elapsed, tried = elapsed + wait, tried + 1
    assert 9.5 <= elapsed <= 10.0
    assert RetryPolicy(total=3.0).wait(1, 3.1, None, Seeds(0), False) is None
    assert retry_policy.wait(5, 9.9, None, Seeds(0)) is not None


def test_patience_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SettingsError, match="'tries'"):
        RetryPolicy(tries=0)
