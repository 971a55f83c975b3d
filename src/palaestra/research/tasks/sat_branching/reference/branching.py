"""Look-ahead: try both values of the most promising variables, and take the one that shortens most clauses on both sides.

The score of a trial is the weighted number of clauses with two remaining literals. The weight of a clause is the frequency of
its negated literals, because the next propagation uses these clauses.
"""

from __future__ import annotations

TRIED = 24
CONFLICT = 10_000.0
"""The score of a side that fails at once and needs no search."""


def choose(clauses: list[list[int]]) -> int:
    weight: dict[int, float] = {}
    places: dict[int, list[int]] = {}
    for place, clause in enumerate(clauses):
        for literal in clause:
            weight[literal] = weight.get(literal, 0.0) + (5.0 if len(clause) == 2 else 1.0)
            places.setdefault(literal, []).append(place)

    def promise(variable: int) -> float:
        return both(weight.get(variable, 0.0), weight.get(-variable, 0.0))

    best, literal = -1.0, 0
    for variable in sorted({abs(one) for one in weight}, key=promise, reverse=True)[:TRIED]:
        true, false = (worth(clauses, places, weight, one) for one in (variable, -variable))
        if both(true, false) > best:
            # Try the less constrained side first; it is more likely to be satisfiable.
            best, literal = both(true, false), variable if true < false else -variable
    return literal


def both(one: float, other: float) -> float:
    """The score of a variable: the product of the scores of its sides, or their sum if one is 0."""
    return 1024 * (one + 0.01) * (other + 0.01) + one + other


def worth(clauses: list[list[int]], places: dict[int, list[int]], weight: dict[int, float], literal: int) -> float:
    """Propagate a literal and return the score of the clauses with two remaining literals."""
    true, todo, shortened = {literal}, [literal], set()
    while todo:
        for place in places.get(-todo.pop(), ()):
            free = []
            for one in clauses[place]:
                if one in true:
                    break
                if -one not in true:
                    free.append(one)
            else:
                if not free:
                    return CONFLICT
                if len(free) == 1:
                    true.add(free[0])
                    todo.append(free[0])
                else:
                    shortened.add(place)
    total = 0.0
    for place in shortened:
        if not any(one in true for one in clauses[place]):
            total += sum(weight.get(-one, 0.0) for one in clauses[place] if -one not in true)
    return total
