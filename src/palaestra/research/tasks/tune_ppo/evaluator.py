"""Score PPO settings by the held-out reward of a tiny language model trained with them.

The training is that of the task's own copy of `starter/practice.py`, not of the agent's.
"""

from __future__ import annotations

import json
import math

import numpy as np

from palaestra.core.records import Json
from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

FILE = "settings.json"
TRAININGS = 2
EPISODES = 2048
NUMBERS = {
    "learning_rate": (1e-6, 0.03), "critic_learning_rate": (1e-6, 0.1), "gamma": (0.0, 1.0), "gae_lambda": (0.0, 1.0),
    "clip_range": (0.01, 1.0), "ent_coef": (0.0, 0.5), "vf_coef": (0.0, 5.0), "max_grad_norm": (0.01, 10.0),
    "target_kl": (0.0, 1.0), "temperature": (0.2, 3.0),
}  # fmt: skip
COUNTS = {"n_epochs": (1, 16), "episodes": (16, 512), "batch_size": (8, 512)}
STEPS = 1024
"""Maximum optimiser steps of a training, so that all trainings take about the same time."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    settings = _read_settings(evaluation.text(FILE))
    train = load_function(evaluation.task.folder / evaluation.task.starter / "practice.py", "train")
    seeds = [int(seed) for seed in evaluation.generator("seeds").integers(1 << 40, size=TRAININGS)]
    results: list[dict[str, float]] = [train(settings, seed) for seed in seeds]
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def _read_settings(text: str) -> Json:
    """Read the settings of a submission and check their bounds."""
    try:
        settings: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SubmissionError(f"{FILE} must contain one JSON object; {error}") from None
    known = {*NUMBERS, *COUNTS, "lr_schedule"}
    if not isinstance(settings, dict):
        raise SubmissionError(f"{FILE} must contain a JSON object of settings; got {type(settings).__name__}")
    if missing := sorted(known - set(settings)):
        raise SubmissionError(f"{FILE} must set all of {', '.join(sorted(known))}; missing: {', '.join(missing)}")
    if strange := sorted(set(settings) - known):
        raise SubmissionError(f"{FILE} accepts the settings {', '.join(sorted(known))}; got {str(strange)[:80]}")
    for name, (low, high) in NUMBERS.items():
        value = settings[name]
        if type(value) not in (int, float) or not low <= value <= high:  # No comparison holds for NaN.
            raise SubmissionError(f"{FILE}: {name} must be a number from {low:g} to {high:g}; got {str(value)[:40]}")
    for name, (least, most) in COUNTS.items():
        value = settings[name]
        if type(value) is not int or not least <= value <= most:
            raise SubmissionError(
                f"{FILE}: {name} must be a whole number from {least} to {most}; got {str(value)[:40]}"
            )
    if settings["lr_schedule"] not in ("constant", "linear", "cosine"):
        got = str(settings["lr_schedule"])[:40]
        raise SubmissionError(f"{FILE}: lr_schedule must be constant, linear or cosine; got {got}")
    steps = (
        EPISODES
        // settings["episodes"]
        * settings["n_epochs"]
        * math.ceil(settings["episodes"] / settings["batch_size"])
    )
    if steps > STEPS:
        raise SubmissionError(
            f"{FILE} needs {steps} optimiser steps, n_epochs * episodes / batch_size in each of "
            f"{EPISODES // settings['episodes']} iterations; the maximum is {STEPS}: use fewer epochs or larger batches"
        )
    return {name: float(settings[name]) if name in NUMBERS else settings[name] for name in known}
