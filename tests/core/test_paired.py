import numpy as np
import pytest

from palaestra.core.paired import holm, t_test
from palaestra.core.statistics import mean_interval


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.70620), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_the_p_value_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    # Values around a mean so that t is the quantile of 97.5 %.
    spread = np.array([-1.0, 1.0] + [0.0] * (freedom - 1))
    error = np.sqrt(2 / freedom / (freedom + 1))
    assert t_test((spread + quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)
    assert t_test((spread - quantile * error).tolist()) == pytest.approx(0.05, abs=1e-5)


def test_it_agrees_with_the_interval_and_is_right_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    rejected = 0
    for _ in range(4000):
        values = generator.normal(0.0, 2.0, size=5).tolist()
        p_value, mean = t_test(values), mean_interval(values)
        assert p_value is not None
        assert (p_value < 0.05) == (mean.low > 0 or mean.high < 0)
        rejected += p_value < 0.05
    assert 0.04 < rejected / 4000 < 0.06


def test_several_tests_are_adjusted_in_their_order() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.01, 0.02, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
