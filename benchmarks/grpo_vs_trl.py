"""A whole GRPO step against TRL's GRPOTrainer: generate, judge, one gradient step, on the same model.

64 responses of 64 tokens to prompts of 32, groups of 8, no reference (beta 0), one pass, AdamW, one torch
thread. Both sides sample at temperature 1, clip by 0.2, weight all tokens alike (TRL's default) and call the
same reward function. TRL runs with and without gradient checkpointing (its default is with); the ratio is
against the faster of the two.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from _common import arguments, finish, median
from _models import load, prompts

TOKENS, RESPONSES, GROUP = 64, 64, 8


def score(text: str) -> float:
    """Something that differs from response to response."""
    return float(len(set(text.split())) % 7)


def main() -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    options = arguments(__doc__ or "", threads=1, models=("gpt2",))
    steps = 2 if options.quick else 5
    cases: dict[str, Any] = {}
    for name in options.models:
        ours, theirs = measure(name, steps)
        best = min(median(times) for times in theirs.values())
        rate = RESPONSES * TOKENS
        cases[name] = {
            "ratio": round(best / median(ours), 2), "palaestra_tokens_per_second": round(rate / median(ours)),
            "trl_tokens_per_second": {f"{m} checkpointing": round(rate / median(t)) for m, t in theirs.items()},
            "palaestra_seconds": [round(t, 2) for t in ours], "trl_seconds": {m: [round(t, 2) for t in ts] for m, ts in theirs.items()},
        }  # fmt: skip
        print(name, cases[name], flush=True)
    finish("grpo_vs_trl", min(case["ratio"] for case in cases.values()), steps=steps, cases=cases)


def measure(name: str, steps: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of whole steps, taken in turns: after each of TRL's, one of ours."""
    step, ours = our_step(name), []

    def turn() -> None:
        start = time.perf_counter()
        step()
        ours.append(time.perf_counter() - start)

    theirs = {mode: run_theirs(name, steps + 1, mode == "with", turn)[1:] for mode in ("without", "with")}
    return ours[1:], theirs


def our_step(name: str) -> Callable[[], None]:
    """One whole step of ours, each time it is called."""
    from palaestra.core.seeding import Seeds
    from palaestra.envs.token import TokenVectorEnv
    from palaestra.rl.collection import collect_responses
    from palaestra.rl.grpo import GRPO, GRPOConfig
    from palaestra.rl.policies.language_model import LanguageModelPolicy

    model, tokenizer = load(name)
    asked = prompts(len(tokenizer), 64)
    env = TokenVectorEnv(
        asked, lambda r: score(r.text), tokenizer=tokenizer, num_envs=RESPONSES, max_tokens=TOKENS, group_size=GROUP
    )
    env._is_end[:] = False
    policy = LanguageModelPolicy(model, vocabulary=len(tokenizer))
    algorithm = GRPO(policy, GRPOConfig(learning_rate=1e-6, group_size=GROUP, loss_aggregation="token"), Seeds(0))
    env.reset(seed=0, options={"episodes": 0})
    count = itertools.count()

    def step() -> None:
        number = next(count)
        rollout = collect_responses(env, policy, RESPONSES, Seeds(0), first=number * RESPONSES)
        algorithm.update(rollout, number)
        assert rollout.num_actions == RESPONSES * TOKENS

    return step


def run_theirs(name: str, steps: int, checkpointing: bool, turn: Callable[[], None]) -> list[float]:
    """TRL's steps; `turn` is called behind each, and its time is not counted."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = load(name)
    words = tokenizer.batch_decode(prompts(len(tokenizer), 64))
    durations: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder,
            per_device_train_batch_size=RESPONSES,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            beta=0.0,
            max_steps=steps,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            gradient_checkpointing=checkpointing,
            learning_rate=1e-6,
            dataloader_pin_memory=False,
            generation_kwargs={"min_new_tokens": TOKENS},
        )
        trainer = GRPOTrainer(
            model,
            lambda completions, **_: [score(text) for text in completions],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": text} for text in words]),
            processing_class=tokenizer,
        )
        whole = trainer.training_step

        def time_step(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = whole(*args, **kwargs)
            durations.append(time.perf_counter() - start)
            turn()
            return result

        trainer.training_step = time_step
        trainer.train()
    return durations


if __name__ == "__main__":
    main()
