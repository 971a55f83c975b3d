"""Kill a small teach run at random times, resume it each time, and print the result.

Run by `test_kill_and_resume.py` in its own process. Children are forked from a parent that has only imported
everything, so that a kill costs no import time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from palaestra.models import registry as models
from palaestra.recipes.teach import recipe as teach
from palaestra.runs.run import Run

SETTINGS = teach.TeachSettings(
    skills=("geometry", "addition"),
    rounds=2,
    lesson_size=8,
    validation=2,
    test=2,
    epochs=2,
    batch_size=4,
    threads=1,
    seed=0,
    checkpoint_seconds=0.05,
    keep="best",
    test_every_round=True,
    checkpoints="all",
    answer_tokens=16,
)


def work(folder: Path) -> None:
    """Start the run, or go on with it."""
    if (folder / "settings.json").exists():
        with Run.open(folder) as run:
            teach.resume(run)
    else:
        teach.teach(SETTINGS, out=folder)


def child(folder: Path) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        try:
            work(folder)
            status = 0
        finally:
            os._exit(status)
    return process


def main(folder: Path, kills: int, seed: int) -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    models.locate("nano")
    alone = folder / "alone"
    start = time.monotonic()
    assert os.waitpid(child(alone), 0)[1] == 0
    whole = time.monotonic() - start

    # A kill loses at most the piece of work at hand, so delays of up to a whole run move on.
    generator = np.random.default_rng(seed)
    killed, folders = 0, []
    while killed < kills:
        disturbed = folder / f"disturbed-{len(folders)}"
        folders.append(disturbed)
        done = False
        while not done:
            process = child(disturbed)
            if killed < kills:
                time.sleep(float(generator.uniform(0.02, 0.4 * whole)))
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                if os.WIFSIGNALED(status):
                    killed += 1
                    continue
                done = os.waitstatus_to_exitcode(status) == 0
                assert done, status
            else:
                done = os.waitpid(process, 0)[1] == 0
                assert done
    summaries = [json.loads((f / "summary.json").read_text()) for f in (alone, *folders)]
    print(json.dumps({"kills": killed, "runs": len(folders), "summaries": summaries}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
