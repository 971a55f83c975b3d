from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from timing import measure

from palaestra.tasks.vision.answers import equal_short, extract_short, is_plural, judge, normalize_short

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
def test_normalize(text: str, form: str) -> None:
    assert normalize_short(text) == form


@pytest.mark.parametrize(
    ("response", "choices", "answer"),
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
def test_extract(response: str, choices: tuple[str, ...], answer: str | None) -> None:
    assert extract_short(response, choices) == answer


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("dog", "Dogs", True), ("the dog", "dog", True), ("buses", "bus", True), ("berries", "berry", True), ("boxes", "box", True),
        ("horses", "horse", True), ("benches", "bench", True), ("glass", "glasses", False), ("short", "shorts", False), ("gras", "grass", False),
        ("pant", "pants", False), ("three", "3", True), ("1,200", "1200", True), ("12", "1,2", False),
        ("red car", "red cars", True), ("red cars", "blue cars", False), ("", "", False), ("left", "right", False),
        ("true", "yes", True), ("gray", "grey", True), ("ski", "skis", False),
    ],
)  # fmt: skip
def test_equality_of_open_answers(a: str, b: str, same: bool) -> None:
    assert equal_short(a, b) is same
    assert equal_short(b, a) is same


def test_judge_without_an_answer() -> None:
    assert judge("I cannot see it", "red", COLOURS) == (False, "")
    assert judge("Answer: red", "red", COLOURS) == (True, "red")
    assert judge("The answer is correct.", "yes", YES_NO)[0]  # "correct" answers a statement; it is no colour:
    assert judge("The answer is correct.", "red", COLOURS) == (False, "")
    assert judge("A", "A", LETTERS) == (True, "a")


def test_numbers_are_compared_by_all_their_digits() -> None:
    assert [normalize_short(text) for text in ("1000000", "1,234,567", "-0.0", "-007.50", "0.1234567890")] == [
        "1000000",
        "1234567",
        "0",
        "-7.5",
        "0.123456789",
    ]
    assert not equal_short("1234567", "1234568")
    assert equal_short("3.0", "three")


@example("1000000")
@given(st.text(max_size=40))
def test_normalize_is_idempotent_and_equal_reflexive(text: str) -> None:
    assert normalize_short(normalize_short(text)) == normalize_short(text)
    assert equal_short(text, text) == bool(normalize_short(text))


@given(st.sampled_from(COLOURS), st.sampled_from(["{}", "The {}.", "Answer: {}", "{}!", " {} ", "It is {}.", "**{}**"]))
def test_formatting_changes_no_verdict(colour: str, frame: str) -> None:
    assert judge(frame.format(colour), colour, COLOURS)[0]
    assert judge(frame.format(colour.upper()), colour, COLOURS)[0]
    for other in set(COLOURS) - {colour}:
        assert not judge(frame.format(colour), other, COLOURS)[0]


@given(st.text(max_size=60), st.sampled_from([(), COLOURS, NUMBERS, YES_NO]))
def test_no_response_breaks_the_scorer(response: str, choices: tuple[str, ...]) -> None:
    answer = extract_short(response, choices)
    assert answer is None or not choices or answer in {normalize_short(c) for c in choices}


STATEMENTS = {
    COLOURS: [
        ("It's not red.", None), ("Not red.", None), ("It is not red but blue.", "blue"), ("It isn't red, it's blue", "blue"),
        ("It is no longer red", None), ("no longer red; it is grey", "grey"), ("blue rather than red", "blue"),
        ("Rather than red, it is blue.", "blue"), ("blue, not red", "blue"), ("blue (not red)", "blue"), ("blue instead of red", "blue"),
        ("neither red nor blue", None), ("I don't think it's red", None), ("It is not, in my view, red.", None),
        ("No, it's red.", "red"), ("not only red", "red"), ("It's not just red, it's blue too", None), ("without a doubt red", "red"),
        ("There is no doubt that it is red", "red"), ("nothing but red", "red"), ("anything but red", None), ("far from red", None),
        ("It's not red or blue; it is grey", "grey"), ("never red", None), ("non-red", None), ("It cannot be red.", None),
        ("It can't be red, so it's blue", "blue"), ("It isn't red and it's blue", "blue"), ("red is not the answer", None),
        ("Red is wrong.", None), ("Is it red? It is blue.", "blue"), ("Is it red? It is not red.", None), ("It isnt red", None),
        ("It is not a red square; it is a red circle", "red"), ("The answer is not red.", None), ("The answer isn't red", None),
        ("Answer: not red", None), ("It's not red \u2014 it's blue", "blue"), ("blue, as opposed to red", "blue"),
        ("It's light blue, not blue", "light blue"), ("I'm not sure, but it is red", "red"), ("everything except red", None),
        ("It doesn\u2019t look red", None), ("The red circle is not large", "red"),
    ],
    tuple(str(n) for n in range(31)): [
        ("There are twenty-five.", "25"), ("twenty five", "25"), ("twenty-fifth", None), ("the third", None), ("3rd", None),
        ("The 21st", None), ("not 3 but 4", "4"), ("There aren't five.", None), ("one or two", None), ("a dozen", "12"),
        ("half a dozen", "6"), ("thirty", "30"), ("seventeen shapes", "17"), ("no one", None), ("twenty, five", None),
    ],
    YES_NO: [
        ("It's not true.", "no"), ("This is not correct.", "no"), ("The statement isn't true", "no"), ("It is not false", "yes"),
        ("true, not false", "yes"), ("false rather than true", "no"), ("No longer true", "no"), ("It is untrue", "no"),
        ("yes or no", None), ("yes and no", None), ("Is it true? No.", "no"), ("True or false: false", "no"),
        ("neither true nor false", None), ("There is no doubt: yes", "yes"), ("Yes, it is not red", "yes"), ("No, it isn't.", "no"),
    ],
    LETTERS: [
        ("It's not A.", None), ("Not A but B", "b"), ("A is not right; B is.", "b"), ("It's B, not A", "b"), ("AB", None),
        ("It isn't B", None), ("B is wrong", None), ("It is either A or B", None),
    ],
    ("circle", "wolf", "bus", "house", "tomato"): [
        ("wolves", "wolf"), ("two houses", "house"), ("buses", "bus"), ("no circles", None), ("There are tomatoes.", "tomato"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("response", "choices", "answer"),
    [(text, choices, answer) for choices, rows in STATEMENTS.items() for text, answer in rows],
)
def test_negated_or_questioned_answers(response: str, choices: tuple[str, ...], answer: str | None) -> None:
    assert extract_short(response, choices) == answer


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("twenty-five", "25"), ("nineteen ninety", "19 90"), ("one two three", "1 2 3"), ("second", "second"),
        ("five and six", "5 and 6"), ("twenty twenty", "20 20"), ("ten five", "10 5"), ("ninety-nine", "99"),
        ("the fifth", "fifth"), ("twenty-fifth", "twentyfifth"), ("2nd", "2nd"), ("zero", "0"), ("a dozen eggs", "12 eggs"),
        ("forty-two and a half", "42 and half"), ("one hundred and five", "105"), ("two thousand twenty-five", "2025"),
        ("six hundred thousand", "600000"), ("one thousand and one", "1001"), ("hundreds", "hundreds"),
    ],
)  # fmt: skip
def test_number_words_and_ordinals(text: str, form: str) -> None:
    assert normalize_short(text) == form


_NUMBER_WORDS = st.lists(
    st.sampled_from(["zero", "one", "two", "five", "ten", "eleven", "nineteen", "twenty", "ninety", "hundred", "thousand", "million", "and", "a", "dozen", "half", "point", "second", "fifth", "none", "3", "40", ",", "."]),
    max_size=12,
)  # fmt: skip


@given(_NUMBER_WORDS)
def test_number_words_have_a_stable_form(words: list[str]) -> None:
    form = normalize_short(" ".join(words))
    assert normalize_short(form) == form


@given(st.sampled_from(COLOURS), st.sampled_from(["It's not {}.", "It isn't {}", "{} is not right", "Not {}!", "Is it {}?", "I do not see any {} here", "It's no longer {}", "It has never been {}."]))  # fmt: skip
def test_negations_affirm_nothing(colour: str, frame: str) -> None:
    for other in COLOURS:
        assert not judge(frame.format(colour), other, COLOURS)[0]


@given(st.permutations(COLOURS), st.sampled_from(["It's not {}, it's {}.", "not {} but {}", "{1} rather than {0}", "It isn't {}; it is {}", "{1}, not {0}", "{1} instead of {0}"]))  # fmt: skip
def test_answer_beside_a_negated_one(colours: list[str], frame: str) -> None:
    assert extract_short(frame.format(*colours), COLOURS) == colours[1]


def test_long_responses_are_read_after_the_mark() -> None:
    assert extract_short("so " * 10**6 + "Answer: red", COLOURS) == "red"
    for long in (
        "red " * 10**6,
        "not, " * 10**5,
        "Answer: " * 10**5 + "red" * 10**5,
        "thousand " * 10**5,
        "9" * 10**6,
        "\ud800" * 10**5,
    ):
        for choices in ((), COLOURS, YES_NO, LETTERS):
            assert extract_short(long, choices) is None
            assert measure(partial(extract_short, long, choices)) < 1


def test_normalize_agrees_with_the_vqa_evaluation() -> None:
    # Antol et al. (2015): articles go, "none" and the words up to ten are digits, commas in numbers go, case does not matter.
    words = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert [normalize_short(word) for word in words] == [str(n) for n in range(11)]
    assert normalize_short("A man, the dog; an owl?") == "man dog owl"
    assert normalize_short("2,000") == "2000"


PAIRS = """
house houses, movie movies, tomato tomatoes, potato potatoes, wolf wolves, knife knives, leaf leaves, shelf shelves,
bookshelf bookshelves, bus buses, glove gloves, dish dishes, bench benches, box boxes, fox foxes, berry berries, toy toys,
monkey monkeys, photo photos, piano pianos, radio radios, zoo zoos, kangaroo kangaroos, hero heroes, mango mangoes, roof roofs,
chef chefs, giraffe giraffes, scarf scarves, man men, woman women, fireman firemen, snowman snowmen, child children,
person people, foot feet, tooth teeth, mouse mice, goose geese, lens lenses, gas gases, class classes, dress dresses, iris irises,
virus viruses, cactus cacti, octopus octopuses, axis axes, vertex vertices, oasis oases, quiz quizzes, waltz waltzes,
horse horses, vase vases, case cases, rose roses, nose noses, purse purses, cheese cheeses, prize prizes, size sizes, breeze breezes,
cookie cookies, pie pies, tie ties, shoe shoes, bee bees, tree trees, eye eyes, canoe canoes, axe axes, taxi taxis, bikini bikinis,
menu menus, banana bananas, pizza pizzas, zebra zebras, umbrella umbrellas, camera cameras, sofa sofas, church churches,
stomach stomachs, watch watches, human humans, canvas canvases, atlas atlases, day days, key keys, story stories, fly flies,
circus circuses, walrus walruses, bonus bonuses, calf calves, loaf loaves, half halves, dwarf dwarfs, fish fishes,
aquarium aquariums, stadium stadiums, medium media, plateau plateaus, egg eggs, wave waves, stove stoves, sleeve sleeves, cave caves,
tv tvs, cd cds, ox oxen, die dice, analysis analyses, face faces, horse horses, judge judges, garage garages, collie collies
"""
NOT_PAIRS = """
len lens, glass glasses, short shorts, pant pants, new news, clothe clothes, gras grass, boo boss, ski skis,
wolf wolfs, mouse mouse, cat dog, man mans, child childs, toy toies, berry berrys
"""


@pytest.mark.parametrize("pair", [pair.split() for pair in PAIRS.replace("\n", " ").split(",")], ids=" ".join)
def test_plurals_are_equal(pair: list[str]) -> None:
    singular, plural = pair
    assert is_plural(plural, singular)
    assert equal_short(plural, singular)
    assert equal_short(f"two {singular}", f"2 {plural}")


@pytest.mark.parametrize("pair", [pair.split() for pair in NOT_PAIRS.replace("\n", " ").split(",")], ids=" ".join)
def test_words_in_s_that_are_no_plurals(pair: list[str]) -> None:
    singular, other = pair
    assert not is_plural(other, singular)
    if singular != other:
        assert not equal_short(other, singular)


@given(st.text("abcdefghijklmnopqrstuvwxyz'é ", max_size=12), st.text("abcdefghijklmnopqrstuvwxyz'é ", max_size=12))
def test_equal_is_symmetric(word: str, other: str) -> None:
    assert equal_short(word, other) == equal_short(other, word)
