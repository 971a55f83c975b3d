"""The games: solutions are reproducible, and only the played moves change a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from research_judges import judge_submission, load_judge, load_part

from palaestra.research.judge.evaluation import SubmissionJudge
from palaestra.research.tasks.task import Grade, InvalidSubmission

FUNCTION = {"prisoners_dilemma": "choose", "colonel_blotto": "allocate", "battle_of_sexes": "choose"}
FIXED = {"prisoners_dilemma": "'C'", "colonel_blotto": "[20, 20, 20, 20, 20]", "battle_of_sexes": "'B'"}
"""What is the same in every round, and allowed."""


def player(name: str, body: str, before: str = "") -> str:
    return f"{before}\ndef {FUNCTION[name]}(mine, theirs):\n    {body}\n"


@pytest.mark.parametrize("name", FUNCTION)
@pytest.mark.parametrize(
    ("body", "before", "expected"),
    [
        ("return 'X'", "", "must return"),
        ("return None", "", "must return"),
        ("return [['C']]", "", "must return"),
        ("return {'points': 5}", "", "must return"),
        ("return theirs[-1]", "", "IndexError"),
        ("return 'C'", "this is no Python", "SyntaxError"),
        ("return 'C'", "import no_such_package", "no_such_package"),
        ("import os; os._exit(0)", "", "ended before it answered"),
        ("return {1, 2}", "", "lists and dictionaries"),
        ("return 'C'", "import palaestra", "palaestra"),
    ],
)
def test_a_broken_player_is_told_why_and_has_no_score(name: str, body: str, before: str, expected: str) -> None:
    outcome = judge_submission(name, player(name, body, before))
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


@pytest.mark.parametrize("name", FUNCTION)
def test_a_player_without_the_function_is_told_its_name(name: str) -> None:
    outcome = judge_submission(name, "def play():\n    return 'C'\n")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert FUNCTION[name] in outcome.reason


def test_a_player_that_thinks_for_ever_is_ended() -> None:
    judge = load_judge("prisoners_dilemma", 1.0)
    outcome = judge.judge({"strategy.py": b"def choose(mine, theirs):\n    while True: pass\n"}, "test")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "ended before it answered" in outcome.reason


@pytest.mark.parametrize(
    "division",
    [
        "[20, 20, 20, 20, 21]",
        "[120, -20, 0, 0, 0]",
        "[20.0] * 5",
        "[100]",
        "[True, 99, 0, 0, 0]",
        "[10**9, 0, 0, 0, 0]",
    ],
)
def test_only_a_hundred_whole_soldiers_can_be_sent(division: str) -> None:
    outcome = judge_submission("colonel_blotto", player("colonel_blotto", f"return {division}"))
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "sum to 100" in outcome.reason


@pytest.mark.parametrize("name", FUNCTION)
def test_what_a_player_does_beside_playing_changes_nothing(name: str) -> None:
    """It prints and writes forged scores, and changes its arguments."""
    tricks = "import json\nprint(json.dumps({'points': 5, 'share': 1}))\nopen('score.json', 'w').write('5')"
    body = f"print('share: 1.0'); mine.append('D'); theirs.clear(); return {FIXED[name]}"
    honest = judge_submission(name, player(name, f"return {FIXED[name]}"))
    assert isinstance(honest, Grade), honest
    tricked = judge_submission(name, player(name, body, tricks))
    assert isinstance(tricked, Grade), tricked
    assert tricked.scores == honest.scores


@pytest.mark.parametrize("name", FUNCTION)
def test_the_splits_have_different_opponents(name: str) -> None:
    fixed = player(name, f"return {FIXED[name]}")
    validation, test = judge_submission(name, fixed), judge_submission(name, fixed, "test")
    assert isinstance(validation, Grade)
    assert isinstance(test, Grade)
    assert validation.score != test.score


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "points"),
    [
        ("prisoners_dilemma", "C", "C", 3.0),
        ("prisoners_dilemma", "D", "C", 5.0),
        ("prisoners_dilemma", "C", "D", 0.0),
        ("prisoners_dilemma", "D", "D", 1.0),
        ("battle_of_sexes", "A", "A", 3.0),
        ("battle_of_sexes", "B", "B", 2.0),
        ("battle_of_sexes", "A", "B", 0.0),
    ],
)
def test_points_of_a_round_follow_the_table(name: str, ours: str, theirs: str, points: float) -> None:
    assert play_against(name, lambda *past: theirs, f"return '{ours}'") == pytest.approx(points, abs=0.25)


def test_a_margin_counts_what_was_won_less_what_was_lost() -> None:
    margin = load_part("colonel_blotto", "margin")
    assert margin([20, 20, 20, 20, 20], [20, 20, 20, 20, 20]) == 0
    assert margin([1, 0, 0, 0, 99], [0, 1, 0, 0, 99]) == 1 - 2
    assert margin([0, 0, 0, 0, 100], [25, 25, 25, 25, 0]) == 5 - 10


def test_the_allocators_always_send_a_hundred_soldiers() -> None:
    field = load_part("colonel_blotto", "field")
    rng = np.random.default_rng(3)
    for opponent in field(np.random.default_rng(2)):
        mine: list[list[int]] = []
        theirs: list[list[int]] = []
        for _ in range(40):
            theirs_next = rng.multinomial(100, rng.dirichlet([0.5] * 5)).tolist()
            mine.append(opponent(mine, theirs, rng))
            theirs.append(theirs_next)
            assert sum(mine[-1]) == 100
            assert min(mine[-1]) >= 0
            assert len(mine[-1]) == 5


def play_against(name: str, opponent: Callable[..., Any], body: str) -> float:
    """What a player gets from one opponent of ours."""
    judge = SubmissionJudge(load_judge(name).task, load_judge(name).sandbox)
    judge._evaluate.__globals__["field"] = lambda rng: [opponent] * 4
    outcome = judge.judge({judge.task.submission.files[0]: player(name, body).encode()}, "test")
    assert isinstance(outcome, Grade), outcome
    return outcome.score
