"""Teach students with teacher.py as the judge does, with seeds and problems of your own.

    python3 practice.py               four students, about two minutes on one core
    python3 practice.py --students 8 --seed 100

Prints the gain of each student in percentage points, and the mean change of each skill's observed accuracy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.core.records import Completion, Example, Message, Problem, Score, Split
from palaestra.tasks.base import TaskHooks


def get_options() -> dict[str, Any]:
    """The options of `palaestra.envs.lesson.flat.FlatLessonVectorEnv` with which teachers are judged."""
    return {"rounds": 3, "lesson_size": 80, "first_lesson": 40, "validation": 16, "device": "cpu"}


class RecordedSkills(TaskHooks):
    """The examples and problems of /data, as a task."""

    name = "recorded-skills"

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[dict[str, str]]]] = {}
        for part in ("examples", "problems"):
            with open(f"/data/{part}.jsonl", encoding="utf-8") as file:
                for row in map(json.loads, file):
                    self._rows.setdefault(row["skill"], {}).setdefault(part, []).append(row)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self._rows, ())

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        rows = [row for skill in skills or self._rows for row in self._rows[skill]["problems"][:per_skill]]
        return [
            Problem(
                str(number),
                (Message("user", row["question"]),),
                row["response"],
                row["skill"],
                "",
                {"worked": row["response"]},
            )
            for number, row in enumerate(rows)
        ]

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        rows = self._rows[skill]["examples"]
        chosen = [rows[k % len(rows)] for k in range(count)]
        return [Example((Message("user", row["question"]),), row["response"], skill) for row in chosen]

    def score(self, problem: Problem, completion: Completion) -> Score:
        return Score(float(completion.text.strip() == problem.reference))


def main() -> None:
    import torch
    from teacher import plan_lessons

    from palaestra.envs.lesson.flat import FlatLessonVectorEnv

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    env = FlatLessonVectorEnv(given.students, RecordedSkills(), **get_options())
    tables, _ = env.reset(seed=given.seed)
    gains = np.zeros(given.students)
    for _ in range(env.rounds):
        actions = np.array(plan_lessons(list(env.skills), tables.tolist()), dtype=np.float32)
        tables, rewards, _, _, infos = env.step(actions)
        gains += rewards
    changes = np.mean([table[:, 2] for table in infos["final_obs"]], 0)
    for skill, change in zip(env.skills, changes, strict=True):
        sys.stdout.write(f"{skill:20} {100 * change:+6.1f}\n")
    sys.stdout.write(f"gains {np.round(100 * gains, 2).tolist()}, mean {100 * gains.mean():.2f}\n")


if __name__ == "__main__":
    main()
