"""Compare the time of the submission with that of the baseline, on the same hidden prompts in turns. Its tokens must be the same."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

FILE, COUNT = "generate.py", 40


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    rounds = json.loads((evaluation.hidden / f"{evaluation.split}.json").read_text(encoding="utf-8"))
    ratios, seconds = [], []
    # The baseline runs in a sandbox like the submission's own, so that both have the same overhead.
    original = replace(evaluation, files=evaluation.task.starter_files())
    with original.program(FILE) as baseline, evaluation.program(FILE) as program:
        for prompts in rounds:
            times, answers = [], []
            for side in (baseline, program):
                start = time.perf_counter()
                answers.append(side.call("generate", prompts, COUNT))
                times.append(time.perf_counter() - start)
            if answers[1] != answers[0]:
                raise SubmissionError(
                    f"generate must return the same tokens as the baseline; got {str(answers[1])[:80]}"
                )
            ratios.append(times[0] / times[1])
            seconds.append(times[1])
    return {"speedup": statistics.median(ratios), "seconds": statistics.median(seconds)}
