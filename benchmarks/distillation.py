"""On-policy distillation against fine-tuning on the teacher's samples: the same teacher and number of prompts.

The teacher is `nano` after a `teach` episode in mathematics. A student `nano` learns from it by `train --algorithm distill`, or is
fine-tuned on what the teacher answers to as many prompts (one epoch). The tokens that were learned from are in the result. `--rates` are learning rates; the
best of each arm on seed 1000 is used. Accuracy on 10 problems of each of 18 skills that no arm has seen, greedy.
The ratio is the mean gain of distillation over that of fine-tuning.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from _common import ROWS, Row, arguments, collect_rows, finish

from palaestra.core.records import Example, Sampling, Split
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import mean_interval, report_on
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.train.recipe import train
from palaestra.runs.run import Run
from palaestra.students.supervised import fine_tune, supervision_for
from palaestra.tasks.base import get_hooks, make_task
from palaestra.tasks.evaluate import draw_problems, evaluate

TASK, STUDENT, EPISODES = "math-skills", "nano", 64
RATES = {"distill": (3e-5, 1e-4, 3e-4), "fine_tune": (1e-4, 3e-4, 1e-3)}


def make_teacher(folder: Path, quick: bool) -> str:
    """Teach a student and return the folder of its weights."""
    size = {"rounds": 1, "lesson_size": 60, "validation": 2, "test": 1} if quick else {"validation": 5, "test": 1}
    teach(task=TASK, student=STUDENT, seed=1000, out=folder / "teacher", progress=False, device="cpu", **size)
    return str(next((folder / "teacher" / "checkpoints").glob("round-*")))


def episode(arm: str, rate: float, seed: int, teacher: str, iterations: int) -> Row:
    task = make_task(TASK)
    tests = draw_problems(task, Split.TEST, 10, seed, tuple(task.skills()))
    if arm == "distill":
        with tempfile.TemporaryDirectory() as temporary:
            folder = train(
                env="palaestra/CoT-v0", env_kwargs={"task": TASK}, model=STUDENT, algorithm="distill", teacher=teacher,
                learning_rate=rate, iterations=iterations, episodes=EPISODES, num_envs=EPISODES, seed=seed, evaluation=0,
                out=Path(temporary) / "run", progress=False, device="cpu",
            ).folder  # fmt: skip
            with Run.open(folder, read_only=True) as run:
                tokens = int(run.store.metrics("num_tokens")[iterations]["num_tokens"])
            return measure(str(folder / "model"), tests) | {"tokens": tokens}
    loaded, teaching = models.load(STUDENT, device="cpu", trainable=True), models.load(teacher, device="cpu")
    prompts = draw_problems(task, Split.TRAIN, EPISODES * iterations // len(task.skills()), seed, tuple(task.skills()))
    engine = TransformersEngine(teaching.weights, teaching.tokenizer, teacher)
    attempts = evaluate(
        task,
        prompts,
        lambda: engine,
        sampling=Sampling(temperature=1.0, max_tokens=get_hooks(task).max_tokens),
        seed=seed,
    )
    answers = [attempt for attempt in attempts if attempt.completion is not None]
    examples = [Example(a.problem.messages, a.completion.text, a.problem.skill) for a in answers if a.completion.text]
    supervision = supervision_for(loaded.weights, "full", learning_rate=rate, epochs=1)
    fine_tune(loaded.weights, loaded.tokenizer, examples, supervision, Seeds(seed))
    tokens = sum(len(attempt.completion.token_ids) for attempt in answers)
    return measure(loaded, tests) | {"tokens": tokens}


def measure(student: Any, problems: Any) -> Row:
    loaded = models.load(student, device="cpu") if isinstance(student, str) else student
    task, engine = make_task(TASK), TransformersEngine(loaded.weights, loaded.tokenizer, STUDENT)
    sampling = Sampling(max_tokens=get_hooks(task).max_tokens)
    accuracy = report_on(evaluate(task, problems, lambda: engine, sampling=sampling), Split.TEST).accuracy
    return {"accuracy": round(100 * (accuracy or 0.0), 2)}


def main() -> None:
    options = arguments(__doc__ or "", seeds="how many seeds (3)", iterations="iterations of 64 episodes (20)", **ROWS)
    iterations, count = (
        int(options.iterations or (2 if options.quick else 20)),
        1 if options.quick else int(options.seeds or 3),
    )
    with tempfile.TemporaryDirectory() as temporary:
        teacher = make_teacher(Path(temporary), options.quick)
        task = make_task(TASK)
        common = {"teacher": teacher, "iterations": iterations}
        before = {
            seed: {
                name: measure(name, draw_problems(task, Split.TEST, 10, seed, tuple(task.skills())))["accuracy"]
                for name in (STUDENT, teacher)
            }
            for seed in range(count)
        }
        table: dict[str, Any] = {
            "start": [v[STUDENT] for v in before.values()],
            "teacher": [v[teacher] for v in before.values()],
        }
        gains: dict[str, list[float]] = {}
        for arm, rates in RATES.items():
            tuned = collect_rows(episode, [{"arm": arm, "rate": r, "seed": 1000, **common} for r in rates], options)
            best = max(tuned, key=lambda row: row["accuracy"])["rate"]
            rows = collect_rows(
                episode, [{"arm": arm, "rate": best, "seed": s, **common} for s in range(count)], options
            )
            gains[arm] = [row["accuracy"] - before[row["seed"]][STUDENT] for row in rows]
            gain = mean_interval(gains[arm])
            table[arm] = {
                "rate": best, "gain": [round(x, 1) for x in (gain.value, gain.low, gain.high)], "count": gain.count,
                "tokens": round(statistics.mean(row["tokens"] for row in rows)),
            }  # fmt: skip
    lead = mean_interval([a - b for a, b in zip(gains["distill"], gains["fine_tune"], strict=True)])
    table["difference"] = [round(x, 1) for x in (lead.value, lead.low, lead.high)]
    finish("distillation", statistics.mean(gains["distill"]) / (statistics.mean(gains["fine_tune"]) or 1.0), **table)


if __name__ == "__main__":
    main()
