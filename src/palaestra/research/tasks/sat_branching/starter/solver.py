"""The search that your heuristic steers: DPLL, which is branching and unit propagation, without learning.

The evaluation runs this same search. Try your heuristic on the formulas of /data:

    python3 solver.py
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

import numpy as np

CAP = 1000
"""Decisions after which a formula is given up; it then counts as so many."""


class Search:
    """One formula at work: ask it for what is open, tell it a literal, until it is done.

    Arguments:
        clauses: lists of three literals; literal -7 says that variable 7 is false.
    """

    def __init__(self, clauses: list[list[int]]) -> None:
        self.clauses = np.array(clauses)
        variables = int(np.abs(self.clauses).max())
        # By literal: 1 is true, -1 is false, 0 is open; a negative literal counts from the end.
        self._waiting = [np.zeros(2 * variables + 1, dtype=np.int8)]
        self._here = self._waiting[0]
        self.decisions = 0
        self.satisfiable: bool | None = None
        """What was found; `None` while the search goes on."""
        self._advance()

    def open_clauses(self) -> list[list[int]]:
        """The clauses that are not satisfied yet, without the literals that are false: two or three literals each."""
        values = self._here[self.clauses]
        unsatisfied = ~(values > 0).any(1)
        return [
            [literal for literal, value in zip(clause, worth, strict=True) if value == 0]
            for clause, worth in zip(self.clauses[unsatisfied].tolist(), values[unsatisfied].tolist(), strict=True)
        ]

    def decide(self, literal: int) -> None:
        """Branch: search where `literal` is true, and then, unless that satisfies the formula, where it is false."""
        self.decisions += 1
        for chosen in (-literal, literal):
            branch = self._here.copy()
            branch[chosen], branch[-chosen] = 1, -1
            self._waiting.append(branch)
        self._advance()

    def _advance(self) -> None:
        """Propagate in the branches that wait, until there is something to decide, or the search has ended."""
        while self._waiting:
            self._here = self._waiting.pop()
            if self._propagate():
                if (self._here[self.clauses] > 0).any(1).all():
                    self.satisfiable = True
                return
        self.satisfiable = False

    def _propagate(self) -> bool:
        """Set the literals that stand alone in their clauses, as long as there are any; whether no clause is violated."""
        while True:
            values = self._here[self.clauses]
            unsatisfied = ~(values > 0).any(1)
            free = (values == 0).sum(1)
            if (unsatisfied & (free == 0)).any():
                return False
            alone = unsatisfied & (free == 1)
            if not alone.any():
                return True
            literals = self.clauses[alone][values[alone] == 0]
            self._here[literals], self._here[-literals] = 1, -1
            if (self._here[literals] < 0).any():
                return False  # A variable was forced both ways.


def decisions(clauses: list[list[int]], choose: Callable[[list[list[int]]], int]) -> int:
    """How many decisions a formula takes with that heuristic."""
    search = Search(clauses)
    while search.satisfiable is None and search.decisions < CAP:
        search.decide(choose(search.open_clauses()))
    return search.decisions


if __name__ == "__main__":
    from branching import choose

    with open("/data/formulas.json") as file:
        formulas = json.load(file)
    start = time.perf_counter()
    counts = [decisions(clauses, choose) for clauses in formulas]
    mean = math.exp(sum(math.log(max(count, 1)) for count in counts) / len(counts))
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{mean:.2f} decisions in the geometric mean of {len(counts)} formulas, {seconds:.1f} s\n")
