"""Is `evaluate` as fast as calling `generate` by hand on the same batches?

Both answer the same problems in the same batches (sorted by length, padded on the left). By hand
means tokenised beforehand and decoded never; `evaluate` tokenises, decodes, scores, and stores the
attempts in a run folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from _common import alternate, arguments, finish, median

from palaestra.chat.rendering import prompt_ids
from palaestra.core.records import Sampling, Split
from palaestra.engines.transformers import TransformersEngine
from palaestra.models import registry as models
from palaestra.runs.run import Run
from palaestra.tasks.evaluate import evaluate
from palaestra.tasks.math.task import MathSkills

BATCH, MAX_TOKENS = 64, 72


def main() -> None:
    options = arguments(__doc__ or "")
    import torch

    model, task = models.load("nano", device="cpu"), MathSkills()
    problems = task.problems(Split.TEST, 15 if options.quick else 30, seed=0)
    problems = problems[: len(problems) // 256 * 256]  # Whole chunks, so that the batches are the same.
    engine = TransformersEngine.from_loaded(model, BATCH)
    prompts = []
    for start in range(0, len(problems), 256):
        prompts += sorted((prompt_ids(model.tokenizer, p.messages) for p in problems[start : start + 256]), key=len)

    def by_hand() -> None:
        for start in range(0, len(prompts), BATCH):
            rows = prompts[start : start + BATCH]
            length = max(map(len, rows))
            ids = torch.tensor([[0] * (length - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
            with torch.inference_mode():
                model.weights.generate(ids, attention_mask=mask, max_new_tokens=MAX_TOKENS, do_sample=False)

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", "evaluate", {}) as run:
            evaluate(
                task,
                problems,
                lambda: engine,
                sampling=Sampling(MAX_TOKENS),
                keep=lambda attempts, cost: run.store.add_attempts("0/test", attempts, cost),
            )

    by_hand(), ours()  # warm up
    hand, mine = alternate(3 if options.quick else 7, by_hand, ours)
    print(
        f"{len(problems)} problems in batches of {BATCH}: by hand {median(hand)} s, evaluate {median(mine)} s (medians)"
    )
    finish(
        "evaluate_overhead",
        median(hand) / median(mine),
        problems=len(problems),
        repetitions=len(hand),
        generate_seconds=median(hand),
        evaluate_seconds=median(mine),
        problems_a_second=round(len(problems) / median(mine), 1),
    )


if __name__ == "__main__":
    main()
