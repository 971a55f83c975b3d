"""Search all hidden formulas at once, with the submission as the branching heuristic."""

from __future__ import annotations

import json

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

CAP = 1000
"""Maximum decisions of a formula; an unfinished search counts as this many."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    # The task's own copy of the solver, not the search in the agent's workspace.
    make = load_function(evaluation.task.folder / "starter" / "solver.py", "Search")
    formulas = json.loads((evaluation.hidden / f"{evaluation.split}.json").read_text(encoding="utf-8"))
    searches = [make(clauses) for clauses in formulas]
    with evaluation.program("branching.py") as program:
        while running := [search for search in searches if search.satisfiable is None and search.decisions < CAP]:
            states = [search.open_clauses() for search in running]
            chosen = program.map("choose", [[clauses] for clauses in states])
            for search, clauses, literal in zip(running, states, chosen, strict=True):
                search.decide(_check_literal(literal, clauses))
    counts = np.array([max(search.decisions, 1) for search in searches], dtype=float)
    return {
        "decisions": float(np.exp(np.log(counts).mean())),
        "most": float(counts.max()),
        "given_up": float(sum(search.satisfiable is None for search in searches)),
    }


def _check_literal(literal: object, clauses: list[list[int]]) -> int:
    # A decided or unknown variable would make the search endless.
    if type(literal) is not int or not any(literal in clause or -literal in clause for clause in clauses):
        raise SubmissionError(
            f"choose must return a literal, a whole number such as 7 or -7, whose variable occurs in the clauses that it "
            f"was given; got {str(literal)[:60]!r}"
        )
    return literal
