"""Does a teacher that sees its student do better than one that does not, at equal data?

Whole `teach` episodes with the embedded students: every teacher against `no_state`, mathematics with `nano` (3 rounds of 160
examples, 450 test problems) and pictures with `nano-vlm` (3 rounds of 480, 900 test problems: a skill of pictures takes more
examples than one of mathematics), without rehearsal, 5 seeds (`--seeds`). The teachers were tuned on seeds 0 to 4, so these start at 5. Differences are
paired by seed, with a t interval. The ratio is the mean gain of the best teacher in mathematics over that of `no_state`. `--only TASK:TEACHER:SEED` runs one episode and prints its line.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import arguments, finish

from palaestra.core.statistics import mean_interval
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.teach.settings import TeachSettings

TEACHERS: dict[str, tuple[str, dict[str, str]]] = {
    "no_state": ("no_state", {}),
    "open_ended": ("open_ended", {}),
    "skill_list": ("skill_list", {}),
    "skill_tree": ("skill_tree", {}),
    "sfl": ("sfl", {}),
    "progress": ("progress", {}),
    "skill_tree/ucb": ("skill_tree", {"policy": "ucb"}),
}
STUDENTS = {"math-skills": "nano", "vision-skills": "nano-vlm"}
SIZES: dict[str, dict[str, Any]] = {
    "math-skills": {"lesson_size": 160},
    "vision-skills": {"lesson_size": 480, "learning_rate": 3e-4, "test": 50},
}


def episode(task: str, name: str, seed: int, threads: int, device: str, **size: Any) -> dict[str, Any]:
    teacher, options = TEACHERS[name]
    with tempfile.TemporaryDirectory() as folder:
        settings = TeachSettings(
            task=task,
            student=STUDENTS[task],
            teacher=teacher,
            teacher_kwargs=options,
            seed=seed,
            threads=threads,
            device=device,
            rehearsal=0.0,
            **(SIZES[task] | size),
        )
        summary = teach(settings, out=Path(folder) / "run").summary
    kept = ("before", "after", "gain", "gain_low", "gain_high", "examples", "seconds")
    row = {"task": task, "teacher": name, "seed": seed} | {key: summary[key] for key in kept}
    print(json.dumps(row), flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By task and teacher the mean gain, and the difference from `no_state`, paired by seed."""
    summary: dict[str, Any] = {}
    for task in STUDENTS:
        gains = {
            name: {row["seed"]: row["gain"] for row in rows if (row["task"], row["teacher"]) == (task, name)}
            for name in TEACHERS
        }
        for name, by_seed in gains.items():
            if not by_seed:
                continue
            paired = [gain - gains["no_state"][seed] for seed, gain in by_seed.items() if seed in gains["no_state"]]
            ahead = mean_interval(paired)
            summary[f"{task}/{name}"] = {
                "gain": round(statistics.mean(by_seed.values()), 2), "seeds": len(by_seed),
                "ahead": round(ahead.value, 2), "low": round(ahead.low, 2), "high": round(ahead.high, 2),
            }  # fmt: skip
            print(f"{task:<14}{name:<16}{summary[f'{task}/{name}']}", flush=True)
    return summary


def main() -> None:
    options = arguments(
        __doc__ or "",
        only="one episode, for example math-skills:no_state:5",
        read="lines of --only runs",
        device="where to compute (cpu)",
        seeds="how many seeds, from 5 on (5)",
    )
    device = options.device or "cpu"
    if options.only:
        task, name, seed = options.only.split(":")
        episode(task, name, int(seed), options.threads, device)
        return
    if options.read:
        lines = Path(options.read).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
    else:
        seeds = range(5, 6) if options.quick else range(5, 5 + int(options.seeds or 5))
        size: dict[str, Any] = {"rounds": 2, "lesson_size": 60, "validation": 4, "test": 6} if options.quick else {}
        tasks = list(STUDENTS)[:1] if options.quick else list(STUDENTS)
        rows = [episode(t, name, s, options.threads, device, **size) for s in seeds for t in tasks for name in TEACHERS]
    summary = table(rows)
    best = max(value["gain"] for key, value in summary.items() if key.startswith("math") and "no_state" not in key)
    finish("teachers", best / summary["math-skills/no_state"]["gain"], table=summary)


if __name__ == "__main__":
    main()
