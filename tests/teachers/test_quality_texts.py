"""Duplicates and overlap, compared with brute force."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, ImagePart, Lesson, Message, Problem, Split, TextPart
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.readings import is_number
from palaestra.tasks.texts import read_example, words
from palaestra.teachers.quality.base import Context, Inspection, inspect
from palaestra.teachers.quality.texts import (
    EXACT,
    NEAR,
    Duplicates,
    NearDuplicates,
    Overlap,
    cut_grams,
    jaccard,
)

TASK = MathSkills()
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "1", "2", "+"]), max_size=14).map(" ".join)
STORY = "A farmer drives {a} sheep over a long wooden bridge to the market and comes home with {b} of them at night."


def make_examples(*questions: str, response: str = "Answer: 1") -> list[Example]:
    return [Example((Message("user", question),), response) for question in questions]


def make_problems(*questions: str) -> list[Problem]:
    return [Problem(f"p{k}", (Message("user", question),), "1") for k, question in enumerate(questions)]


def ask_about_image(question: str, picture: str) -> tuple[Message, ...]:
    return (Message("user", (ImagePart(picture), TextPart(question))),)


def check_duplicates(
    examples: list[Example], check: Duplicates | None = None, context: Context | None = None
) -> Inspection:
    return inspect(Lesson(tuple(examples)), [check or Duplicates()], context or Context(TASK))


def check_overlap(examples: list[Example], problems: list[Problem]) -> Inspection:
    return inspect(Lesson(tuple(examples)), [Overlap()], Context(TASK, {Split.TEST: problems}))


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("What is 3 + 4?", "what is 3+4"),
        ("Tom's 1,200 apples", "toms 1200 apples".replace("toms", "tom s")),
        ("3 × 4", "3*4"),
        ("ﬁve − two", "five - two"),
        ("It’s “here”", "It's 'here'"),
    ],
)
def test_words_are_the_same_for_what_reads_the_same(text: str, variant: str) -> None:
    assert words(text) == words(variant)


@pytest.mark.parametrize(("text", "variant"), [("3+4", "3-4"), ("(2+3)*4", "2+3*4"), ("1.5", "15"), ("5!", "5")])
def test_signs_that_calculate_are_words(text: str, variant: str) -> None:
    assert words(text) != words(variant)


def test_scripts_without_spaces_have_a_word_a_character() -> None:
    assert words("三只羊") == ["三", "只", "羊"]


@given(st.lists(st.tuples(TEXTS.map(str.split), st.booleans()), max_size=16), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_near_duplicates_are_exactly_those_of_brute_force(rows: list[tuple[list[str], bool]], threshold: float) -> None:
    sets, groups = [cut_grams(text) for text, _ in rows], [group for _, group in rows]
    index, kept = NearDuplicates(sets, groups, threshold), list[int]()
    for place, own in enumerate(sets):
        result = index.find(place)
        alike = (k for k in kept if groups[k] is groups[place] and jaccard(sets[k], own) >= threshold)
        expected = next(alike, None)
        assert result == (None if expected is None else (expected, jaccard(sets[expected], own)))
        if result is None:
            kept.append(place)
            index.add(place)


def test_duplicates_name_the_one_that_stays() -> None:
    story = STORY.format(a=30, b=7)
    examples = make_examples(
        story, "Name a colour.", story.upper(), story.replace("wooden", "wooden old"), "name a colour"
    )
    result = check_duplicates(examples, Duplicates(0.7))
    assert [(d.position, d.reason, d.other) for d in result.dropped] == [(2, EXACT, 0), (3, NEAR, 0), (4, EXACT, 1)]
    assert result.positions == (0, 1)


def test_the_same_words_with_other_numbers_are_another_question() -> None:
    examples = make_examples(STORY.format(a=30, b=7), STORY.format(a=31, b=7), STORY.format(a=7, b=30))
    assert [d.position for d in check_duplicates(examples, Duplicates(0.3)).dropped] == [2]


def test_same_question_with_other_image_or_context_is_distinct() -> None:
    question, before = "Which colour has the circle?", Message("user", "Think of a number.")
    examples = [Example(ask_about_image(question, "a.png"), "red"), Example(ask_about_image(question, "b.png"), "red")]
    examples += [*make_examples(question), Example((before, Message("user", question)), "red")]
    assert not check_duplicates(examples).dropped
    assert [d.position for d in check_duplicates([*examples, examples[1], examples[3]]).dropped] == [4, 5]


def test_what_an_earlier_lesson_asked_is_not_asked_again() -> None:
    context = Context(TASK, earlier=make_examples("What is 3 + 4?", "What is 3+4", STORY.format(a=30, b=7)))
    examples = make_examples("What is 3+4?", "What is 4+4?", STORY.format(a=30, b=7).replace("long", "very long"))
    result = check_duplicates(examples, Duplicates(0.7), context)
    assert [(d.position, d.reason, d.other) for d in result.dropped] == [(0, EXACT, None), (2, NEAR, None)]
    assert all("earlier lesson" in d.detail for d in result.dropped)


def test_the_wording_of_a_task_makes_no_duplicates() -> None:
    frame = "Read the question with care, think aloud, and give the answer alone in the last line of yours. {}"
    questions = ("Who wrote Faust?", "Who painted it?")
    examples = make_examples(*(frame.format(question) for question in questions))
    assert len(check_duplicates(examples, Duplicates(0.6)).dropped) == 1
    held = make_problems(*(frame.format(f"question {'x' * k}") for k in range(12)))
    assert not check_duplicates(examples, Duplicates(0.6), Context(TASK, {Split.TEST: held})).dropped


def overlaps_by_hand(example: Example, problems: list[Problem], length: int, share: float, common: int) -> str:
    """Which problems an example mostly copies, by the book."""

    def cut_ngrams(text: list[str]) -> set[tuple[str, ...]]:
        return {tuple(text[k : k + length]) for k in range(len(text) - length + 1)}

    everything = [word for m in example.messages for word in words(m.text)] + words(example.response)
    has = cut_ngrams(everything)
    numbers = Counter(filter(is_number, everything))
    held = [words(problem.messages[-1].text) for problem in problems]
    counts = Counter(gram for text in held for gram in cut_ngrams(text))
    rare = [{gram for gram in cut_ngrams(text) if counts[gram] <= common} for text in held]
    close = [k for k, own in enumerate(rare) if own and len(own & has) / len(own) >= share - 1e-12]
    if any(Counter(w for w in held[k] if is_number(w)) <= numbers for k in close):
        return "same"
    return "template" if close else ""


@given(
    st.lists(st.tuples(TEXTS, TEXTS), max_size=10),
    st.lists(TEXTS, min_size=1, max_size=8),
    st.sampled_from([(2, 0.5, 2), (3, 0.7, 1), (1, 1.0, 9)]),
)
@settings(max_examples=100)
def test_overlap_is_that_of_brute_force(
    pairs: list[tuple[str, str]], questions: list[str], how: tuple[int, float, int]
) -> None:
    length, share, common = how
    problems = make_problems(*questions)
    examples = [make_examples(question, response=response)[0] for question, response in pairs]
    with patch("palaestra.tasks.texts.read_disguised", return_value=()):
        texts = [read_example(example, bool) for example in examples]
    same, template = HeldOut({Split.TEST: problems}, length, common)._grams.find_shares(texts, share)
    results = ["same" if k in same else "template" if k in template else "" for k in range(len(examples))]
    assert results == [overlaps_by_hand(example, problems, length, share, common) for example in examples]


def test_leak_is_found_verbatim_embedded_or_with_a_changed_word() -> None:
    story = STORY.format(a=30, b=7)
    inside = f"Here is one from a book of mine. {story} Now you."
    examples = [
        *make_examples(story.lower(), inside, story.replace("night", "dusk"), "Good day."),
        *make_examples("Hm?", response=story),
    ]
    result = check_overlap(examples, make_problems(story))
    assert [d.position for d in result.dropped] == [0, 1, 2, 4]
    assert {d.reason for d in result.dropped} == {"repeats a test problem"}
    assert all("p0" in d.detail and "farmer" not in d.detail for d in result.dropped)  # Its id, and none of its text.


def test_a_template_is_kept_and_counted() -> None:
    problems = make_problems(STORY.format(a=30, b=7), "What is 3 + 4?")
    examples = make_examples(STORY.format(a=12, b=5), "What is 5 + 9?", "What is 3 - 4?")
    reason = "has the template of a test problem"
    result = check_overlap(examples, problems)
    assert len(result.kept) == 3
    assert result.check("overlap").remarks == {reason: 2}


def test_a_short_problem_is_not_found_in_every_calculation() -> None:
    assert not check_overlap(
        make_examples("What is 13 + 4 + 5?", response="3 + 4 = 7. Answer: 22"), make_problems("3 + 4")
    ).dropped
    assert check_overlap(make_examples("3+4"), make_problems("3 + 4")).dropped


def test_an_instruction_that_all_problems_share_is_no_overlap() -> None:
    reported = "Reason step by step, and put your final answer within the box at the very end."
    problems = make_problems(*(f"{STORY.format(a=k, b=k + 1)} {reported}" for k in range(100, 140)))
    assert not check_overlap(make_examples(f"What is 3 + 4? {reported}"), problems).dropped


def test_another_picture_is_another_problem() -> None:
    question = "How many red circles are left of the large blue square in this picture?"
    problems = [Problem("p", ask_about_image(question, "a.png"), "1")]
    examples = [Example(ask_about_image(question, "a.png"), "1"), Example(ask_about_image(question, "b.png"), "1")]
    assert [d.position for d in check_overlap(examples, problems).dropped] == [0]


def test_worked_problems_before_a_question_are_no_part_of_it() -> None:
    shown = (Message("user", STORY.format(a=30, b=7)), Message("assistant", "Answer: 7"))
    problems = [Problem("p", (*shown, Message("user", "What is 3 + 4?")), "7")]
    examples = [Example((*shown, Message("user", "What is 5 + 5?")), "10"), *make_examples(STORY.format(a=30, b=7))]
    assert not check_overlap(examples, problems).dropped


def test_without_held_out_problems_nothing_is_judged() -> None:
    result = inspect(Lesson(tuple(make_examples("a", "b"))), [Overlap()], Context(TASK))
    assert result.check("overlap").not_judged == 2


def test_the_splits_of_a_procedural_task_do_not_overlap() -> None:
    held = {split: TASK.problems(split, 12, 0) for split in (Split.VALIDATION, Split.TEST)}
    examples = [e for s in TASK.skills() for e in TASK.write_examples(s, "", 30, np.random.default_rng(0))]
    result = inspect(Lesson(tuple(examples)), [Overlap()], Context(TASK, held))
    assert not result.dropped


def test_a_threshold_of_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="duplicates"):
        Duplicates(0.0)
