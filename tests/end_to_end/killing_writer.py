"""Kill `palaestra teach` with a language model as the writer at random times, resume it, and print the result.

Run by `test_kill_with_a_writer.py` in its own process. The model is that test's server, which survives every kill.
Children are forked as in `killing.py`; each runs the command line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sqlite3
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.cli.main import main as command

SIZE = [
    "--skill", "geometry", "--skill", "percent", "--rounds", "2", "--lesson-size", "8", "--validation", "3", "--test", "1",
    "--answer-tokens", "12", "--epochs", "1", "--threads", "1", "--seed", "5", "--checkpoint-seconds", "0.1",
    "--in-flight", "3",
]  # fmt: skip


def child(arguments: list[str], life: str, imported: Path | None = None) -> int:
    """The command in a process of its own; returns its number.

    Arguments:
        life: its key to the service, which tells by it whose calls it sees.
        imported: a file for what it has imported at its end.
    """
    process = os.fork()
    if process == 0:
        status: Any = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.environ["PALAESTRA_API_KEY"] = life
            sys.argv = ["palaestra", *arguments]
            command()
        except SystemExit as ended:
            status = ended.code
            if imported is not None:
                imported.write_text("\n".join(sys.modules))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status if isinstance(status, int) else 1)
    return process


def read(cache: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of the cache, none where it is not there yet."""
    if not cache.exists():
        return []
    # Closed before the next child is forked: SQLite's locks do not survive a fork.
    with contextlib.closing(sqlite3.connect(cache, timeout=30)) as database:
        known = database.execute("SELECT name FROM sqlite_master WHERE name='answers'").fetchone()
        return database.execute(query).fetchall() if known else []


def calls(cache: Path) -> int:
    """How many calls were begun."""
    return sum(count for (count,) in read(cache, "SELECT COUNT(*) FROM calls"))


def wait(cache: Path, whole: float, generator: np.random.Generator) -> None:
    """Until a random instant: of the run, or, every other time, soon after a random one of its calls has begun."""
    if generator.random() < 0.5:
        time.sleep(float(generator.uniform(0.02, 0.35 * whole)))
        return
    goal, give_up = calls(cache) + 1 + int(generator.integers(6)), time.monotonic() + 0.5 * whole
    while calls(cache) < goal and time.monotonic() < give_up:
        time.sleep(0.005)
    time.sleep(float(generator.uniform(0.0, 0.08)))


def main(folder: Path, model: str, kills: int, seed: int, teacher: list[str]) -> None:
    torch.set_num_threads(1)

    def start(name: str, life: int = 0, imported: Path | None = None) -> int:
        if (folder / name / "settings.json").exists():
            return child(["resume", str(folder / name)], f"{name}/{life}")
        own = ["--writer", model, "--cache", str(folder / f"{name}.sqlite"), "--out", str(folder / name)]
        size = [*SIZE, "--rounds", "1"] if imported else SIZE
        return child(["teach", *size, *teacher, *own], f"{name}/{life}", imported)

    # What a run imports on its way is imported here before the others start: they are at work at once.
    assert os.waitpid(start("first", imported=folder / "imported"), 0)[1] == 0
    for module in (folder / "imported").read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    began = time.monotonic()
    assert os.waitpid(start("alone"), 0)[1] == 0
    whole = time.monotonic() - began

    generator = np.random.default_rng(seed)
    runs: dict[str, list[list[str]]] = {}
    killed = 0
    while killed < kills:
        name, over = f"disturbed-{len(runs)}", False
        cache, runs[name] = folder / f"{name}.sqlite", []
        while not over:
            process = start(name, len(runs[name]))
            if killed < kills:
                wait(cache, whole, generator)
                os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            over = not os.WIFSIGNALED(status)
            assert not over or os.waitstatus_to_exitcode(status) == 0, status
            killed += not over
            runs[name].append([json.loads(data)["text"] for (data,) in read(cache, "SELECT data FROM answers")])
    print(json.dumps({"kills": killed, "answered": runs}))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
