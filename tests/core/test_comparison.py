import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.comparison import compare, sign_flip_test
from palaestra.core.records import Attempt, Completion, Failure, FailureCause, Message, Problem, Score


def attempt(name: str, value: float | None, skill: str = "s", sample: int = 0) -> Attempt:
    outcome = Failure(FailureCause.ENGINE, "broke") if value is None else Score(value)
    return Attempt(Problem(name, (Message("user", "?"),), "1", skill), Completion("1"), outcome, sample)


def attempts(values: dict[str, list[float | None]]) -> list[Attempt]:
    return [attempt(name, value, name[0], k) for name, several in values.items() for k, value in enumerate(several)]


@given(st.lists(st.fractions(-1, 1, max_denominator=5), max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_p_value_is_the_share_of_sign_flips_that_are_as_large(changes: list[Fraction]) -> None:
    observed = abs(sum(changes))
    flips = [
        abs(sum(s * c for s, c in zip(signs, changes, strict=True))) for signs in product((1, -1), repeat=len(changes))
    ]
    assert sign_flip_test(changes) == pytest.approx(sum(f >= observed for f in flips) / len(flips))


@pytest.mark.parametrize(("gained", "lost"), [(8, 2), (0, 7), (30, 14), (5, 5), (1, 0)])
def test_for_single_answers_it_is_mcnemars_exact_test(gained: int, lost: int) -> None:
    count = gained + lost
    tail = sum(math.comb(count, k) for k in range(min(gained, lost) + 1)) / 2**count
    changes = [Fraction(1)] * gained + [Fraction(-1)] * lost + [Fraction(0)] * 11
    assert sign_flip_test(changes) == pytest.approx(min(1.0, 2 * tail))


def test_of_models_that_are_alike_one_comparison_in_twenty_is_significant_at_most() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        hard = rng.uniform(size=60)
        one, other = ([Fraction(int(k), 3) for k in rng.binomial(3, hard)] for _ in range(2))
        found.append(sign_flip_test([a - b for a, b in zip(one, other, strict=True)]) < 0.05)
    assert np.mean(found) <= 0.08


def test_failures_are_left_out_of_both_sides_and_named() -> None:
    first = attempts({"a1": [0], "a2": [1], "b1": [None], "b2": [1], "b3": [0]})
    second = attempts({"a1": [1], "a2": [1], "b1": [1], "b2": [None], "c1": [1]})
    found = compare(first, second)
    assert (found.gain.count, found.gain.points, found.better, found.worse) == (2, 50.0, 1, 0)
    assert found.unpaired == {"asked of the first only": 1, "asked of the second only": 1, "failed": 2}
    assert (found.first.correct, found.second.correct, found.first.failure_count) == (1, 2, 0)


def test_several_answers_are_compared_by_their_shares() -> None:
    first = attempts({"a1": [1, 0, 0, 0], "b1": [1, 1, 1, 1]})
    second = attempts({"a1": [1, 1, 0, 1], "b1": [1, 1, 1, None]})
    found = compare(first, second)
    assert found.gain.points == pytest.approx(100 * (0.5 + 0.0) / 2)
    assert [part.name for part in found.parts] == ["a", "b"]
    assert found.parts[0].gain.points == 50.0
    assert found.p_value == 1.0  # One change can always have had the other sign.
