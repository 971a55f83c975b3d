"""The search that uses your heuristic: DPLL (branching and unit propagation) without clause learning.

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
"""Maximum decisions of a formula; an unfinished search counts as this many."""


class Search:
    """The search of one formula: read the open clauses and decide literals until it is done.

    Arguments:
        clauses: lists of three literals; literal -7 means that variable 7 is false.
    """

    def __init__(self, clauses: list[list[int]]) -> None:
        self.clauses = np.array(clauses)
        variables = int(np.abs(self.clauses).max())
        # By literal: 1 is true, -1 is false, 0 is open. Negative literals index from the end.
        self._waiting = [np.zeros(2 * variables + 1, dtype=np.int8)]
        self._here = self._waiting[0]
        self.decisions = 0
        self.satisfiable: bool | None = None
        """Whether the formula is satisfiable; `None` during the search."""
        self._advance()

    def open_clauses(self) -> list[list[int]]:
        """The open clauses without their false literals: two or three literals each."""
        values = self._here[self.clauses]
        unsatisfied = ~(values > 0).any(1)
        return [
            [literal for literal, value in zip(clause, worth, strict=True) if value == 0]
            for clause, worth in zip(self.clauses[unsatisfied].tolist(), values[unsatisfied].tolist(), strict=True)
        ]

    def decide(self, literal: int) -> None:
        """Branch: search with `literal` true, then, if that does not satisfy the formula, with it false."""
        self.decisions += 1
        for chosen in (-literal, literal):
            branch = self._here.copy()
            branch[chosen], branch[-chosen] = 1, -1
            self._waiting.append(branch)
        self._advance()

    def _advance(self) -> None:
        """Propagate in the pending branches until a decision is needed or the search ends."""
        while self._waiting:
            self._here = self._waiting.pop()
            if self._propagate():
                if (self._here[self.clauses] > 0).any(1).all():
                    self.satisfiable = True
                return
        self.satisfiable = False

    def _propagate(self) -> bool:
        """Propagate unit clauses. Returns whether no clause is violated."""
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
                return False  # Conflict: a variable was forced to both values.


def decisions(clauses: list[list[int]], choose: Callable[[list[list[int]]], int]) -> int:
    """The number of decisions of a formula with this heuristic."""
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
