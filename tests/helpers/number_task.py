"""A fast research task: a number in a file; larger is better, at most 100."""

from __future__ import annotations

from pathlib import Path

TASK = """
name: number
title: A large number
description: Write a number into answer.txt.
metric: {name: value, direction: higher, low: 0, high: 101, scale: 10}
submission: {files: [answer.txt]}
limits: {steps: 8, seconds: 600, command_seconds: 20, validations: 3}
"""
EVALUATOR = """
from palaestra.research.tasks.task import SubmissionError


def evaluate(evaluation):
    text = evaluation.text("answer.txt").strip()
    if text == "break":
        raise RuntimeError("the evaluator is broken")
    try:
        number = float(text)
    except ValueError:
        raise SubmissionError(f"answer.txt holds a number; got {text[:20]!r}") from None
    if not 0 <= number <= 100:
        raise SubmissionError(f"the number lies between 0 and 100; got {number}")
    # On the test split everything is worth one more, so that the two are told apart.
    return {"value": number + (evaluation.split == "test")}
"""
BASELINE, BASELINE_TEST = 5.0, 6.0


def number_task(folder: Path) -> Path:
    """Write the task into a folder, and give its path."""
    created = folder / "number"
    for name, text in {
        "task.yaml": TASK,
        "evaluator.py": EVALUATOR,
        "starter/answer.txt": "5\n",
        "reference/answer.txt": "50\n",
    }.items():
        (created / name).parent.mkdir(parents=True, exist_ok=True)
        (created / name).write_text(text)
    return created
