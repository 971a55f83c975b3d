"""SAT branching: the search is correct for any heuristic, and only fewer decisions improve the score."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from research_judges import judge_submission, load_judge, load_part

from palaestra.research.judge.evaluation import SubmissionJudge
from palaestra.research.tasks.data import TaskData
from palaestra.research.tasks.task import Grade, InvalidSubmission

FIRST = "def choose(clauses):\n    return clauses[0][0]\n"


@pytest.fixture(scope="module")
def small_judge(tmp_path_factory: pytest.TempPathFactory) -> SubmissionJudge:
    """The judge with a few formulas of 45 variables, so that it is quick."""
    drawn, rng = load_part("sat_branching", "drawn", "data.py"), np.random.default_rng(0)
    folder: Path = tmp_path_factory.mktemp("formulas")
    for split in ("validation", "test"):
        (folder / f"{split}.json").write_text(json.dumps([drawn(45, rng) for _ in range(6)]))
    judge = SubmissionJudge(load_judge("sat_branching").task, load_judge("sat_branching").sandbox)
    judge.data = TaskData(judge.data.public, folder)
    return judge


def submission(text: str) -> dict[str, bytes]:
    return {"branching.py": text.encode()}


def test_search_agrees_with_brute_force() -> None:
    make, drawn = (
        load_part("sat_branching", "Search", "starter/solver.py"),
        load_part("sat_branching", "drawn", "data.py"),
    )
    rng = np.random.default_rng(1)
    result = []
    for _ in range(40):
        clauses = drawn(9, rng)
        search = make(clauses)
        while search.satisfiable is None:
            literals = sorted({literal for clause in search.open_clauses() for literal in clause})
            search.decide(literals[int(rng.integers(len(literals)))])
        assignments = itertools.product((-1, 1), repeat=9)
        truth = any(all(any(signs[abs(x) - 1] * x > 0 for x in clause) for clause in clauses) for signs in assignments)
        assert search.satisfiable == truth
        result.append(truth)
    assert {True, False} == set(result)


def test_what_is_open_is_what_is_neither_satisfied_nor_false() -> None:
    search = load_part("sat_branching", "Search", "starter/solver.py")(
        [[1, 2, 3], [-1, 2, 4], [-2, 3, 4], [-1, -3, -4]]
    )
    search.decide(1)
    assert search.open_clauses() == [[2, 4], [-2, 3, 4], [-3, -4]]
    assert search.decisions == 1


def test_half_the_formulas_are_satisfiable_and_none_is_shared() -> None:
    data = load_judge("sat_branching").data
    assert data.public is not None
    assert data.hidden is not None
    paths = [data.public / "formulas.json", data.hidden / "validation.json", data.hidden / "test.json"]
    sets = [json.loads(path.read_text()) for path in paths]
    formulas = [json.dumps(formula) for some in sets for formula in some]
    assert len(set(formulas)) == len(formulas) == 3 * 24
    make = load_part("sat_branching", "Search", "starter/solver.py")
    satisfiable = load_part("sat_branching", "satisfiable", "data.py")
    assert [satisfiable(make(formula)) for formula in sets[2][:6]] == [True, False] * 3


def test_better_heuristics_need_fewer_decisions(small_judge: SubmissionJudge) -> None:
    task = small_judge.task
    texts = [FIRST, task.starter_files()["branching.py"].decode(), task.reference_files()["branching.py"].decode()]
    worst, baseline, reference = (small_judge.judge(submission(text), "test") for text in texts)
    assert isinstance(worst, Grade)
    assert isinstance(baseline, Grade)
    assert isinstance(reference, Grade)
    assert 1 <= reference.score < baseline.score < worst.score < 1000


def test_a_formula_that_takes_too_many_decisions_is_given_up(small_judge: SubmissionJudge) -> None:
    judge = SubmissionJudge(small_judge.task, small_judge.sandbox)
    judge.data = small_judge.data
    judge._evaluate.__globals__["CAP"] = 3
    outcome = judge.judge(submission(FIRST), "test")
    assert isinstance(outcome, Grade), outcome
    assert outcome.scores["most"] == 3
    assert outcome.scores["given_up"] >= 1


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_a_heuristic_that_gives_no_open_literal_is_told_so(
    small_judge: SubmissionJudge, text: str, expected: str
) -> None:
    outcome = small_judge.judge(submission(text), "validation")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


def test_changed_solver_or_forged_count_has_no_effect(small_judge: SubmissionJudge) -> None:
    honest = small_judge.judge(submission(FIRST), "test")
    forged = f"import sys\nprint('decisions: 1')\nsys.stderr.write('{{\"decisions\": 1}}')\n{FIRST}"
    solver = b"class Search:\n    satisfiable, decisions = True, 1\n"
    tricked = small_judge.judge({**submission(forged), "solver.py": solver, "weights.json": b"{}"}, "test")
    assert isinstance(honest, Grade), honest
    assert isinstance(tricked, Grade), tricked
    assert tricked.scores == honest.scores


def test_the_hidden_formulas_are_not_in_the_sandbox() -> None:
    hidden = load_judge("sat_branching").data.hidden
    look = f"import os\nfound = [os.listdir('/data'), os.path.exists({str(hidden)!r})]\n"
    outcome = judge_submission("sat_branching", look + "def choose(clauses):\n    raise ValueError(found)\n")
    assert isinstance(outcome, InvalidSubmission), outcome
    assert "[['formulas.json'], False]" in outcome.reason
