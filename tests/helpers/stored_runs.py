"""Runs that are written by the store, without a model."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from tokenizers import Tokenizer

from palaestra.core.records import (
    Attempt,
    Completion,
    Decision,
    Example,
    Failure,
    FailureCause,
    Lesson,
    Message,
    Problem,
    Score,
    Segment,
    Trajectory,
    Usage,
)
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.settings import to_plain
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.runs.files import to_data
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

SKILLS = {"addition": ("carry", "plain"), "clock": ("past_hour", "within_hour")}
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m 100% a_b"
TOKENIZER = Tokenizer.from_file(str(files("palaestra") / "assets" / "nano" / "tokenizer.json"))


def attempt(skill: str, subskill: str, number: int, right: bool | None, text: str = "") -> Attempt:
    problem = Problem(
        f"{skill}/{subskill}/{number}",
        (Message("user", f"Question {skill} {subskill} {number}?"),),
        f"reference {number}",
        skill,
        subskill,
    )
    if right is None:
        return Attempt(problem, None, Failure(FailureCause.ENGINE, "the engine broke"))
    return Attempt(problem, Completion(text or f"answer {number}"), Score(1.0 if right else 0.0))


def attempts(right: int, failed: int = 0, text: str = "") -> list[Attempt]:
    """Five attempts at each of four subskills: the first `right` are right, the last `failed` failed."""
    listed: list[Attempt] = []
    for skill, subskills in SKILLS.items():
        for subskill in subskills:
            for number in range(5):
                k = len(listed)
                listed.append(attempt(skill, subskill, number, None if k >= 20 - failed else k < right, text))
    return listed


def lesson(*parts: tuple[str, str, int], reason: str = "open it") -> Lesson:
    examples = tuple(
        Example((Message("user", "q"),), "a", skill, subskill) for skill, subskill, count in parts for _ in range(count)
    )
    decisions = tuple(Decision(skill, "explore", reason, {subskill: count}) for skill, subskill, count in parts)
    return Lesson(examples, decisions)


def cost(phase: str, seconds: float = 1.0) -> LedgerEntry:
    return LedgerEntry(phase, "nano", 20, Usage(1100, 2200), seconds, 0.5)


def create(folder: Path, settings: TeachSettings | EvaluateSettings) -> Run:
    return Run.create(folder, "teach" if isinstance(settings, TeachSettings) else "evaluate", to_plain(settings))


def teach_run(folder: Path, *, text: str = "", failed: int = 0, reason: str = "open it") -> Path:
    """A run of two rounds: 8 of 20 right before, 14 after, and 12 examples in three subskills of four."""
    with create(folder, TeachSettings(rounds=2, lesson_size=6, seed=7)) as run:
        store = run.store
        store.add_attempts("0/validation", attempts(8, failed), cost("0/validation"))
        store.add_attempts("0/test", attempts(8, failed, text), cost("0/test"))
        store.add_lesson(1, lesson(("addition", "carry", 6), reason=reason), cost("1/lesson"))
        store.add_training(1, "aaaa1111", [(1, 2.0), (2, 1.5)], cost("1/train", 30.0))
        store.add_attempts("1/validation", attempts(10), cost("1/validation"))
        store.add_lesson(
            2, lesson(("addition", "carry", 2), ("clock", "past_hour", 3), ("clock", "midnight", 1)), cost("2/lesson")
        )
        store.add_training(2, "bbbb2222cccc3333", [(1, 1.8), (2, 1.0)], cost("2/train", 60.0))
        store.add_attempts("2/validation", attempts(13), cost("2/validation"))
        store.add_attempts("2/test", attempts(14, failed, text), cost("2/test"))
        run.write_summary({"recipe": "teach", "before": 40.0, "after": 70.0, "gain": 30.0, "kept_round": 2})
    return folder


def evaluate_run(folder: Path, attempts: Sequence[Attempt], *, ended: bool = True) -> Path:
    with create(folder, EvaluateSettings(split="validation", model="small-model")) as run:
        run.store.add_attempts("0/validation", attempts, cost("0/validation"))
        if ended:
            run.write_summary({"recipe": "evaluate"})
    return folder


def mark_running(folder: Path) -> None:
    """Make a run look as if this process worked on it."""
    (folder / "run.lock").write_text(f"{os.getpid()} {platform.node()}\n")


def make_trajectory(response: str, reward: float, group: int) -> Trajectory:
    prompt, ids = TOKENIZER.encode("What is 1 + 1?").ids, TOKENIZER.encode(response).ids
    info = {"prompt": "What is 1 + 1?", "response": response, "stop_reason": "end", "group": group}
    segments = (
        Segment(tuple(prompt), (False,) * len(prompt), (0.0,) * len(prompt)),
        Segment(tuple(ids), (True,) * len(ids), tuple(-0.5 * k for k in range(len(ids)))),
    )
    return Trajectory("palaestra/CoT-v0", 0, (reward,), segments, True, infos=(info,))


def write_train_run(folder: Path, seed: int = 0, iterations: int = 3, ended: bool = True) -> None:
    settings = fill_presets(make_settings({"env": "palaestra/CoT-v0", "seed": seed}))
    with Run.create(folder, "train", to_data(settings)) as run:
        for iteration in range(1, iterations + 1):
            episodes = [make_trajectory(f"step {iteration}: {HOSTILE}", k / 4, k // 2) for k in range(4)]
            metrics = {"reward": 0.1 * iteration, "episodes": 4.0, "seconds_update": 1.0}
            run.store.add_iteration(iteration, metrics, episodes, LedgerEntry(f"{iteration}/train", seconds=1.0))
        if ended:
            run.write_summary(
                {
                    "recipe": "train",
                    "gain": 12.5,
                    "gain_low": 10.0,
                    "gain_high": 15.0,
                    "unit": "percent",
                    "seconds": 4.0,
                }
            )
