"""Find a solution by local search and follow it; where there is none, shorten most clauses on both sides by look-ahead.

A satisfiable formula needs only the decisions that make propagation complete the solution. Each call checks the solutions that were
found so far. The score of a trial is the weighted number of clauses with two remaining literals. The weight of a clause is the
frequency of its negated literals, because the next propagation uses these clauses.
"""

from __future__ import annotations

import random

TRIED = 24
"""Variables that are tried in a look-ahead."""
CONFLICT = 10_000.0
"""The score of a side that fails at once and needs no search."""
FLIPS = 12_000
"""Steps of the local search in a whole formula. There is none below it."""
NOISE = 0.5
SOLUTIONS: list[set[int]] = []


def choose(clauses: list[list[int]]) -> int:
    solution = next((known for known in SOLUTIONS if satisfies(known, clauses)), None)
    if solution is None and all(len(clause) == 3 for clause in clauses):
        solution = search(clauses)
        if solution is not None:
            SOLUTIONS.append(solution)
    return look_ahead(clauses, solution)


def satisfies(solution: set[int], clauses: list[list[int]]) -> bool:
    return all(not solution.isdisjoint(clause) for clause in clauses)


def search(clauses: list[list[int]]) -> set[int] | None:
    """WalkSAT: flip a variable of a violated clause, often the one that breaks the fewest others."""
    rng = random.Random(0)
    places: dict[int, list[int]] = {}
    for place, clause in enumerate(clauses):
        for literal in clause:
            places.setdefault(literal, []).append(place)
    true = {variable * rng.choice((-1, 1)) for variable in sorted({abs(literal) for literal in places})}
    count = [sum(literal in true for literal in clause) for clause in clauses]
    violated = [place for place, number in enumerate(count) if not number]
    where = {place: k for k, place in enumerate(violated)}
    for _ in range(FLIPS):
        if not violated:
            return true
        clause = clauses[violated[rng.randrange(len(violated))]]
        breaks = [sum(count[place] == 1 for place in places.get(-literal, ())) for literal in clause]
        best = min(breaks)
        literal = rng.choice(clause) if best and rng.random() < NOISE else clause[breaks.index(best)]
        true.discard(-literal)
        true.add(literal)
        for place in places.get(literal, ()):
            count[place] += 1
            if count[place] == 1:
                k, last = where.pop(place), violated.pop()
                if last != place:
                    violated[k], where[last] = last, k
        for place in places.get(-literal, ()):
            count[place] -= 1
            if not count[place]:
                where[place] = len(violated)
                violated.append(place)
    return None


def look_ahead(clauses: list[list[int]], solution: set[int] | None) -> int:
    """The literal whose propagation shortens most clauses: of the solution, or on both sides."""
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
        if solution is not None:
            own = variable if variable in solution else -variable
            score = worth(clauses, places, weight, own)
            if score > best:
                best, literal = score, own
            continue
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
