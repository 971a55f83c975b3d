"""Worked examples of the train split of `math-skills`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from palaestra.tasks.math.task import MathSkills

EXAMPLES = 200
"""Of each skill."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    task = MathSkills()
    rows = [
        {"skill": skill, "question": example.messages[-1].text, "response": example.response}
        for skill in task.skills()
        for example in task.write_examples(skill, "", EXAMPLES, rng)
    ]
    (public / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
