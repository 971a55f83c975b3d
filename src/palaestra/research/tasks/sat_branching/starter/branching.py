"""The baseline: choose the most frequent literal of the open clauses."""


def choose(clauses: list[list[int]]) -> int:
    counts: dict[int, int] = {}
    for clause in clauses:
        for literal in clause:
            counts[literal] = counts.get(literal, 0) + 1
    return max(counts, key=lambda literal: counts[literal])
