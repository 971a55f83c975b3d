"""What does a student forget while it is taught, with and without rehearsal?

Whole `teach` episodes with the embedded students in mathematics and pictures: the earlier defaults (`plain`: 160 examples
in a lesson, 4 epochs, no rehearsal) against the defaults of `teach` (`default`), paired by seed. `--arm 'name={"setting": value}'` adds an arm.
A skill fell if an exact paired test over the problems of all seeds says so, corrected for the number of skills (Holm). The intervals of the skills
are t intervals over the seeds. The ratio is the mean gain in pictures of `default` over that of `plain`.

Rows that are in `--out` already are not measured again, so a stopped run continues with the same command:
`python benchmarks/forgetting.py --workers 8 --minutes 60 --seeds 0-4 --out forgetting.jsonl`.
"""

from __future__ import annotations

import json
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

from _common import ROWS, Row, arguments, collect_rows, finish

STUDENTS = {"math-skills": "nano", "vision-skills": "nano-vlm"}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {
        "rehearsal": 0.0,
        "lesson_size": 160,
        "epochs": 4,
        "learning_rate": 5e-4,
        "batch_size": 8,
        "optimizer": "adamw",
        "freeze_vision": False,
    },
    "default": {},
}
QUICK = {"rounds": 1, "lesson_size": 30, "validation": 2, "test": 4, "epochs": 1}


def episode(task: str, arm: str, values: dict[str, Any], seed: int) -> Row:
    """Run an episode. Returns its figures, and by skill the problems, those that became right and those that were lost."""
    import torch

    from palaestra.core.statistics import compare
    from palaestra.recipes.teach.recipe import teach
    from palaestra.runs.run import Run

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        values = {"task": task, "student": STUDENTS[task], "device": "cpu", "threads": torch.get_num_threads()} | values
        summary = teach(out=folder, progress=False, seed=seed, **values).summary
        with Run.open(folder, read_only=True) as run:
            before, after = (run.store.outcomes(f"{round_}/test") for round_ in (0, summary["kept_round"]))
    skills = {
        part.name: {"gain": part.gain.points, "problems": part.gain.count, "better": part.better, "worse": part.worse}
        for part in compare(before, after).parts
    }
    kept = ("before", "after", "gain", "gain_low", "gain_high", "examples", "rehearsed", "kept_round", "fell")
    return {name: summary[name] for name in kept} | {"skills": skills}


def summarize(rows: list[Row], arms: list[str]) -> dict[str, Any]:
    """By task and arm the gain, the gain minus that of the first arm, and the change of every skill."""
    from palaestra.core.statistics import holm, mean_interval, sign_flip_test

    table: dict[str, Any] = {}
    for task in STUDENTS:
        by_arm = {arm: {r["seed"]: r for r in rows if (r["task"], r["arm"]) == (task, arm)} for arm in arms}
        for arm, runs in by_arm.items():
            if not runs:
                continue
            gain = mean_interval([run["gain"] for run in runs.values()], -100, 100)
            first = by_arm[arms[0]]
            ahead = mean_interval(
                [run["gain"] - first[seed]["gain"] for seed, run in runs.items() if seed in first], -200, 200
            )
            seconds = max(run["seconds"] for run in runs.values())
            print(
                f"\n{task}, {arm}, {len(runs)} seeds: {gain.value:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]; minus {arms[0]} "
                f"{ahead.value:+.1f} [{ahead.low:+.1f}, {ahead.high:+.1f}]; at most {seconds:.0f} s"
            )
            parts = {
                skill: [run["skills"][skill] for run in runs.values()] for skill in next(iter(runs.values()))["skills"]
            }
            p_values = holm(
                [
                    sign_flip_test(
                        [Fraction(1)] * sum(p["better"] for p in several)
                        + [Fraction(-1)] * sum(p["worse"] for p in several)
                    )
                    for several in parts.values()
                ]
            )
            skills: dict[str, Any] = {}
            for (skill, several), p_value in zip(parts.items(), p_values, strict=True):
                change = mean_interval([part["gain"] for part in several], -100, 100)
                fell = p_value < 0.05 and change.value < 0
                skills[skill] = {
                    "gain": change.value,
                    "low": change.low,
                    "high": change.high,
                    "p": p_value,
                    "fell": fell,
                }
                print(
                    f"  {skill:<20}{change.value:+6.1f} [{change.low:+.1f}, {change.high:+.1f}]{'  fell' if fell else ''}"
                )
            figures = {"gain": gain.value, "low": gain.low, "high": gain.high, "ahead": ahead.value, "seconds": seconds}
            fell_skills = [skill for skill, part in skills.items() if part["fell"]]
            table[f"{task}/{arm}"] = figures | {"seeds": len(runs), "fell": fell_skills, "skills": skills}
    return table


def main() -> None:
    options = arguments(
        __doc__ or "",
        seeds="seeds, for example 0-4 (0-4)",
        tasks="tasks, separated by commas (both)",
        arms="arms, separated by commas (all)",
        arm="a further arm: NAME={...} with settings of teach in JSON",
        **ROWS,
    )
    name, _, values = options.arm.partition("=")
    arms = ARMS | ({name: json.loads(values)} if name else {})
    arms = {arm: arms[arm] for arm in (options.arms.split(",") if options.arms else arms)}
    first, _, last = (options.seeds or ("0" if options.quick else "0-4")).partition("-")
    tasks = options.tasks.split(",") if options.tasks else list(STUDENTS)
    if options.quick:
        arms = {arm: values | QUICK for arm, values in arms.items()}
    seeds = range(int(first), int(last or first) + 1)
    cells = [
        {"task": task, "arm": arm, "values": values, "seed": seed}
        for seed in seeds
        for task in tasks
        for arm, values in arms.items()
    ]
    rows = collect_rows(episode, cells, options)
    table = summarize(rows, list(arms))
    gains = [table.get(f"{tasks[-1]}/{arm}", {}).get("gain", 0.0) for arm in list(arms)[:2]]
    finish("forgetting", gains[-1] / gains[0] if gains[0] else 0.0, table=table)


if __name__ == "__main__":
    main()
