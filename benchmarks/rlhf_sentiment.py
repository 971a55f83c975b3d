"""RLHF end to end on one core: PPO against a reward model of praise, judged by another that it never sees.

The sentences are parted in three: a small GPT-2 learns to write from all of them but the held-out ones; a *proxy*
reward model is trained on one part and a *gold* one on another. PPO in `palaestra/RLHF-v0` raises the proxy, at a price for
every nat of divergence from where it started. Prompts are the first words of held-out sentences. What counts is the
gold reward on them (in its standard deviations over the untrained model's responses) and the KL. `--report FOLDER`
keeps the run: its report draws proxy against gold.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import arguments, finish
from reward_sentiment import HOW, Sentences, build_backbone, part, read_sentences, train_sentiment_reward

from palaestra.core.seeding import Seeds, plan_batches
from palaestra.core.statistics import mean_interval
from palaestra.rewards.model import RewardModel
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.students.batches import Encoded, collate, response_loss

TOKENS, WORDS = 20, 4


def main() -> None:
    options = arguments(
        __doc__ or "",
        threads=1,
        data="the sentences: JSON lines (.gz) with label and text",
        report="folder to keep the run in",
    )
    if not options.data:
        print(HOW)
        print(json.dumps({"benchmark": "rlhf_sentiment", "skipped": "no --data"}))
        sys.exit(0 if options.quick else 2)
    sentences = read_sentences(options.data)
    rows = []
    for seed in range(1 if options.quick else 3):
        rows.append(run_seed(sentences, seed, options.quick, options.report if seed == 0 else ""))
        print(json.dumps(rows[-1]), flush=True)
    finish("rlhf_sentiment", min(row["gold_gain_low"] for row in rows), rows=rows)


def run_seed(sentences: Sentences, seed: int, quick: bool, keep: str) -> dict[str, Any]:
    from palaestra import train

    start = time.perf_counter()
    seeds = Seeds(seed).derive("rlhf")
    held_out, for_proxy, for_gold = part(sentences, (0.1, 0.3, 0.6), seeds.derive("parts"))
    proxy, gold = train_sentiment_reward(for_proxy, seed), train_sentiment_reward(for_gold, seed + 100)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        writer = [*for_proxy.positive, *for_proxy.negative, *for_gold.positive, *for_gold.negative]
        write_language_model(writer, home / "base", seeds, epochs=1 if quick else 3)
        proxy.save(home / "proxy")
        lines = [" ".join(t.split()[:WORDS]) for t in (*held_out.positive, *held_out.negative) if len(t.split()) > 6]
        (home / "prompts.txt").write_text("\n".join(dict.fromkeys(lines)))
        before: list[float] = []

        def judge(iteration: Any) -> dict[str, float]:
            scores = gold.score([f"{r.prompt.text} {r.text}" for r in iteration.responses])
            if not before:
                before.extend(scores)
            scale = float(np.std(before)) or 1.0
            mean = mean_interval([(score - float(np.mean(before))) / scale for score in scores])
            return {"gold_reward": mean.value, "gold_reward_low": mean.low, "gold_reward_high": mean.high}

        result = train(
            env="palaestra/RLHF-v0", algorithm="ppo", model=str(home / "base"), seed=seed, threads=1, callbacks=[judge],
            env_kwargs={"prompts": home / 'prompts.txt', "reward": home / 'proxy', "chat": False, "kl_coef": 0.2},
            iterations=5 if quick else 40, episodes=128, num_envs=128, max_tokens=TOKENS, evaluation=100,
            out=keep or str(home / "run"), batch_size=32, n_epochs=2,
        )  # fmt: skip
        outcome = compare(gold, home / "base", result.folder / "model", lines, seed)
        last = result.summary
    return {
        "seed": seed, **outcome, "proxy_before": round(last["before"], 3), "proxy_after": round(last["after"], 3),
        "seconds": round(time.perf_counter() - start),
    }  # fmt: skip


def compare(gold: RewardModel, base: Path, tuned: Path, prompts: list[str], seed: int) -> dict[str, Any]:
    """Gold rewards of both models on the same held-out prompts with the same random numbers, and the KL."""
    from palaestra.envs.token import RLHFVectorEnv
    from palaestra.models import registry as models
    from palaestra.rl.collection import collect_responses
    from palaestra.rl.policies.language_model import LanguageModelPolicy, ReferencePolicy, apply_kl_penalty

    scores, divergence = [], 0.0
    models = [models.load(str(folder), device="cpu") for folder in (base, tuned)]
    for model in models:
        env = RLHFVectorEnv(
            prompts, lambda r: 0.0, tokenizer=model.tokenizer, chat=False, num_envs=128, max_tokens=TOKENS
        )
        policy = LanguageModelPolicy(model.weights, vocabulary=len(model.tokenizer))
        rollout = collect_responses(env, policy, 512, Seeds(seed).derive("compare"), seed=seed)
        scores.append(np.array(gold.score([f"{r.prompt.text} {r.text}" for r in rollout.get_episodes().records])))
        if model is models[1]:
            divergence = apply_kl_penalty(rollout, ReferencePolicy(policy, models[0].weights).logprobs_BT(rollout), 0.0)
    gain = mean_interval(((scores[1] - scores[0]) / scores[0].std()).tolist())
    return {
        "gold_gain": round(gain.value, 3), "gold_gain_low": round(gain.low, 3), "gold_gain_high": round(gain.high, 3),
        "prompts": gain.count, "kl_nats_a_response": round(divergence, 2),
    }  # fmt: skip


def write_language_model(texts: list[str], folder: Path, seeds: Seeds, epochs: int) -> None:
    """A GPT-2 of two layers that writes sentences like `texts`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = build_backbone(texts, seeds).tokenizer
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=128,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    with fork_torch_rng(seeds.derive("writer")):
        model = GPT2LMHeadModel(config)
    rows = []
    for text in texts:
        ids = tuple(tokenizer.encode(text)[:62])
        rows.append(Encoded(ids[:1], (*ids[1:], tokenizer.eos_token_id)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    total = epochs * -(-len(rows) // 32)
    model.train()
    step = 0
    for epoch in range(epochs):
        for batch in plan_batches([len(row) for row in rows], 32, seeds.derive("order", epoch).generator()):
            for group in optimizer.param_groups:
                group["lr"] = 2e-3 * min(1.0, (step + 1) / 50) * (1 - step / total)
            data = collate([rows[k] for k in batch], tokenizer.pad_token_id)
            logits = model(input_ids=data["input_ids"], attention_mask=data["attention_mask"]).logits
            response_loss(logits, data["labels"]).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
    model.eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
