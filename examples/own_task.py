"""A task of one's own, taught to the embedded student: see docs/write_a_task.md."""

import numpy as np

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TASKS, split_of


class Reversal:
    """Write a word backwards."""

    name = "reversal"
    drawn = True  # without end, so that a number of problems must be given or is 25
    max_tokens = 32  # of an answer

    def skills(self):
        return {"reversal": ("short", "long")}

    def _draw(self, part, split, generator):
        while True:
            size = 3 if part == "short" else 6
            word = "".join(generator.choice(list("abcdefgh"), size))
            if split_of(word) is split:  # the split belongs to the problem, not to the seed
                return word

    def problems(self, split, per_skill, seed, skills=()):
        generator = Seeds(seed).derive(self.name, split).generator()
        words: dict[str, str] = {}
        if per_skill > 50:
            raise TaskError(f"{self.name} has 50 problems a split; asked for {per_skill}")
        while len(words) < per_skill:
            part = ("short", "long")[len(words) % 2]
            words.setdefault(self._draw(part, split, generator), part)
        return [
            Problem(f"{self.name}/{word}", (Message("user", f"Reverse {word}"),), word[::-1], "reversal", part)
            for word, part in words.items()
        ]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        said = completion.text.split(":")[-1].strip()
        return Score(float(said == problem.reference), {"extracted": said})

    def write_examples(self, skill, subskill, count, generator: np.random.Generator):
        parts = [subskill] if subskill else ["short", "long"]
        words = [
            (parts[k % len(parts)], self._draw(parts[k % len(parts)], Split.TRAIN, generator)) for k in range(count)
        ]
        return [Example((Message("user", f"Reverse {w}"),), f"Answer: {w[::-1]}", "reversal", p) for p, w in words]


TASKS.register("reversal", Reversal, "write a word backwards")


if __name__ == "__main__":
    from palaestra import teach

    summary = teach(
        task="reversal", teacher="no_state", rounds=1, lesson_size=120, validation=10, test=20, epochs=4
    ).summary
    print(f"{summary['test_before']} -> {summary['test_after']} % of {summary['problems']} test problems")
