"""A student with a scripted accuracy per round, so that a test knows which round is best."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from palaestra.core.records import Example, Request, Split
from palaestra.core.seeding import Seeds
from palaestra.engines.mock import MockEngine
from palaestra.tasks.base import make_task

SKILLS = ("addition", "geometry")


class ScriptedStudent:
    """Answers a share of all questions that depends on how many examples it has learned. It learns in no time.

    Arguments:
        start: `"base"` counts the examples of a training, `"last"` adds them to those before.
    """

    plan: ClassVar[Mapping[int, float]] = {}
    """The share of right answers by the number of examples learned."""
    answers: ClassVar[dict[str, str]] = {}

    def __init__(self, model: Any = None, supervision: Any = None, *, start: str = "base") -> None:
        self.name, self.start, self.seen = "scripted", start, 0

    @classmethod
    def following(cls, *shares: float, lesson: int, seed: int = 0, count: int = 40) -> type[ScriptedStudent]:
        """A class of students with these shares after 0, 1, 2 ... lessons, for the first problems of a seed."""
        task = make_task("math-skills")
        problems = [p for split in (Split.VALIDATION, Split.TEST) for p in task.problems(split, count, seed, SKILLS)]
        known = {problem.messages[-1].text: problem.reference for problem in problems}
        return type(
            "Planned", (cls,), {"plan": {lesson * k: share for k, share in enumerate(shares)}, "answers": known}
        )

    def engine(self) -> MockEngine:
        share = self.plan[self.seen]

        def reply(request: Request, index: int) -> str:
            asked = request.messages[-1].text
            return f"Answer: {self.answers[asked] if zlib.crc32(asked.encode()) % 100 < 100 * share else 'unknown'}"

        return MockEngine(reply)

    def restore(self) -> None:
        self.seen = 0

    def check(self, examples: Sequence[Example]) -> None:
        pass

    def learn(
        self,
        examples: Sequence[Example],
        seeds: Seeds,
        on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
        progress: Path | None = None,
    ) -> list[tuple[int, float]]:
        self.seen = len(examples) + (self.seen if self.start == "last" else 0)
        on_step(1, 1, 0.5)
        return [(1, 0.5)]

    def save(self, folder: Path) -> None:
        (folder / "seen.txt").write_text(str(self.seen), encoding="utf-8")

    def load(self, folder: Path) -> None:
        self.seen = int((folder / "seen.txt").read_text(encoding="utf-8"))

    def weights_sha256(self) -> str:
        return weights_of(self.seen)


def weights_of(seen: int) -> str:
    """The hash of a student that has learned so many examples."""
    return hashlib.sha256(str(seen).encode()).hexdigest()
