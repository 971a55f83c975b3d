"""The baseline: every field gets the share of the soldiers that it is worth."""

VALUES = [1, 2, 3, 4, 5]
SOLDIERS = 100


def allocate(mine: list[list[int]], theirs: list[list[int]]) -> list[int]:
    division = [SOLDIERS * value // sum(VALUES) for value in VALUES]
    division[-1] += SOLDIERS - sum(division)
    return division
