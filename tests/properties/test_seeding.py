from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.seeding import Seeds

paths = st.lists(st.text(max_size=4), max_size=4).map(tuple)


@given(st.integers(0, 2**63), paths, paths)
def test_two_streams_are_the_same_only_if_their_names_are(
    root: int, first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    assert (Seeds(root).derive(*first).integer() == Seeds(root).derive(*second).integer()) == (first == second)
    assert 0 <= Seeds(root).derive(*first).integer() < 2**63
