import random

import numpy as np

from palaestra.core.seeding import Seeds


def test_the_same_name_gives_the_same_stream_in_any_order() -> None:
    first = Seeds(3).derive("a").generator().random(5)
    Seeds(3).derive("b").generator().random(100)
    assert np.array_equal(first, Seeds(3).derive("a").generator().random(5))


def test_names_roots_and_levels_give_different_streams() -> None:
    streams = [
        Seeds(3), Seeds(4), Seeds(3).derive("a"), Seeds(3).derive("a", "b"), Seeds(3).derive("ab"),
        Seeds(3).derive("a/b"), Seeds(3).derive("a").derive("c"), Seeds(3).derive(1), Seeds(3).derive(11),
    ]  # fmt: skip
    assert len({seeds.integer() for seeds in streams}) == len(streams)


def test_deriving_twice_is_deriving_once_with_both_names() -> None:
    assert Seeds(0).derive("a", 1) == Seeds(0).derive("a").derive("1")


def test_global_generators_are_left_alone() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002  (that is the point)
    Seeds(5).derive("x").generator().normal(size=10)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
