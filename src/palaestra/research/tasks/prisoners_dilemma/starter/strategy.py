"""The baseline: cooperate first, then do what the other did last."""


def choose(mine: list[str], theirs: list[str]) -> str:
    return theirs[-1] if theirs else "C"
