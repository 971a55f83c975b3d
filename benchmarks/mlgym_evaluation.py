"""How long judging a game of MLGym takes, against its evaluator in one process without a sandbox.

    PALAESTRA_MLGYM=CHECKOUT python benchmarks/mlgym_evaluation.py [TASK ...]

Prints the ratio of the medians, plain and judged in turn; at most 5 is the goal.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from palaestra.research.mlgym import load_mlgym
from palaestra.research.places import sandbox_for
from palaestra.research.records import Grade

RUNS = 3
GAMES = ("battleOfSexes", "prisonersDilemma", "blotto")


def measure(checkout: Path, name: str) -> str:
    task = load_mlgym(checkout, name)
    judge = task.judge(sandbox_for(task))
    (file,) = task.submission.files
    files = {file: task.starter_files()[file]}
    folder = (checkout / next(one for one in task.file.starter_code if one.endswith(file))).parent
    plain, ours = [], []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, task.evaluator_place], cwd=folder, stdout=subprocess.DEVNULL, check=True)
        middle = time.perf_counter()
        outcome = judge.judge(files, "test")
        assert isinstance(outcome, Grade), outcome
        plain.append(middle - start)
        ours.append(time.perf_counter() - middle)
    before, after = statistics.median(plain), statistics.median(ours)
    return f"{name}: plain {before:.2f} s, judged {after:.2f} s, ratio {after / before:.1f} ({outcome.isolation})"


def main() -> None:
    checkout = Path(os.environ["PALAESTRA_MLGYM"]).resolve()
    for name in sys.argv[1:] or GAMES:
        sys.stdout.write(measure(checkout, name) + "\n")


if __name__ == "__main__":
    main()
