"""Keep a map and walk towards the possible places of the goal, as if unknown squares were free.

The memory contains the map around the start as text, and the possible rows and columns of the goal, which every compass reading
narrows.
"""

from __future__ import annotations

import heapq
import json

MOVES = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
REACH = 24
"""The maximum distance of a square from the start in one direction."""
SIDE = 2 * REACH + 1
UNKNOWN = 1.5
"""The extra cost of a step to an unknown square, which may be a wall."""
Place = tuple[int, int]


def act(observation: dict, memory: str) -> tuple[str, str]:
    state = json.loads(memory) if memory else {"here": [REACH, REACH], "map": "?" * SIDE**2, "box": [0, SIDE - 1] * 2}
    row, column = state["here"]
    if memory and observation["moved"]:
        row, column = row + MOVES[state["action"]][0], column + MOVES[state["action"]][1]
    squares, view, box = list(state["map"]), observation["view"], state["box"]
    middle = len(view) // 2
    for r, line in enumerate(view, row - middle):
        for c, sign in enumerate(line, column - middle):
            if 0 <= r < SIDE and 0 <= c < SIDE:
                squares[r * SIDE + c] = sign
                if sign == "G":
                    box = [r, r, c, c]
    for axis, here in enumerate((row, column)):
        sign = observation["goal"][axis]
        if sign >= 0:
            box[2 * axis] = max(box[2 * axis], here + sign)
        if sign <= 0:
            box[2 * axis + 1] = min(box[2 * axis + 1], here + sign)
    action = first_step((row, column), squares, box)
    kept = {"here": [row, column], "map": "".join(squares), "box": box, "action": action}
    return action, json.dumps(kept)


def first_step(here: Place, squares: list[str], box: list[int]) -> str:
    """The first step of the cheapest path to the goal, or to an unknown square that may contain it."""
    low_row, high_row, low_column, high_column = box
    best, todo = {here: 0.0}, [(0.0, here, "")]
    while todo:
        _, (row, column), first = heapq.heappop(todo)
        sign = squares[row * SIDE + column]
        if sign == "G" or (sign == "?" and low_row <= row <= high_row and low_column <= column <= high_column):
            return first
        for action, (down, right) in MOVES.items():
            r, c = row + down, column + right
            if not (0 <= r < SIDE and 0 <= c < SIDE) or squares[r * SIDE + c] == "#":
                continue
            cost = best[row, column] + (UNKNOWN if squares[r * SIDE + c] == "?" else 1.0)
            if cost < best.get((r, c), 1e9):
                best[r, c] = cost
                # A lower bound: the distance to the box of possible goals.
                left = max(low_row - r, 0, r - high_row) + max(low_column - c, 0, c - high_column)
                heapq.heappush(todo, (cost + left, (r, c), first or action))
    return "N"
