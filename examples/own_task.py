"""A custom task, taught to the embedded student: see docs/write_a_task.md."""

import numpy as np

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TASKS, TaskHooks, get_split

DIVISORS = {"tens": 10, "hundreds": 100}


class Remainders(TaskHooks):
    """Remainders of divisions by 10 and 100."""

    name = "remainders"
    is_procedural = True  # the problems are generated; 25 per skill by default
    max_tokens = 32  # maximum length of an answer

    def skills(self):
        return {"remainders": tuple(DIVISORS)}

    def _draw(self, part, split, generator):
        while True:
            number = int(generator.integers(1000, 100_000))
            question = f"What is {number} modulo {DIVISORS[part]}?"
            if get_split(question) is split:  # the split belongs to the problem, not to the seed
                return question, str(number % DIVISORS[part])

    def problems(self, split, per_skill, seed, skills=()):
        generator = Seeds(seed).derive(self.name, split).generator()
        problems: dict[str, Problem] = {}
        if per_skill > 1000:
            raise TaskError(f"{self.name} has 1000 problems per split; got per_skill={per_skill}")
        while len(problems) < per_skill:
            part = tuple(DIVISORS)[len(problems) % 2]
            question, answer = self._draw(part, split, generator)
            problems[question] = Problem(question, (Message("user", question),), answer, "remainders", part)
        return list(problems.values())

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        answer = completion.text.split(":")[-1].strip()
        return Score(float(answer == problem.reference), {"extracted": answer})

    def write_examples(self, skill, subskill, count, generator: np.random.Generator):
        examples = []
        for k in range(count):
            part = subskill or tuple(DIVISORS)[k % 2]
            question, answer = self._draw(part, Split.TRAIN, generator)
            examples.append(Example((Message("user", question),), f"Answer: {answer}", "remainders", part))
        return examples


TASKS.register("remainders", Remainders, "remainders of divisions")


if __name__ == "__main__":
    from palaestra import teach

    summary = teach(
        task="remainders", teacher="no_state", rounds=1, lesson_size=120, validation=10, test=40, epochs=4
    ).summary
    print(f"{summary['before']} -> {summary['after']} % of {summary['problems']} test problems")
