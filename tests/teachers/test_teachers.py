from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import UnknownNameError
from palaestra.core.records import Lesson, Report
from palaestra.envs.lesson.state import Round, StudentState, count_examples, hide_results
from palaestra.tasks.math.task import MathSkills
from palaestra.teachers.base import TEACHERS, make_teacher
from palaestra.teachers.simple import share_out

NAMES = TEACHERS.names()
"""Teachers that need no trained policy; see `tests/envs/test_flat_lesson.py` for the other."""

TASK = MathSkills()
SKILLS = TASK.skills()


def make_report(rates: dict[str, float], default: float = 0.5) -> Report:
    """Make a validation report with the given accuracy by skill, the same in every subskill."""

    def make_part(name: str, rate: float, slices: tuple[Report, ...] = ()) -> Report:
        return Report(name, rate, 0.0, 1.0, 12, round(12 * rate), {}, slices)

    slices = tuple(
        make_part(s, rates.get(s, default), tuple(make_part(p, rates.get(s, default)) for p in parts))
        for s, parts in SKILLS.items()
    )
    return make_part("validation", sum(rates.values()) / max(1, len(rates)), slices)


def make_state(now: Report, before: Report | None = None, history: tuple[Round, ...] = ()) -> StudentState:
    return StudentState(len(history), now, (), 0, 1000, before or now, history)


def write_lesson(name: str, observed: StudentState, size: int = 160, seed: int = 0, **options: Any) -> Lesson:
    return make_teacher(name, TASK, **options).write(observed, size, np.random.default_rng(seed))


def count_given(lesson: Lesson, skill: str) -> int:
    return sum(count_examples(lesson).get(skill, {}).values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 7, 160])
def test_lesson_has_the_requested_size_and_repeats_with_its_rng(name: str, size: int) -> None:
    observed = make_state(make_report({"addition": 1.0}))
    lesson = write_lesson(name, observed, size)
    assert len(lesson.examples) == size
    assert write_lesson(name, observed, size) == lesson
    assert write_lesson(name, observed, size, seed=1) != lesson


@pytest.mark.parametrize("name", NAMES)
def test_decisions_account_for_every_example(name: str) -> None:
    lesson = write_lesson(name, make_state(make_report({})))
    promised = {
        d.skill: {k: v for k, v in d.allocation.items() if v} for d in lesson.decisions if any(d.allocation.values())
    }
    assert promised == count_examples(lesson)
    assert all(d.reason for d in lesson.decisions)


def test_no_state_gives_every_skill_the_same() -> None:
    lesson = write_lesson("no_state", make_state(make_report({"addition": 1.0, "clock": 0.0})), 180)
    assert {count_given(lesson, skill) for skill in SKILLS} == {10}


def test_sfl_favors_skills_that_are_solved_sometimes() -> None:
    rates = dict.fromkeys(SKILLS, 0.5) | {"addition": 1.0, "clock": 0.0}
    lesson = write_lesson("sfl", make_state(make_report(rates)))
    assert count_given(lesson, "percent") > 1.5 * count_given(lesson, "addition") > 0
    assert count_given(lesson, "percent") > 1.5 * count_given(lesson, "clock") > 0
    assert write_lesson("sfl", hide_results(make_state(make_report(rates)))).examples


def test_progress_favors_skills_that_changed() -> None:
    before = make_report(dict.fromkeys(SKILLS, 0.5))
    now = make_report(dict.fromkeys(SKILLS, 0.5) | {"clock": 0.9, "percent": 0.3})
    lesson = write_lesson("progress", make_state(now, before, (Round({}, now),)))
    assert count_given(lesson, "clock") > count_given(lesson, "percent") > 3 * count_given(lesson, "addition") > 0
    first = write_lesson("progress", make_state(before))
    assert {count_given(first, skill) for skill in SKILLS} <= {8, 9}


def test_skill_tree_favors_weak_skills_and_keeps_mastered_ones() -> None:
    rates = dict.fromkeys(SKILLS, 0.5) | {"addition": 1.0, "subtraction": 0.95, "clock": 0.0}
    lesson = write_lesson("skill_tree", make_state(make_report(rates)), policy="response")
    assert count_given(lesson, "clock") > count_given(lesson, "percent") > count_given(lesson, "addition") > 0


def test_skill_tree_opens_all_subskills_before_it_exploits() -> None:
    start = make_report(dict.fromkeys(SKILLS, 0.3))
    first = write_lesson("skill_tree", make_state(start), policy="response")
    assert {d.action for d in first.decisions} == {"explore"}
    everything = {skill: dict.fromkeys(parts, 5) for skill, parts in SKILLS.items()}
    again = make_state(make_report(dict.fromkeys(SKILLS, 0.5)), start, (Round(everything, start),))
    later = write_lesson("skill_tree", again, policy="response")
    assert {d.action for d in later.decisions} == {"exploit"}


def test_skill_tree_gives_less_to_a_skill_without_gain() -> None:
    start = make_report(dict.fromkeys(SKILLS, 0.2))
    now = make_report(dict.fromkeys(SKILLS, 0.6) | {"number_theory": 0.2})
    taught = Round({skill: dict.fromkeys(parts, 10) for skill, parts in SKILLS.items()}, now)
    lesson = write_lesson("skill_tree", make_state(now, start, (taught,)), policy="response")
    untried = write_lesson("skill_tree", make_state(now), policy="response")
    assert count_given(lesson, "number_theory") < count_given(untried, "number_theory")


def test_skill_tree_enforces_its_cap() -> None:
    rates = dict.fromkeys(SKILLS, 0.85) | {"clock": 0.0, "percent": 0.8}
    lesson = make_teacher("skill_tree", TASK, cap=0.1).write(
        make_state(make_report(rates)), 100, np.random.default_rng(0)
    )
    weak = [skill for skill, rate in rates.items() if rate < 0.9]
    assert max(count_given(lesson, skill) for skill in weak) <= 10


def test_skill_tree_knows_what_to_do_when_all_is_mastered() -> None:
    assert len(write_lesson("skill_tree", make_state(make_report(dict.fromkeys(SKILLS, 1.0)))).examples) == 160


def test_teachers_keep_to_the_skills_they_were_given() -> None:
    for name in NAMES:
        lesson = make_teacher(name, TASK, ("clock", "percent")).write(
            make_state(make_report({})), 40, np.random.default_rng(0)
        )
        assert set(count_examples(lesson)) == {"clock", "percent"}


def test_an_unknown_teacher_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'skill_tree'"):
        make_teacher("skilltree", TASK)


@given(
    st.integers(0, 500),
    st.dictionaries(st.text(max_size=3), st.floats(0, 10), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_shares_add_up_and_keep_the_cap(total: int, weights: dict[str, float], cap: int | None) -> None:
    shares = share_out(total, weights, cap)
    room = sum(1 for w in weights.values() if w > 0) * (cap if cap is not None else total)
    assert sum(shares.values()) == min(total, room)
    assert all(0 <= share <= (cap if cap is not None else total) for share in shares.values())
    assert all(shares[name] == 0 for name, weight in weights.items() if weight == 0)
