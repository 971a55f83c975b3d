"""How long does judging a game of MLGym take, against its own evaluator in one process without a sandbox?

`--checkout DIR` names a checkout of MLGym. Both judge the task's own strategy, in turn. The ratio is the largest of the three
games' medians, ours over the evaluator's: at most 5 is the goal. A game makes about 100,000 calls, each of which goes to another
sandbox and back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from _common import alternate, arguments, finish, median

from palaestra.integrations.mlgym import load_mlgym
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import Grade

GAMES = ("battleOfSexes", "prisonersDilemma", "blotto")


def measure(checkout: Path, name: str, repetitions: int) -> dict[str, Any]:
    task = load_mlgym(checkout, name)
    judge = make_judge(task, sandbox_for(task))
    (file,) = task.submission.files
    files = {file: task.starter_files()[file]}
    folder = (checkout / next(starter for starter in task.file.starter_code if starter.endswith(file))).parent
    isolation: list[str] = []

    def run_plain() -> None:
        subprocess.run([sys.executable, task.evaluator_place], cwd=folder, stdout=subprocess.DEVNULL, check=True)

    def run_ours() -> None:
        outcome = judge.judge(files, "test")
        assert isinstance(outcome, Grade), outcome
        isolation.append(outcome.isolation)

    plain, ours = map(median, alternate(repetitions, run_plain, run_ours))
    print(f"{name}: plain {plain:.2f} s, judged {ours:.2f} s, ratio {ours / plain:.1f} ({isolation[-1]})")
    return {"game": name, "plain": round(plain, 2), "judged": round(ours, 2), "ratio": round(ours / plain, 2)}


def main() -> None:
    options = arguments(__doc__ or "", checkout="a checkout of MLGym")
    if not options.checkout:
        print("give --checkout DIR; without it there is nothing to judge")
        print(json.dumps({"benchmark": "mlgym_evaluation", "skipped": "no --checkout"}))
        return
    rows = [measure(Path(options.checkout).resolve(), name, 1 if options.quick else 5) for name in GAMES]
    finish("mlgym_evaluation", max(row["ratio"] for row in rows), rows=rows)


if __name__ == "__main__":
    main()
