"""Walk all hidden mazes at once. The submission sees the squares around it and its memory of the previous step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

MAZES = 80
STEPS = 300
SIGHT = 2
"""Visible squares in every direction."""
FAILS = 0.1
"""The probability that a step fails."""
MAX_MEMORY = 8000
"""Maximum characters of a memory."""
MOVES = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
Place = tuple[int, int]


@dataclass
class Walk:
    """One maze and the position of the walker."""

    free: np.ndarray
    here: Place
    goal: Place
    rng: np.random.Generator
    steps: int = 0
    moved: bool = False
    memory: str = field(default="")

    @property
    def there(self) -> bool:
        return self.here == self.goal

    def observation(self) -> dict[str, object]:
        """The observation of the submission."""
        return {
            "view": self._view(),
            "goal": [int(np.sign(self.goal[axis] - self.here[axis])) for axis in (0, 1)],
            "moved": self.moved,
            "step": self.steps,
        }

    def _view(self) -> list[str]:
        row, column = self.here
        view = []
        for r in range(row - SIGHT, row + SIGHT + 1):
            inside = range(column - SIGHT, column + SIGHT + 1)
            view.append("".join("G" if (r, c) == self.goal else "." if self._is_free(r, c) else "#" for c in inside))
        return view

    def _is_free(self, row: int, column: int) -> bool:
        rows, columns = self.free.shape
        return 0 <= row < rows and 0 <= column < columns and bool(self.free[row, column])

    def move(self, action: str) -> None:
        self.steps += 1
        row, column = self.here[0] + MOVES[action][0], self.here[1] + MOVES[action][1]
        # Sampled at every step, so that all submissions have the same failures.
        self.moved = self.rng.random() >= FAILS and self._is_free(row, column)
        if self.moved:
            self.here = (row, column)


def maze(rng: np.random.Generator) -> Walk:
    """Generate rooms in a grid, connected by a tree of doors and some more, and a distant goal."""
    rooms = int(rng.integers(8, 12))
    free = np.zeros((2 * rooms + 1, 2 * rooms + 1), dtype=bool)
    start = (int(rng.integers(rooms)), int(rng.integers(rooms)))
    way = [start]
    free[2 * start[0] + 1, 2 * start[1] + 1] = True
    while way:
        row, column = way[-1]
        closed = [
            (r, c)
            for r, c in ((row + down, column + right) for down, right in MOVES.values())
            if 0 <= r < rooms and 0 <= c < rooms and not free[2 * r + 1, 2 * c + 1]
        ]
        if not closed:
            way.pop()
            continue
        r, c = closed[int(rng.integers(len(closed)))]
        free[row + r + 1, column + c + 1] = free[2 * r + 1, 2 * c + 1] = True
        way.append((r, c))
    for _ in range(rooms):
        # Remove a wall between two rooms. This makes loops, so that following a wall may lead in circles.
        r, c = int(rng.integers(1, 2 * rooms)), int(rng.integers(1, 2 * rooms))
        if (r + c) % 2:
            free[r, c] = True
    here = (2 * start[0] + 1, 2 * start[1] + 1)
    far = distances(free, here)
    rooms_far = [place for place, steps in far.items() if place[0] % 2 and place[1] % 2 and steps >= 2 * rooms]
    if not rooms_far:
        rooms_far = [max(far, key=lambda place: far[place])]
    return Walk(free, here, rooms_far[int(rng.integers(len(rooms_far)))], rng)


def distances(free: np.ndarray, here: Place) -> dict[Place, int]:
    """The number of steps from `here` to every free square."""
    found, todo = {here: 0}, deque([here])
    while todo:
        row, column = todo.popleft()
        for down, right in MOVES.values():
            place = (row + down, column + right)
            if free[place] and place not in found:
                found[place] = found[row, column] + 1
                todo.append(place)
    return found


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    walks = [maze(evaluation.generator("maze", number)) for number in range(MAZES)]
    shortest = [distances(walk.free, walk.here)[walk.goal] for walk in walks]
    with evaluation.program("explorer.py") as program:
        for _ in range(STEPS):
            walking = [walk for walk in walks if not walk.there]
            if not walking:
                break
            chosen = program.map("act", [[walk.observation(), walk.memory] for walk in walking])
            for walk, answer in zip(walking, chosen, strict=True):
                action, walk.memory = _check_answer(answer)
                walk.move(action)
    returns = [1.0 - walk.steps / STEPS if walk.there else 0.0 for walk in walks]
    detours = [walk.steps / steps for walk, steps in zip(walks, shortest, strict=True) if walk.there]
    return {
        "return": float(np.mean(returns)),
        "reached": len(detours) / MAZES,
        "detour": float(np.mean(detours)) if detours else 0.0,
    }


def _check_answer(answer: object) -> tuple[str, str]:
    if not isinstance(answer, list) or len(answer) != 2 or not all(isinstance(part, str) for part in answer):
        raise SubmissionError(
            f"act must return two texts, the action and the memory for the next step; got {str(answer)[:80]!r}"
        )
    action, memory = answer
    if action not in MOVES:
        raise SubmissionError(f"an action must be one of {', '.join(MOVES)}; got {action[:60]!r}")
    if len(memory) > MAX_MEMORY:
        raise SubmissionError(f"a memory must have at most {MAX_MEMORY} characters; got {len(memory)}")
    return action, memory
