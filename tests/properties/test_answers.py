"""Properties of the comparison of arbitrary answers."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.math.base import AnswerKind, equal, extract

numbers = st.integers(-(10**9), 10**9)
prose = st.text(alphabet=st.characters(exclude_categories=("Nd", "Cs")), max_size=40).filter(
    lambda t: "answer" not in t.lower() and "-" not in t
)


@given(numbers, prose, prose)
def test_the_marked_answer_is_found_in_any_prose(number: int, before: str, after: str) -> None:
    answer = extract(f"{before} 7 Answer: {number} {after}", AnswerKind.NUMBER)
    assert answer is not None
    assert equal(answer.split("/")[0], str(number), AnswerKind.NUMBER)


@given(numbers, st.integers(1, 10**6))
def test_equality_of_numbers_is_equality_of_values(top: int, bottom: int) -> None:
    text = f"{top}/{bottom}"
    assert equal(text, text, AnswerKind.NUMBER)
    assert equal(text, str(top), AnswerKind.NUMBER) == (Fraction(top, bottom) == top)
    assert equal(str(top), text, AnswerKind.NUMBER) == equal(text, str(top), AnswerKind.NUMBER)


@given(st.integers(0, 10**12))
def test_thousands_separators_change_no_value(number: int) -> None:
    assert equal(f"{number:,}", str(number), AnswerKind.NUMBER)
    assert extract(f"Answer: {number:,}", AnswerKind.NUMBER) == f"{number:,}"


@given(st.text(max_size=200))
def test_no_text_makes_the_scorer_raise(text: str) -> None:
    for kind, expected in ((AnswerKind.NUMBER, "1"), (AnswerKind.CLOCK, "1:00"), (AnswerKind.LIST, "1, 2")):
        answer = extract(text, kind)
        assert answer is None or isinstance(equal(answer, expected, kind), bool)
