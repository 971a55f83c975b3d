"""Train nano on the worked examples: few of the skills that it has mastered, and those of the hardest skills twice as often."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import torch

from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.models.registry import load
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision

MASTERED = {"addition", "subtraction", "division", "comparison", "units"}
HARD = {"long_multiplication", "number_theory", "sequences", "multiplication", "ordering"}
REHEARSED = 60
"""Examples of each mastered skill."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seeds = Seeds(parser.parse_args().seed)
    torch.set_num_threads(1)
    examples, seen = [], Counter[str]()
    with open("/data/train.jsonl", encoding="utf-8") as file:
        for row in map(json.loads, file):
            skill = row["skill"]
            seen[skill] += 1
            times = 2 if skill in HARD else int(skill not in MASTERED or seen[skill] <= REHEARSED)
            examples += [Example((Message("user", row["question"]),), row["response"])] * times
    student = SupervisedStudent(load("nano"), Supervision("full", epochs=3, batch_size=16, learning_rate=1e-3))
    student.learn(examples, seeds)
    student.save(Path("student"))


if __name__ == "__main__":
    main()
