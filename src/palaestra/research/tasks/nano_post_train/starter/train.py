"""The baseline: train nano once on ten examples of each skill. Writes student/.

python3 train.py --seed 0
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from palaestra.core.records import Example, Message
from palaestra.core.seeding import Seeds
from palaestra.models.registry import load
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision

PER_SKILL = 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seeds = Seeds(parser.parse_args().seed)
    torch.set_num_threads(1)
    rows: dict[str, list[Example]] = {}
    with open("/data/train.jsonl", encoding="utf-8") as file:
        for row in map(json.loads, file):
            example = Example((Message("user", row["question"]),), row["response"])
            rows.setdefault(row["skill"], []).append(example)
    student = SupervisedStudent(load("nano"), Supervision("full", epochs=1, batch_size=8, learning_rate=1e-4))
    student.learn([example for part in rows.values() for example in part[:PER_SKILL]], seeds)
    student.save(Path("student"))


if __name__ == "__main__":
    main()
