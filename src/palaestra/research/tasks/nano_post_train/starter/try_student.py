"""Evaluate student/ on the published test problems of test.jsonl: accuracy by skill. Takes about half a minute."""

import json
import sys

import torch

from palaestra.core.records import Completion, Message, Request, Sampling
from palaestra.engines.transformers import TransformersEngine
from palaestra.models.registry import load


def main() -> None:
    torch.set_num_threads(1)
    with open("test.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    student = load(sys.argv[1] if len(sys.argv) > 1 else "student")
    engine = TransformersEngine(student.weights, student.tokenizer)
    sampling = Sampling(max_tokens=72, temperature=0.0)
    replies = engine.generate([Request((Message("user", row["question"]),), sampling) for row in rows])
    right: dict[str, list[bool]] = {}
    for row, (reply, *_) in zip(rows, replies, strict=True):
        text = reply.text if isinstance(reply, Completion) else ""
        right.setdefault(row["skill"], []).append(text.rpartition("Answer:")[2].strip() == row["answer"])
    for skill, values in right.items():
        sys.stdout.write(f"{skill}: {sum(values) / len(values):.2f}\n")
    sys.stdout.write(f"all: {sum(map(sum, right.values())) / len(rows):.3f}\n")


if __name__ == "__main__":
    main()
