"""Kill small training runs at random times, resume them each time, and print the results.

Run by `test_kill_and_resume.py` in its own process. Children are forked as in `killing.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

import palaestra.engines.transformers
import palaestra.recipes.train.build  # noqa: F401
from palaestra.recipes.train import recipe as train
from palaestra.recipes.train.settings import TrainSettings
from palaestra.runs.run import Run

CONTROL = TrainSettings(
    env="CartPole-v1",
    iterations=20,
    num_envs=4,
    n_steps=8,
    hyperparameters={"n_epochs": 1},
    checkpoint_every=3,
    evaluation=3,
    threads=1,
    seed=3,
)
TOKEN = TrainSettings(
    env="CoTEnv-v0",
    env_kwargs={"problems": 10, "skills": ["clock", "percent"]},
    iterations=4,
    episodes=8,
    num_envs=8,
    hyperparameters={"group_size": 4},
    evaluation=2,
    checkpoint_every=1,
    threads=1,
    max_tokens=24,
    seed=3,
)


def child(folder: Path, settings: TrainSettings) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        try:
            if (folder / "settings.json").exists():
                with Run.open(folder) as run:
                    train.resume(run)
            else:
                train.train(settings, out=folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return process


def disturb(folder: Path, settings: TrainSettings, kills: int, generator: np.random.Generator) -> dict[str, object]:
    start = time.monotonic()
    assert os.waitpid(child(folder / "alone", settings), 0)[1] == 0
    whole = time.monotonic() - start
    killed = 0
    while True:
        process = child(folder / "disturbed", settings)
        if killed < kills:
            time.sleep(float(generator.uniform(0.05, 0.8 * whole)))
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0, status
            break
        killed += 1
    return {
        "kills": killed,
        **{n: json.loads((folder / n / "summary.json").read_text()) for n in ("alone", "disturbed")},
    }


def main(folder: Path, kills: int) -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    generator = np.random.default_rng(11)
    outcomes = {}
    for name, settings in (("control", CONTROL), ("token", TOKEN)):
        (folder / name).mkdir()
        outcomes[name] = disturb(folder / name, settings, kills, generator)
    print(json.dumps(outcomes))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
