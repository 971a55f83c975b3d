"""A whole PPO step against TRL's PPOTrainer: generate, judge, 10 epochs of updates, on the same model.

16 responses of 64 tokens to prompts of 32, 10 epochs, minibatches of 16, a reference with KL 0.05, a reward
model, one torch thread. TRL's PPO has a policy, a value model, a reference and a reward model of their own; ours
has the same (`separate`), or the value head on the policy's trunk (`head`), which is our default. The ratio is
that of the default; the other is printed beside it.

TRL removed PPO after 1.12: `pip install --no-deps --target FOLDER trl==1.12.0`, then `--trl FOLDER`.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from _common import arguments, finish, median
from _models import load, prompts

TOKENS, RESPONSES, EPOCHS = 64, 16, 10


def main() -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    options = arguments(__doc__ or "", threads=1, models=("gpt2",), trl="folder with a TRL that still has PPO")
    if options.trl:
        sys.path.insert(0, options.trl)
    try:
        from trl.experimental.ppo import PPOTrainer  # noqa: F401
    except ImportError:
        print("this TRL has no PPO any more: pip install --no-deps --target FOLDER trl==1.12.0, then --trl FOLDER")
        print(json.dumps({"benchmark": "ppo_vs_trl", "skipped": "no PPO in TRL"}))
        return
    steps = 2 if options.quick else 5
    cases: dict[str, Any] = {}
    for name in options.models:
        ours, theirs = measure(name, steps)
        rate = RESPONSES * TOKENS
        cases[name] = {
            "ratio": round(median(theirs) / median(ours["head"]), 2),
            "ratio_separate_critic": round(median(theirs) / median(ours["separate"]), 2),
            "palaestra_tokens_per_second": {critic: round(rate / median(times)) for critic, times in ours.items()},
            "trl_tokens_per_second": round(rate / median(theirs)),
            "seconds": {**{c: [round(t, 2) for t in ts] for c, ts in ours.items()}, "trl": [round(t, 2) for t in theirs]},
        }  # fmt: skip
        print(name, cases[name], flush=True)
    finish("ppo_vs_trl", min(case["ratio"] for case in cases.values()), steps=steps, cases=cases)


def measure(name: str, steps: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of whole steps, taken in turns: after each of TRL's, one of ours with either critic."""
    mine = {critic: our_step(name, critic) for critic in ("head", "separate")}
    ours: dict[str, list[float]] = {critic: [] for critic in mine}

    def turn() -> None:
        for critic, step in mine.items():
            start = time.perf_counter()
            step()
            ours[critic].append(time.perf_counter() - start)

    theirs = run_theirs(name, steps + 1, turn)
    return {critic: times[1:] for critic, times in ours.items()}, theirs[1:]


def our_step(name: str, kind: str) -> Callable[[], None]:
    """One whole step of ours, each time it is called."""
    import copy

    from palaestra.core.seeding import Seeds
    from palaestra.envs.token import RLHFVectorEnv
    from palaestra.rewards.model import RewardModel
    from palaestra.rl.collection import collect_responses
    from palaestra.rl.policies.language_model import (
        LanguageModelCritic,
        LanguageModelPolicy,
        ReferencePolicy,
        apply_kl_penalty,
    )
    from palaestra.rl.ppo import PPO, PPOConfig

    model, tokenizer = load(name)
    env = RLHFVectorEnv(
        prompts(len(tokenizer), 64),
        RewardModel(_classifier(model, tokenizer), tokenizer),
        tokenizer=tokenizer,
        num_envs=RESPONSES,
        max_tokens=TOKENS,
    )
    env._is_end[:] = False
    critic: Any = "head"
    if kind == "separate":
        critic = LanguageModelCritic(copy.deepcopy(model).base_model, int(model.config.hidden_size))
    policy = LanguageModelPolicy(model, critic, vocabulary=len(tokenizer))
    reference = ReferencePolicy(policy)
    config = PPOConfig(
        learning_rate=1e-6,
        critic_learning_rate=1e-6,
        gamma=1.0,
        n_epochs=EPOCHS,
        batch_size=RESPONSES,
        clip_range_vf=0.2,
    )
    algorithm = PPO(policy, config, Seeds(0))
    env.reset(seed=0, options={"episodes": 0})
    count = itertools.count()

    def step() -> None:
        number = next(count)
        rollout = collect_responses(env, policy, RESPONSES, Seeds(0), first=number * RESPONSES)
        apply_kl_penalty(rollout, reference.logprobs_BT(rollout), 0.05)
        algorithm.update(rollout, number)
        assert rollout.num_actions == RESPONSES * TOKENS

    return step


def run_theirs(name: str, steps: int, turn: Callable[[], None]) -> list[float]:
    """TRL's steps; `turn` is called behind each, and its time is not counted."""
    import copy

    import torch
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    model, tokenizer = load(name)
    data = Dataset.from_list([{"input_ids": ids} for ids in prompts(len(tokenizer), 64)])
    value, reward = _classifier(model, tokenizer), _classifier(model, tokenizer)
    durations: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = PPOConfig(
            folder,
            per_device_train_batch_size=RESPONSES,
            gradient_accumulation_steps=1,
            num_mini_batches=1,
            num_ppo_epochs=EPOCHS,
            response_length=TOKENS,
            total_episodes=RESPONSES * steps,
            learning_rate=1e-6,
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            save_strategy="no",
            num_sample_generations=0,
            gradient_checkpointing=False,
            local_rollout_forward_batch_size=RESPONSES,
            temperature=1.0,
            logging_strategy="no",
        )
        trainer = PPOTrainer(
            args=config,
            processing_class=tokenizer,
            model=model,
            ref_model=copy.deepcopy(model),
            reward_model=reward,
            train_dataset=data,
            value_model=value,
            eval_dataset=data,
        )
        inner, started = trainer.log, time.perf_counter()

        def time_step(*args: Any, **kwargs: Any) -> Any:
            nonlocal started
            durations.append(time.perf_counter() - started)
            result = inner(*args, **kwargs)
            with torch.enable_grad():  # TRL logs where it needs no gradients.
                turn()
            started = time.perf_counter()
            return result

        trainer.log = time_step
        trainer.train()
    return durations[:steps]


def _classifier(model: Any, tokenizer: Any) -> Any:
    """A reward or value model of the same shape, with random weights."""
    from transformers import AutoModelForSequenceClassification

    config = model.config.__class__(**{**model.config.to_dict(), "num_labels": 1})
    config.pad_token_id = tokenizer.pad_token_id
    return AutoModelForSequenceClassification.from_config(config).eval()


if __name__ == "__main__":
    main()
