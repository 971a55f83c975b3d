"""The baseline, a textbook rule: choose a variable that is frequent with both signs, above all in clauses of two literals."""


def choose(clauses: list[list[int]]) -> int:
    weights: dict[int, float] = {}
    for clause in clauses:
        for literal in clause:
            weights[literal] = weights.get(literal, 0.1) + (5.0 if len(clause) == 2 else 1.0)
    return max(weights, key=lambda literal: weights[literal] * weights.get(-literal, 0.1))
