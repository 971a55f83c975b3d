"""SmolLM2-135M-Instruct is taught arithmetic on a laptop's cores: before, after, cost and time, 3 seeds.

Whole `teach` episodes with a LoRA adapter: addition and subtraction of up to two digits, asked before and after in exactly the
same way, with no shots. `palaestra models get smollm2` fetches the student. The ratio is the mean accuracy after over before.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

from palaestra.core.records import Attempt
from palaestra.core.statistics import mean_interval, report_on
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.runs.run import Run

SKILLS = ("addition", "subtraction")


def episode(seed: int, threads: int, **size: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        settings = TeachSettings(
            student="smollm2",
            skills=SKILLS,
            teacher="skill_tree",
            method="lora",
            device="cpu",
            threads=threads,
            seed=seed,
            **size,
        )
        result = teach(settings, out=Path(folder) / "run")
        with Run.open(result.folder, read_only=True) as run:
            rounds = result.summary["rounds"]
            parts = {
                name: count_by_subskill(run.store.attempts(f"{r}/test"))
                for name, r in (("before", 0), ("after", rounds))
            }
            phases = {phase: round(cost.seconds, 1) for phase, cost in run.store.costs().items()}
    kept = ("before", "after", "gain", "gain_low", "gain_high", "examples", "cost", "seconds")
    row = {"seed": seed} | {key: result.summary[key] for key in kept} | {"parts": parts, "phases": phases}
    print(json.dumps(row), flush=True)
    return row


def count_by_subskill(attempts: list[Attempt]) -> dict[str, list[int]]:
    """Right answers and all scored ones by skill and subskill."""
    report = report_on(attempts)
    return {f"{s.name}/{sub.name}": [sub.correct, sub.count] for s in report.slices for sub in s.slices}


def main() -> None:
    options = arguments(__doc__ or "")
    size: dict[str, Any] = {
        "rounds": 1, "lesson_size": 64, "validation": 4, "test": 30, "epochs": 3, "learning_rate": 5e-4, "answer_tokens": 32,
    }  # fmt: skip
    if options.quick:
        size |= {"rounds": 1, "lesson_size": 8, "validation": 2, "test": 4, "epochs": 1}
    rows = [episode(seed, options.threads, **size) for seed in ((0,) if options.quick else (0, 1, 2))]
    gain = mean_interval([row["gain"] for row in rows])
    print(f"gain {gain.value:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}] points over {len(rows)} seeds")
    before = statistics.mean(row["before"] for row in rows)
    after = statistics.mean(row["after"] for row in rows)
    finish("smollm2_teaching", after / before if before else float("inf"), runs=rows)


if __name__ == "__main__":
    main()
