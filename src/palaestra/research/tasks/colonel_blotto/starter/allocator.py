"""The baseline: soldiers are distributed in proportion to the values of the fields."""

VALUES = [1, 2, 3, 4, 5]
SOLDIERS = 100


def allocate(mine: list[list[int]], theirs: list[list[int]]) -> list[int]:
    division = [SOLDIERS * value // sum(VALUES) for value in VALUES]
    division[-1] += SOLDIERS - sum(division)
    return division
