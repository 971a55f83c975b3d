"""SAT branching: the search is correct for any heuristic, and only fewer decisions improve the score."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from own_tasks import judge_of, judged, measured, part_of

from palaestra.research.judge.evaluation import SubmissionJudge
from palaestra.research.tasks.data import TaskData
from palaestra.research.tasks.records import Grade, InvalidSubmission

FIRST = "def choose(clauses):\n    return clauses[0][0]\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SubmissionJudge:
    """The judge with a few formulas of 45 variables, so that it is quick."""
    drawn, rng = part_of("sat_branching", "drawn", "data.py"), np.random.default_rng(0)
    folder: Path = tmp_path_factory.mktemp("formulas")
    for split in ("validation", "test"):
        (folder / f"{split}.json").write_text(json.dumps([drawn(45, rng) for _ in range(6)]))
    judge = SubmissionJudge(judge_of("sat_branching").task, judge_of("sat_branching").sandbox)
    judge.data = TaskData(judge.data.public, folder)
    return judge


def submission(text: str) -> dict[str, bytes]:
    return {"branching.py": text.encode()}


def test_the_search_finds_what_trying_everything_finds_whatever_it_is_told() -> None:
    make, drawn = part_of("sat_branching", "Search", "starter/solver.py"), part_of("sat_branching", "drawn", "data.py")
    rng = np.random.default_rng(1)
    found = []
    for _ in range(40):
        clauses = drawn(9, rng)
        search = make(clauses)
        while search.satisfiable is None:
            literals = sorted({literal for clause in search.open_clauses() for literal in clause})
            search.decide(literals[int(rng.integers(len(literals)))])
        assignments = itertools.product((-1, 1), repeat=9)
        truth = any(all(any(signs[abs(x) - 1] * x > 0 for x in clause) for clause in clauses) for signs in assignments)
        assert search.satisfiable == truth
        found.append(truth)
    assert {True, False} == set(found)


def test_what_is_open_is_what_is_neither_satisfied_nor_false() -> None:
    search = part_of("sat_branching", "Search", "starter/solver.py")([[1, 2, 3], [-1, 2, 4], [-2, 3, 4], [-1, -3, -4]])
    search.decide(1)
    assert search.open_clauses() == [[2, 4], [-2, 3, 4], [-3, -4]]
    assert search.decisions == 1


def test_the_data_are_half_satisfiable_and_shared_by_no_two_splits() -> None:
    data = judge_of("sat_branching").data
    assert data.public is not None
    assert data.hidden is not None
    paths = [data.public / "formulas.json", data.hidden / "validation.json", data.hidden / "test.json"]
    sets = [json.loads(path.read_text()) for path in paths]
    formulas = [json.dumps(formula) for some in sets for formula in some]
    assert len(set(formulas)) == len(formulas) == 3 * 24
    make = part_of("sat_branching", "Search", "starter/solver.py")
    satisfiable = part_of("sat_branching", "satisfiable", "data.py")
    assert [satisfiable(make(formula)) for formula in sets[2][:6]] == [True, False] * 3


def test_a_good_heuristic_needs_fewer_decisions_and_a_bad_one_still_ends(small: SubmissionJudge) -> None:
    task = small.task
    texts = [FIRST, task.starter_files()["branching.py"].decode(), task.reference_files()["branching.py"].decode()]
    worst, baseline, reference = (small.judge(submission(text), "test") for text in texts)
    assert isinstance(worst, Grade)
    assert isinstance(baseline, Grade)
    assert isinstance(reference, Grade)
    assert 1 <= reference.score < baseline.score < worst.score < 1000


def test_a_formula_that_takes_too_many_decisions_is_given_up(small: SubmissionJudge) -> None:
    judge = SubmissionJudge(small.task, small.sandbox)
    judge.data = small.data
    judge._evaluate.__globals__["CAP"] = 3
    outcome = judge.judge(submission(FIRST), "test")
    assert isinstance(outcome, Grade), outcome
    assert outcome.scores["most"] == 3
    assert outcome.scores["given_up"] >= 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def choose(clauses):\n    return 0\n", "must return a literal"),
        ("def choose(clauses):\n    return 10**6\n", "must return a literal"),
        ("def choose(clauses):\n    return float(clauses[0][0])\n", "must return a literal"),
        ("def choose(clauses):\n    return clauses[0][:1]\n", "must return a literal"),
        ("def choose(clauses):\n    return True\n", "must return a literal"),
        (
            "first = []\ndef choose(clauses):\n    first.append(clauses[0][0])\n    return first[0]\n",
            "must return",
        ),
        ("def choose(clauses):\n    raise ValueError('no idea')\n", "no idea"),
        ("def pick(clauses):\n    return 1\n", "choose"),
        ("import os\ndef choose(clauses):\n    os.kill(os.getpid(), 9)\n", "ended before it answered"),
    ],
)
def test_a_heuristic_that_gives_no_open_literal_is_told_so(small: SubmissionJudge, text: str, said: str) -> None:
    outcome = small.judge(submission(text), "validation")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert said in outcome.reason


def test_neither_a_changed_solver_nor_a_forged_count_has_an_effect(small: SubmissionJudge) -> None:
    honest = small.judge(submission(FIRST), "test")
    forged = f"import sys\nprint('decisions: 1')\nsys.stderr.write('{{\"decisions\": 1}}')\n{FIRST}"
    solver = b"class Search:\n    satisfiable, decisions = True, 1\n"
    tricked = small.judge({**submission(forged), "solver.py": solver, "weights.json": b"{}"}, "test")
    assert isinstance(honest, Grade), honest
    assert isinstance(tricked, Grade), tricked
    assert tricked.scores == honest.scores


def test_the_hidden_formulas_are_not_in_the_sandbox() -> None:
    hidden = judge_of("sat_branching").data.hidden
    look = f"import os\nfound = [os.listdir('/data'), os.path.exists({str(hidden)!r})]\n"
    outcome = judged("sat_branching", look + "def choose(clauses):\n    raise ValueError(found)\n")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "[['formulas.json'], False]" in outcome.reason


@pytest.mark.backends
def test_the_solutions_reproduce_and_the_reference_is_far_ahead() -> None:
    baseline, reference = measured("sat_branching", "baseline"), measured("sat_branching", "reference")
    assert (baseline.validation.score, baseline.test.score) == pytest.approx((105.87, 75.78), abs=1.0)
    assert (reference.validation.score, reference.test.score) == pytest.approx((26.36, 22.97), abs=1.0)
