"""Train a tiny language model by PPO with the settings of a file and evaluate it, as the judge does with other seeds.

The model reads a few letters and must write them backwards, then `end`. It starts from random weights. The environment, the
policy and the algorithm are palaestra's.

    python3 practice.py settings.json            one training, about 20 seconds on one core
    python3 practice.py settings.json --seeds 3  three of them
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

LETTERS = "abcdef"
SIGNS = ("pad", "end", "say", *LETTERS)
LENGTH = 3
EPISODES = 2048
"""Episodes of a training; the settings define how many are in an iteration."""
HELD_OUT = 60
"""Held-out questions of the 216; the others are for training."""

SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 16, "tie_word_embeddings": False, "initializer_range": 0.08,
}  # fmt: skip
"""The architecture of the model."""


def train(settings: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Train with these settings and evaluate on the held-out questions. `reward` is their mean, from 0 to 1."""
    import numpy as np

    from palaestra.core.seeding import Seeds
    from palaestra.envs.token import TokenVectorEnv
    from palaestra.rl.collection import collect_responses
    from palaestra.rl.policies.language_model import LanguageModelPolicy
    from palaestra.rl.ppo import PPO, PPOConfig

    seeds = Seeds(seed).derive("tune_ppo")
    tokenizer, model = tiny_model(seeds.derive("weights").integer())
    questions = [(a, b, c) for a in LETTERS for b in LETTERS for c in LETTERS]
    order = seeds.derive("questions").generator().permutation(len(questions))
    prompts = [[SIGNS.index(letter) for letter in questions[k]] + [SIGNS.index("say")] for k in order]

    def environment(prompts: Sequence[list[int]]) -> TokenVectorEnv:
        return TokenVectorEnv(
            prompts, nothing, token_reward=reward, tokenizer=tokenizer, num_envs=64, max_tokens=LENGTH + 2, chat=False
        )

    policy = LanguageModelPolicy(model, "head", settings["temperature"], len(SIGNS), seeds=seeds.derive("critic"))
    fields = {name: value for name, value in settings.items() if name not in ("episodes", "temperature", "target_kl")}
    ppo = PPO(policy, PPOConfig(**fields, target_kl=settings["target_kl"] or None), seeds.derive("ppo"))
    learning = environment(prompts[HELD_OUT:])
    learning.reset(seed=seeds.derive("order").integer(), options={"episodes": 0})
    iterations = EPISODES // settings["episodes"]
    returns: list[float] = []
    for number in range(iterations):
        rollout = collect_responses(
            learning, policy, settings["episodes"], seeds.derive("choices"), first=number * settings["episodes"]
        )
        returns += rollout.stats.returns
        ppo.update(rollout, number + 1, 1.0 - number / iterations)
    # Evaluate at temperature 1, whatever the training temperature.
    policy.temperature = 1.0
    asked = environment(prompts[:HELD_OUT])
    answers = collect_responses(asked, policy, 4 * HELD_OUT, seeds.derive("asked"), seed=0, first=0)
    parts = {"reward": answers.stats.returns, "late": returns[-len(returns) // 4 :], "first": returns[:256]}
    return {name: float(np.mean(values)) for name, values in parts.items()}


def reward(prompt: Any, said: Sequence[int]) -> float:
    """Reward a quarter for each letter, and for the end, at its correct position."""
    wanted = [*reversed(prompt.ids[:LENGTH]), SIGNS.index("end")]
    return 1 / len(wanted) if len(said) <= len(wanted) and said[-1] == wanted[len(said) - 1] else 0.0


def nothing(response: Any) -> float:
    """The reward of a whole response in addition to its tokens."""
    return 0.0


def tiny_model(seed: int) -> tuple[Any, Any]:
    """Make a tokenizer with one token per character, and a two-layer Llama with random weights."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({sign: k for k, sign in enumerate(SIGNS)}, unk_token="pad"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="pad", eos_token="end")
    special = {"bos_token_id": None, "eos_token_id": SIGNS.index("end"), "pad_token_id": SIGNS.index("pad")}
    config = LlamaConfig(vocab_size=len(SIGNS), **SHAPE, **special)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return tokenizer, LlamaForCausalLM(config).eval()


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with open(asked.settings, encoding="utf-8") as file:
        settings = json.load(file)
    for seed in range(asked.seeds):
        sys.stdout.write(f"seed {seed}: {json.dumps(train(settings, seed))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
