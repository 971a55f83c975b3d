"""The baseline: cooperate first, then copy the opponent's last choice."""


def choose(mine: list[str], theirs: list[str]) -> str:
    return theirs[-1] if theirs else "C"
