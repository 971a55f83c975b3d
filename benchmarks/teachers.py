"""Which teacher teaches most with equal data? The reference table of the lesson scale.

Whole `teach` episodes with the embedded students, every teacher with the same seeds, problems and number of examples: mathematics with
`nano` (3 rounds of 160 examples, 450 test problems) and pictures with `nano-vlm` (3 rounds of 480, 900 test problems: a skill of pictures
takes more examples than one of mathematics), without rehearsal. The teachers were tuned on seeds 0 to 4, so these start at 5 (`--seeds`).
`--policy RUN` adds a teacher that `palaestra train --env palaestra/Lesson-v0` has trained.

The columns: gain on the test problems in points with a t interval over the seeds; its difference from `no_state`, paired by seed, with the
p-value of an exact sign-flip test, corrected for the number of teachers (Holm); the area under the curve of validation gains (their mean over
the rounds); the mean fall of the skills that fell; the fraction of runs that ended below their start; the fraction of distinct examples;
of the problems that the student solved in none of 32 tries, the fraction it solves at the first try and in 32 (`--tries 32`, mathematics only);
seconds. The ratio is the mean gain of the best teacher in mathematics over that of `no_state`.
"""

from __future__ import annotations

import statistics
import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from _common import ROWS, Row, arguments, collect_rows, finish

from palaestra.core.records import Problem, Sampling, Split
from palaestra.core.statistics import count_by_problem, holm, mean_interval, pass_at_k, sign_flip_test
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.recipes.teach.recipe import teach
from palaestra.runs.run import Run
from palaestra.tasks.base import get_hooks, make_task
from palaestra.tasks.evaluate import draw_problems, evaluate

TEACHERS: dict[str, tuple[str, dict[str, str]]] = {
    "no_state": ("no_state", {}),
    "open_ended": ("open_ended", {}),
    "skill_list": ("skill_list", {}),
    "skill_tree": ("skill_tree", {}),
    "sfl": ("sfl", {}),
    "progress": ("progress", {}),
    "skill_tree/ucb": ("skill_tree", {"policy": "ucb"}),
    "learned": ("learned", {}),
}
STUDENTS = {
    "math-skills": "nano",
    "vision-skills": "nano-vlm",
    "code-skills": "nano-coder",
    "tools-skills": "nano-coder",
}
SIZES: dict[str, dict[str, Any]] = {
    "math-skills": {"lesson_size": 160},
    "vision-skills": {
        "lesson_size": 480,
        "learning_rate": 3e-4,
        "test": 50,
        "optimizer": "adamw",
        "batch_size": 8,
        "freeze_vision": False,
    },
}
COLUMNS = ("area", "fall", "distinct", "seconds")
QUICK: dict[str, Any] = {"rounds": 2, "lesson_size": 60, "validation": 4, "test": 6}


def episode(task: str, teacher: str, seed: int, policy: str = "", tries: int = 0, quick: bool = False) -> Row:
    import torch

    name, options = ("learned", {"policy": policy}) if teacher == "learned" else TEACHERS[teacher]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        values = {"threads": torch.get_num_threads(), "device": "cpu", "rehearsal": 0.0, **SIZES[task]}
        summary = teach(
            task=task, student=STUDENTS[task], teacher=name, teacher_kwargs=options, seed=seed, out=folder,
            progress=False, **(values | (QUICK if quick else {})),
        ).summary  # fmt: skip
        with Run.open(folder, read_only=True) as run:
            texts = [e.messages[-1].text for n in range(1, summary["rounds"] + 1) for e in run.store.lesson(n).examples]
        student = next((folder / "checkpoints").glob("round-*"), None)
        new = pass_at(str(student or STUDENTS[task]), task, tries) if tries and task == "math-skills" else {}
    falls = [min(0.0, part["gain"]) for part in summary["by_skill"].values()]
    return {
        **{key: summary[key] for key in ("before", "after", "gain", "gain_low", "gain_high", "examples", "ordered")},
        "area": round(statistics.mean(reward["points"] for reward in summary["rewards"]), 2),
        "fall": round(statistics.mean(falls), 2), "distinct": round(len(set(texts)) / len(texts), 3), **new,
    }  # fmt: skip


def count_solved(model: str, task_name: str, tries: int, problems: list[Problem]) -> dict[str, tuple[int, int]]:
    loaded, task = models.load(model, device="cpu"), make_task(task_name)
    engine = TransformersEngine(loaded.weights, loaded.tokenizer, model)
    sampling = Sampling(temperature=1.0, count=tries, max_tokens=get_hooks(task).max_tokens)
    return dict(count_by_problem(evaluate(task, problems, lambda: engine, sampling=sampling)))


@cache
def find_unsolved(task: str, tries: int) -> list[Problem]:
    """The test problems that the student solves in none of some tries."""
    source = make_task(task)
    problems = list(draw_problems(source, Split.TEST, 10, 0, tuple(source.skills())))
    solved = count_solved(STUDENTS[task], task, tries, problems)
    return [problem for problem in problems if not solved[problem.id][0]]


def pass_at(model: str, task: str, tries: int) -> dict[str, float]:
    problems = find_unsolved(task, tries)
    counts = count_solved(model, task, tries, problems).values()
    return {
        f"new@{k}": round(100 * statistics.mean(pass_at_k(answers, correct, k) for correct, answers in counts), 2)
        for k in (1, tries)
    }


def table(rows: list[Row]) -> dict[str, Any]:
    """By task and teacher the mean of every column, and the difference from `no_state`, paired by seed."""
    summary: dict[str, Any] = {}
    for task in STUDENTS:
        by_teacher: dict[str, dict[int, Row]] = {}
        for row in rows:
            if row["task"] == task:
                by_teacher.setdefault(row["teacher"], {})[row["seed"]] = row
        first = by_teacher.get("no_state", {})
        leads = {
            name: [row["gain"] - first[seed]["gain"] for seed, row in runs.items() if seed in first]
            for name, runs in by_teacher.items()
        }
        p_values = dict(
            zip(
                [name for name in leads if name != "no_state"],
                holm(
                    [sign_flip_test([Fraction(str(round(x, 2))) for x in leads[n]]) for n in leads if n != "no_state"]
                ),
                strict=True,
            )
        )
        for name, runs in by_teacher.items():
            gain, lead = mean_interval([row["gain"] for row in runs.values()]), mean_interval(leads[name])
            columns = [name for name in next(iter(runs.values())) if name in COLUMNS or name.startswith("new@")]
            means = {
                column: round(statistics.mean(row[column] for row in runs.values()), 2)
                for column in columns
                if all(column in row for row in runs.values())
            }
            collapsed = statistics.mean(row["gain"] < 0 for row in runs.values())
            summary[f"{task}/{name}"] = {
                "seeds": len(runs), "gain": [round(x, 1) for x in (gain.value, gain.low, gain.high)],
                "ahead": [round(x, 1) for x in (lead.value, lead.low, lead.high)], "p": p_values.get(name),
                "below_start": round(collapsed, 2), **means,
            }  # fmt: skip
            print(f"{task:<14}{name:<16}{summary[f'{task}/{name}']}", flush=True)
    return summary


def main() -> None:
    options = arguments(
        __doc__ or "",
        tasks="tasks, separated by commas (both)",
        teachers="teachers, separated by commas (all)",
        policy="a run of palaestra train, for the teacher `learned`",
        tries="tries at the problems that were never solved (0)",
        seeds="how many seeds, from 5 on (5)",
        **ROWS,
    )
    tasks = options.tasks.split(",") if options.tasks else list(STUDENTS)
    names = options.teachers.split(",") if options.teachers else list(TEACHERS)
    seeds = 1 if options.quick else int(options.seeds or 5)
    cells: list[Row] = [
        {"task": task, "teacher": name, "seed": seed, "tries": int(options.tries or 0), "quick": options.quick}
        | ({"policy": options.policy} if name == "learned" else {})
        for seed in range(5, 5 + seeds)
        for task in (tasks[:1] if options.quick else tasks)
        for name in names
    ]
    summary = table(collect_rows(episode, cells, options))
    gains = {key: value["gain"][0] for key, value in summary.items() if key.startswith(tasks[0])}
    first = gains.pop(f"{tasks[0]}/no_state", 0.0)
    finish("teachers", max(gains.values(), default=0.0) / first if first else 0.0, table=summary)


if __name__ == "__main__":
    main()
