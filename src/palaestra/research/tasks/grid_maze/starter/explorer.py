"""The baseline: follow the wall on the right. Its memory is its direction."""

from __future__ import annotations

MOVES = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
CLOCKWISE = "NESW"


def act(observation: dict, memory: str) -> tuple[str, str]:
    view = observation["view"]
    middle = len(view) // 2
    facing = CLOCKWISE.index(memory or "N")
    if memory and not observation["moved"]:
        return memory, memory  # The last step failed: repeat it.
    for turn in (1, 0, 3, 2):  # Right, ahead, left, back.
        action = CLOCKWISE[(facing + turn) % 4]
        down, right = MOVES[action]
        if view[middle + down][middle + right] != "#":
            return action, action
    return "N", "N"
