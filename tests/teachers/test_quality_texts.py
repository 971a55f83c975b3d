"""Duplicates and overlap, compared with brute force."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, ImagePart, Lesson, Message, Problem, Split, TextPart
from palaestra.tasks.leakage import HeldOut
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.numerals import is_number
from palaestra.tasks.texts import words
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


def ask(*questions: str, response: str = "Answer: 1") -> list[Example]:
    return [Example((Message("user", question),), response) for question in questions]


def hold(*questions: str) -> list[Problem]:
    return [Problem(f"p{k}", (Message("user", question),), "1") for k, question in enumerate(questions)]


def seen(question: str, picture: str) -> tuple[Message, ...]:
    return (Message("user", (ImagePart(picture), TextPart(question))),)


def duplicates(examples: list[Example], check: Duplicates | None = None, context: Context | None = None) -> Inspection:
    return inspect(Lesson(tuple(examples)), [check or Duplicates()], context or Context(TASK))


def overlap(examples: list[Example], problems: list[Problem]) -> Inspection:
    return inspect(Lesson(tuple(examples)), [Overlap()], Context(TASK, {Split.TEST: problems}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 3 + 4?", "what is 3+4"),
        ("Tom's 1,200 apples", "toms 1200 apples".replace("toms", "tom s")),
        ("3 × 4", "3*4"),
        ("ﬁve − two", "five - two"),
        ("It’s “here”", "It's 'here'"),
    ],
)
def test_words_are_the_same_for_what_reads_the_same(one: str, other: str) -> None:
    assert words(one) == words(other)


@pytest.mark.parametrize(("one", "other"), [("3+4", "3-4"), ("(2+3)*4", "2+3*4"), ("1.5", "15"), ("5!", "5")])
def test_signs_that_calculate_are_words(one: str, other: str) -> None:
    assert words(one) != words(other)


def test_scripts_without_spaces_have_a_word_a_character() -> None:
    assert words("三只羊") == ["三", "只", "羊"]


@given(st.lists(st.tuples(TEXTS.map(str.split), st.booleans()), max_size=16), st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_near_duplicates_are_exactly_those_of_brute_force(rows: list[tuple[list[str], bool]], threshold: float) -> None:
    sets, groups = [cut_grams(text) for text, _ in rows], [group for _, group in rows]
    index, kept = NearDuplicates(sets, groups, threshold), list[int]()
    for place, own in enumerate(sets):
        found = index.find(place)
        alike = (k for k in kept if groups[k] is groups[place] and jaccard(sets[k], own) >= threshold)
        expected = next(alike, None)
        assert found == (None if expected is None else (expected, jaccard(sets[expected], own)))
        if found is None:
            kept.append(place)
            index.add(place)


def test_duplicates_name_the_one_that_stays() -> None:
    story = STORY.format(a=30, b=7)
    examples = ask(story, "Name a colour.", story.upper(), story.replace("wooden", "wooden old"), "name a colour")
    found = duplicates(examples, Duplicates(0.7))
    assert [(d.position, d.reason, d.other) for d in found.dropped] == [(2, EXACT, 0), (3, NEAR, 0), (4, EXACT, 1)]
    assert found.positions == (0, 1)


def test_the_same_words_with_other_numbers_are_another_question() -> None:
    examples = ask(STORY.format(a=30, b=7), STORY.format(a=31, b=7), STORY.format(a=7, b=30))
    assert [d.position for d in duplicates(examples, Duplicates(0.3)).dropped] == [2]


def test_the_same_question_about_another_picture_or_after_other_words_is_another() -> None:
    question, before = "Which colour has the circle?", Message("user", "Think of a number.")
    examples = [Example(seen(question, "a.png"), "red"), Example(seen(question, "b.png"), "red")]
    examples += [*ask(question), Example((before, Message("user", question)), "red")]
    assert not duplicates(examples).dropped
    assert [d.position for d in duplicates([*examples, examples[1], examples[3]]).dropped] == [4, 5]


def test_what_an_earlier_lesson_asked_is_not_asked_again() -> None:
    context = Context(TASK, earlier=ask("What is 3 + 4?", "What is 3+4", STORY.format(a=30, b=7)))
    examples = ask("What is 3+4?", "What is 4+4?", STORY.format(a=30, b=7).replace("long", "very long"))
    found = duplicates(examples, Duplicates(0.7), context)
    assert [(d.position, d.reason, d.other) for d in found.dropped] == [(0, EXACT, None), (2, NEAR, None)]
    assert all("earlier lesson" in d.detail for d in found.dropped)


def test_the_wording_of_a_task_makes_no_duplicates() -> None:
    frame = "Read the question with care, think aloud, and give the answer alone in the last line of yours. {}"
    questions = ("Who wrote Faust?", "Who painted it?")
    examples = ask(*(frame.format(question) for question in questions))
    assert len(duplicates(examples, Duplicates(0.6)).dropped) == 1
    held = hold(*(frame.format(f"question {'x' * k}") for k in range(12)))
    assert not duplicates(examples, Duplicates(0.6), Context(TASK, {Split.TEST: held})).dropped


def overlaps_by_hand(example: Example, problems: list[Problem], length: int, share: float, common: int) -> str:
    """Which problems an example mostly copies, by the book."""

    def cut(text: list[str]) -> set[tuple[str, ...]]:
        return {tuple(text[k : k + length]) for k in range(len(text) - length + 1)}

    asked = [words(m.text) for m in example.messages]
    parts = [*asked, words(example.response)]
    has = set().union(*(cut(part) for part in parts))
    numbers = Counter(word for part in parts for word in part if is_number(word))
    held = [words(problem.messages[-1].text) for problem in problems]
    counts = Counter(gram for text in held for gram in cut(text))
    rare = [{gram for gram in cut(text) if counts[gram] <= common} for text in held]
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
    problems = hold(*questions)
    examples = [ask(question, response=response)[0] for question, response in pairs]
    same, template = HeldOut({Split.TEST: problems}, length, common).shares(examples, share)
    found = ["same" if k in same else "template" if k in template else "" for k in range(len(examples))]
    assert found == [overlaps_by_hand(example, problems, length, share, common) for example in examples]


def test_a_problem_is_found_as_it_is_inside_other_text_and_with_a_word_changed() -> None:
    story = STORY.format(a=30, b=7)
    inside = f"Here is one from a book of mine. {story} Now you."
    examples = [*ask(story.lower(), inside, story.replace("night", "dusk"), "Good day."), *ask("Hm?", response=story)]
    found = overlap(examples, hold(story))
    assert [d.position for d in found.dropped] == [0, 1, 2, 4]
    assert {d.reason for d in found.dropped} == {"repeats a test problem"}
    assert all("p0" in d.detail and "farmer" not in d.detail for d in found.dropped)  # Its id, and none of its text.


def test_a_template_is_kept_and_counted() -> None:
    problems = hold(STORY.format(a=30, b=7), "What is 3 + 4?")
    examples = ask(STORY.format(a=12, b=5), "What is 5 + 9?", "What is 3 - 4?")
    reason = "has the template of a test problem"
    found = overlap(examples, problems)
    assert len(found.kept) == 3
    assert found.check("overlap").remarks == {reason: 2}


def test_a_short_problem_is_not_found_in_every_calculation() -> None:
    assert not overlap(ask("What is 13 + 4 + 5?", response="3 + 4 = 7. Answer: 22"), hold("3 + 4")).dropped
    assert overlap(ask("3+4"), hold("3 + 4")).dropped


def test_an_instruction_that_all_problems_share_is_no_overlap() -> None:
    told = "Reason step by step, and put your final answer within the box at the very end."
    problems = hold(*(f"{STORY.format(a=k, b=k + 1)} {told}" for k in range(100, 140)))
    assert not overlap(ask(f"What is 3 + 4? {told}"), problems).dropped


def test_another_picture_is_another_problem() -> None:
    question = "How many red circles are left of the large blue square in this picture?"
    problems = [Problem("p", seen(question, "a.png"), "1")]
    examples = [Example(seen(question, "a.png"), "1"), Example(seen(question, "b.png"), "1")]
    assert [d.position for d in overlap(examples, problems).dropped] == [0]


def test_worked_problems_before_a_question_are_no_part_of_it() -> None:
    shown = (Message("user", STORY.format(a=30, b=7)), Message("assistant", "Answer: 7"))
    problems = [Problem("p", (*shown, Message("user", "What is 3 + 4?")), "7")]
    examples = [Example((*shown, Message("user", "What is 5 + 5?")), "10"), *ask(STORY.format(a=30, b=7))]
    assert not overlap(examples, problems).dropped


def test_without_held_out_problems_nothing_is_judged() -> None:
    found = inspect(Lesson(tuple(ask("a", "b"))), [Overlap()], Context(TASK))
    assert found.check("overlap").not_judged == 2


def test_the_splits_of_a_procedural_task_do_not_overlap() -> None:
    held = {split: TASK.problems(split, 12, 0) for split in (Split.VALIDATION, Split.TEST)}
    examples = [e for s in TASK.skills() for e in TASK.write_examples(s, "", 30, np.random.default_rng(0))]
    found = inspect(Lesson(tuple(examples)), [Overlap()], Context(TASK, held))
    assert not found.dropped


def test_a_threshold_of_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="duplicates needs"):
        Duplicates(0.0)
