"""Kill `teach` in every stage of a skill discovery, resume it, and print the summaries.

Run by `test_kill_in_discovery.py` in its own process. The test's server creates the file `now` at the call that it
does not answer, which is the time of the kill. Children are forked as in `killing.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

import palaestra.envs.lesson
import palaestra.students.student
import palaestra.teachers.model_writer
import palaestra.teachers.quality.base
import palaestra.teachers.skills.discovery  # noqa: F401
from palaestra.core.records import Message, Request
from palaestra.engines.openai import OpenAIEngine
from palaestra.models import registry as models
from palaestra.recipes.teach import recipe as teach
from palaestra.runs.run import Run


def child(folder: Path, settings: dict[str, Any]) -> int:
    """The run, from its start or from where it was, in a process of its own."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            if (folder / "settings.json").exists():
                with Run.open(folder) as run:
                    teach.resume(run)
            else:
                teach.teach(out=folder, **settings)
            status = 0
        finally:
            os._exit(status)
    return process


def main(folder: Path, url: str, settings: dict[str, Any]) -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    # What is imported at the first load, and at the first call, is imported now.
    models.load("nano", device="cpu")
    OpenAIEngine(f"{url}#warm-up").generate([Request((Message("user", "warm up"),))])
    kills, summaries = 0, []
    for name in ("alone", "disturbed"):
        # A model of its own for each run: the server tells by it whose calls it sees.
        model = f"{url}#{name}"
        own = settings | {"writer": model, "discover": model, "cache": str(folder / f"{name}.sqlite")}
        over = False
        while not over:
            process = child(folder / name, own)
            ended, status = 0, 0
            while not ended and not (folder / "now").exists():
                time.sleep(0.01)
                ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                (folder / "now").unlink()
            over = not os.WIFSIGNALED(status)
            assert not over or os.waitstatus_to_exitcode(status) == 0, status
            kills += not over
        summaries.append(json.loads((folder / name / "summary.json").read_text()))
    print(json.dumps({"kills": kills, "summaries": summaries}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
