import re
from fractions import Fraction

import numpy as np
import pytest

from palaestra.core.errors import TooFewProblemsError, UnknownNameError
from palaestra.core.records import Completion, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import GenerativeTask, get_split, make_task
from palaestra.tasks.math.corpus import TRACE, corpus
from palaestra.tasks.math.recipes import SKILLS, make_operation_draft
from palaestra.tasks.math.task import MathSkills, draft_split

TASK = MathSkills()


def test_the_task_is_registered_and_generative() -> None:
    assert isinstance(make_task("math-skills"), GenerativeTask)


def test_there_are_at_least_sixteen_skills_with_subskills() -> None:
    assert len(TASK.skills()) >= 16
    assert all(len(parts) >= 2 for parts in TASK.skills().values())


@pytest.mark.parametrize("skill", list(SKILLS))
def test_every_step_of_the_worked_reasoning_is_right(skill: str) -> None:
    for problem in TASK.problems(Split.TRAIN, 60, 1, [skill]):
        worked = problem.metadata["worked"]
        for left, right in re.findall(r"([\d+*/-]+)=([\d+*/-]+)(?=\. )", worked):
            assert _value(left) == _value(right), worked
        score = TASK.score(problem, Completion(worked))
        assert score.value == 1.0, (worked, score)  # type: ignore[union-attr]


@pytest.mark.parametrize("skill", list(SKILLS))
def test_a_wrong_answer_scores_zero(skill: str) -> None:
    problems = TASK.problems(Split.TRAIN, 20, 2, [skill])
    for problem in problems:
        wrong = next(p.reference for p in problems if p.reference != problem.reference)
        assert TASK.score(problem, Completion(f"Answer: {wrong}")).value == 0.0  # type: ignore[union-attr]
        assert TASK.score(problem, Completion("I do not know")).value == 0.0  # type: ignore[union-attr]


def test_problems_depend_on_the_seed_alone() -> None:
    first, again, other = (TASK.problems(Split.TEST, 10, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_no_question_is_asked_twice_in_a_split() -> None:
    problems = TASK.problems(Split.VALIDATION, 40, 0)
    assert len({p.id for p in problems}) == len(problems) == 40 * len(SKILLS)


@pytest.mark.parametrize("skill", list(SKILLS))
def test_splits_share_no_canonical_problem_under_any_seed(skill: str) -> None:
    asked: dict[Split, set[str]] = {}
    for split in (Split.VALIDATION, Split.TEST):
        asked[split] = {p.messages[0].text for seed in range(5) for p in TASK.problems(split, 30, seed, [skill])}
    taught = {e.messages[0].text for e in TASK.write_examples(skill, "", 1500, np.random.default_rng(0))}
    assert not taught & asked[Split.TEST]
    assert not taught & asked[Split.VALIDATION]
    assert not asked[Split.TEST] & asked[Split.VALIDATION]


@pytest.mark.parametrize("skill", list(SKILLS))
def test_the_same_problem_in_other_words_is_in_the_same_split(skill: str) -> None:
    """Two drafts with the same answer path and operands never fall on different sides."""
    rng, splits = np.random.default_rng(3), {}
    for draw in SKILLS[skill].subskills.values():
        for _ in range(400):
            draft = draw(rng)
            operands = tuple(sorted(re.findall(r"\d+", draft.question)))
            words = tuple(part for part in draft.key if isinstance(part, str))  # 3 metres are not 3 kilograms.
            splits.setdefault((operands, words, draft.steps, draft.answer), set()).add(draft_split(skill, draft))
    assert all(len(seen) == 1 for seen in splits.values())


def test_the_order_of_a_sum_or_product_does_not_matter() -> None:
    assert draft_split("addition", make_operation_draft("+", 17, 4, "?")) is draft_split(
        "addition", make_operation_draft("+", 4, 17, "?")
    )
    assert make_operation_draft("+", 17, 4, "?").key == make_operation_draft("+", 4, 17, "?").key
    assert make_operation_draft("*", 17, 4, "?").key == make_operation_draft("*", 4, 17, "?").key
    assert make_operation_draft("-", 17, 4, "?").key != make_operation_draft("-", 4, 17, "?").key


def test_the_corpus_contains_no_held_out_question() -> None:
    held_out = {
        p.messages[0].text
        for seed in range(3)
        for s in (Split.VALIDATION, Split.TEST)
        for p in TASK.problems(s, 30, seed)
    }
    stream = corpus(Seeds(0).derive("corpus").generator())
    seen = [next(stream) for _ in range(20_000)]
    assert not {e.messages[0].text for e in seen} & held_out
    share = sum(e.skill in TRACE for e in seen) / len(seen)
    assert share == pytest.approx(sum(TRACE.values()) / 100, abs=0.002)


def test_the_splits_have_the_shares_they_should() -> None:
    counts = [get_split(str(k)) for k in range(5000)]
    assert counts.count(Split.TRAIN) / 5000 == pytest.approx(0.7, abs=0.03)
    assert counts.count(Split.TEST) / 5000 == pytest.approx(0.15, abs=0.03)


def test_too_many_problems_are_an_error() -> None:
    with pytest.raises(TooFewProblemsError):
        TASK.problems(Split.TEST, 100_000, 0, ["percent"])


def test_unknown_skills_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'addition'"):
        TASK.problems(Split.TEST, 1, 0, ["additoin"])
    with pytest.raises(UnknownNameError, match="'carry'"):
        TASK.write_examples("addition", "cary", 1, np.random.default_rng(0))


def test_examples_of_a_skill_spread_over_its_subskills() -> None:
    examples = TASK.write_examples("groups", "", 30, np.random.default_rng(0))
    assert [sum(e.subskill == part for e in examples) for part in TASK.skills()["groups"]] == [10, 10, 10]


def _value(text: str) -> Fraction:
    """An independent reading of `a*b+c`: Python's own arithmetic on fractions."""
    return Fraction(eval(re.sub(r"(\d+)", r"Fraction(\1)", text), {"Fraction": Fraction}))
