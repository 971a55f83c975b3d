"""The baseline: copy the partner's last choice."""


def choose(mine: list[str], theirs: list[str]) -> str:
    return theirs[-1] if theirs else "A"
