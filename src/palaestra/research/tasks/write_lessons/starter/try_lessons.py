"""Train nano on lessons.jsonl as the judge does, and evaluate it on practice.jsonl: accuracy by skill, and some errors.

Takes about half a minute on one core. An answer counts if the text after the last "Answer:" equals the right one.
"""

import json
import sys

import torch

from palaestra.core.records import Completion, Example, Message, Request, Sampling
from palaestra.core.seeding import Seeds
from palaestra.models.registry import load
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision


def read_lines(name: str) -> list[dict[str, str]]:
    with open(name, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    torch.set_num_threads(1)
    examples = [Example((Message("user", row["question"]),), row["response"]) for row in read_lines("lessons.jsonl")]
    student = SupervisedStudent(load("nano"), Supervision("full", epochs=5, batch_size=8, learning_rate=5e-4))
    student.check(examples)
    student.learn(examples, Seeds(0))
    problems = read_lines("practice.jsonl")
    sampling = Sampling(max_tokens=72, temperature=0.0)
    replies = student.engine().generate([Request((Message("user", row["question"]),), sampling) for row in problems])
    wrong: dict[str, list[str]] = {row["skill"]: [] for row in problems}
    for row, (reply, *_) in zip(problems, replies, strict=True):
        text = reply.text if isinstance(reply, Completion) else str(reply)
        if text.rpartition("Answer:")[2].strip() != row["answer"]:
            wrong[row["skill"]].append(f"    {row['question']!r}: {text!r}, expected {row['answer']!r}\n")
    for skill, errors in wrong.items():
        count = sum(row["skill"] == skill for row in problems)
        sys.stdout.write(f"{skill}: {1 - len(errors) / count:.2f}\n{''.join(errors[:2])}")
    sys.stdout.write(f"all: {1 - sum(map(len, wrong.values())) / len(problems):.3f}\n")


if __name__ == "__main__":
    main()
