"""Train nano on lessons.jsonl as the judge does, and evaluate it on problems of your own: accuracy by skill, and some errors.

Takes about half a minute on one core. `--problems 40` uses more problems of each skill.
"""

import argparse
import json
import sys

import torch

from palaestra.core.records import Example, Message, Split
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Sampling
from palaestra.engines.models import load
from palaestra.learn.student import SupervisedStudent
from palaestra.learn.supervised import Supervision
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import evaluate

SKILLS = ("missing_number", "sequences", "groups", "change", "fractions", "geometry", "percent", "clock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with open("lessons.jsonl", encoding="utf-8") as file:
        lessons = [json.loads(line) for line in file]
    examples = [Example((Message("user", one["question"]),), one["response"]) for one in lessons]
    student = SupervisedStudent(load("nano"), Supervision("full", epochs=5, batch_size=8, learning_rate=5e-4))
    student.check(examples)
    student.learn(examples, Seeds(asked.seed))
    task = make_task("math-skills")
    problems = task.problems(Split.TRAIN, asked.problems, asked.seed + 1, SKILLS)
    attempts = evaluate(task, problems, student.engine, sampling=Sampling(max_tokens=72, temperature=0.0))
    for skill in SKILLS:
        mine = [attempt for attempt in attempts if attempt.problem.skill == skill]
        right = sum(attempt.outcome.value for attempt in mine)
        sys.stdout.write(f"{skill}: {right / len(mine):.2f}\n")
        for attempt in [attempt for attempt in mine if not attempt.outcome.value][:2]:
            question, wanted = attempt.problem.messages[-1].text, attempt.problem.metadata["worked"]
            sys.stdout.write(f"    asked {question!r}\n    said {attempt.completion.text!r}\n    right {wanted!r}\n")
    sys.stdout.write(f"all: {sum(attempt.outcome.value for attempt in attempts) / len(attempts):.3f}\n")


if __name__ == "__main__":
    main()
