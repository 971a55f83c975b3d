"""Random 3-SAT formulas at the threshold, for practice and for the hidden splits. Half of them are satisfiable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.research.tasks.data import load_function

RATIO = 4.26
VARIABLES = (80, 90)
EACH = 12
"""The number of satisfiable and of unsatisfiable formulas in a set."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    for path in (public / "formulas.json", hidden / "validation.json", hidden / "test.json"):
        path.write_text(json.dumps(formulas(rng)), encoding="utf-8")


def formulas(rng: np.random.Generator) -> list[list[list[int]]]:
    """Generate equally many satisfiable and unsatisfiable formulas, in turns."""
    search = load_function(Path(__file__).parent / "starter" / "solver.py", "Search")
    found: dict[bool, list[list[list[int]]]] = {True: [], False: []}
    while min(len(some) for some in found.values()) < EACH:
        formula = drawn(int(rng.integers(VARIABLES[0], VARIABLES[1] + 1)), rng)
        some = found[satisfiable(search(formula))]
        if len(some) < EACH:
            some.append(formula)
    return [formula for pair in zip(found[True], found[False], strict=True) for formula in pair]


def drawn(variables: int, rng: np.random.Generator) -> list[list[int]]:
    """Generate clauses of three different variables, randomly negated."""
    clauses = []
    for _ in range(round(RATIO * variables)):
        chosen = rng.choice(variables, 3, replace=False) + 1
        clauses.append([int(literal) for literal in chosen * rng.choice([-1, 1], 3)])
    return clauses


def satisfiable(search: Any) -> bool:
    """Whether the formula is satisfiable."""
    choose = load_function(Path(__file__).parent / "starter" / "branching.py", "choose")
    while search.satisfiable is None:
        search.decide(choose(search.open_clauses()))
    return bool(search.satisfiable)
