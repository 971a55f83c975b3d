import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palaestra.tasks.vision.answers import equal, extract, judge, normalise

COLOURS, NUMBERS, YES_NO = ("red", "blue", "light blue", "grey"), tuple(str(n) for n in range(21)), ("yes", "no")
LETTERS = ("A", "B")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  The Dogs. ", "dogs"), ("Three", "3"), ("1,200", "1200"), ("light-blue", "light blue"), ("3.0", "3"), ("007", "7"),
        ("YES!", "yes"), ("It’s", "it's"), ("a", "a"), ("", ""), ("...", ""), ("Gray color", "grey colour"), ("-2", "-2"),
        ("none", "0"), ("ﬁve", "5"), ("an apple", "apple"), ("1.50", "1.5"),
    ],
)  # fmt: skip
def test_normal_form(text: str, form: str) -> None:
    assert normalise(text) == form


@pytest.mark.parametrize(
    ("response", "choices", "found"),
    [
        ("Answer: red", COLOURS, "red"), ("red: 3. blue: 1. Answer: red", COLOURS, "red"), ("It is a red ball.", COLOURS, "red"),
        ("It is light blue.", COLOURS, "light blue"), ("red or blue", COLOURS, None), ("reddish", COLOURS, None), ("", COLOURS, None),
        ("Answer: red. Answer: blue", COLOURS, "blue"), ("The answer is gray", COLOURS, "grey"), ("blue and light blue", COLOURS, None),
        ("There are three.", NUMBERS, "3"), ("2+3=5. Answer: 5", NUMBERS, "5"), ("between 2 and 3", NUMBERS, None), ("12", NUMBERS, "12"),
        ("1,2", NUMBERS, None), ("Answer: 2.5", NUMBERS, None), ("Yes, there is no doubt.", YES_NO, "yes"), ("No, yes is wrong.", YES_NO, "no"),
        ("there is no circle", YES_NO, "no"), ("maybe yes, maybe no", YES_NO, None), ("True", YES_NO, "yes"), ("I do not know", YES_NO, None),
        ("A", LETTERS, "a"), ("a", LETTERS, "a"), ("(B)", LETTERS, "b"), ("A. the red car", LETTERS, "a"), ("**A**: a car", LETTERS, "a"),
        ("The answer is B", LETTERS, "b"), ("Option A is right", LETTERS, "a"), ("A red car", LETTERS, None), ("It is B.", LETTERS, "b"),
        ("A or B", LETTERS, None), ("Both", LETTERS, None), ("Answer: A", LETTERS, "a"), ("I pick A, a car", LETTERS, "a"), ("B. a red car", ("B", "C"), "b"), ("Answer: circles", ("circle", "square"), "circle"),
        ("the two dogs", (), "2 dogs"),
    ],
)  # fmt: skip
def test_the_answer_is_found_where_it_is_given_once(response: str, choices: tuple[str, ...], found: str | None) -> None:
    assert extract(response, choices) == found


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("dog", "Dogs", True), ("the dog", "dog", True), ("buses", "bus", True), ("berries", "berry", True), ("boxes", "box", True),
        ("horses", "horse", True), ("benches", "bench", True), ("glass", "glasses", False), ("short", "shorts", False), ("gras", "grass", False),
        ("bu", "bus", False), ("pant", "pants", False), ("three", "3", True), ("1,200", "1200", True), ("12", "1,2", False),
        ("red car", "red cars", True), ("red cars", "blue cars", False), ("", "", False), ("left", "right", False),
        ("tennis", "tenni", False), ("true", "yes", True), ("gray", "grey", True), ("ski", "skis", False),
    ],
)  # fmt: skip
def test_equality_of_open_answers(a: str, b: str, same: bool) -> None:
    assert equal(a, b) is same
    assert equal(b, a) is same


def test_what_is_not_said_is_wrong_and_says_so() -> None:
    assert judge("I cannot see it", "red", COLOURS) == (False, "")
    assert judge("Answer: red", "red", COLOURS) == (True, "red")
    assert judge("The answer is correct.", "yes", YES_NO)[0]  # "correct" answers a statement; it is no colour:
    assert judge("The answer is correct.", "red", COLOURS) == (False, "")
    assert judge("A", "A", LETTERS) == (True, "a")


def test_numbers_are_compared_by_all_their_digits() -> None:
    assert [normalise(text) for text in ("1000000", "1,234,567", "-0.0", "-007.50", "0.1234567890")] == [
        "1000000", "1234567", "0", "-7.5", "0.123456789",
    ]  # fmt: skip
    assert not equal("1234567", "1234568")
    assert equal("3.0", "three")


@example("1000000")
@given(st.text(max_size=40))
def test_the_normal_form_is_its_own_and_equality_is_reflexive(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert equal(text, text) == bool(normalise(text))


@given(st.sampled_from(COLOURS), st.sampled_from(["{}", "The {}.", "Answer: {}", "{}!", " {} ", "It is {}.", "**{}**"]))
def test_formatting_changes_no_verdict(colour: str, frame: str) -> None:
    assert judge(frame.format(colour), colour, COLOURS)[0]
    assert judge(frame.format(colour.upper()), colour, COLOURS)[0]
    for other in set(COLOURS) - {colour}:
        assert not judge(frame.format(colour), other, COLOURS)[0]


@given(st.text(max_size=60), st.sampled_from([(), COLOURS, NUMBERS, YES_NO]))
def test_no_response_breaks_the_scorer(response: str, choices: tuple[str, ...]) -> None:
    found = extract(response, choices)
    assert found is None or not choices or found in {normalise(c) for c in choices}
