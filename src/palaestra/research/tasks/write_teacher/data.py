"""Worked examples and validation problems of `math-skills`, with which teachers are developed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from palaestra.core.records import Split
from palaestra.tasks.math.task import MathSkills

EXAMPLES, PROBLEMS = 256, 16
"""Of each skill."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    task = MathSkills()
    examples = [row for skill in task.skills() for row in task.write_examples(skill, "", EXAMPLES, rng)]
    problems = task.problems(Split.VALIDATION, PROBLEMS, int(rng.integers(1 << 40)))
    _write(public / "examples.jsonl", [(row.skill, row.messages[-1].text, row.response) for row in examples])
    _write(public / "problems.jsonl", [(row.skill, row.messages[-1].text, row.metadata["worked"]) for row in problems])


def _write(path: Path, rows: list[tuple[str, str, str]]) -> None:
    lines = [json.dumps(dict(zip(("skill", "question", "response"), row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
