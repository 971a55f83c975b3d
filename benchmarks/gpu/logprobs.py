"""How much the log-prob of a sampled token depends on the pass that computes it, on one GPU.

A Llama of SmolLM2-135M's shape with random weights, 128 responses of 128 tokens to prompts of 32, in float32 and in bf16. Compared are
the log-probs of stepping, of the packed training pass, of the model's own pass over padded sequences, each at two batch sizes, and of
transformers alone with its own cache, one token at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from rollout import PROMPT, VOCABULARY, make_model, make_tokenizer
from transformers import DynamicCache

from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy

PROMPTS, GROUP, TOKENS = 32, 4, 128


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    asked = np.random.default_rng(0).integers(10, VOCABULARY - 10, (PROMPTS, PROMPT)).tolist()
    for dtype in (torch.float32, torch.bfloat16):
        policy = LanguageModelPolicy(make_model("smollm2").to(dtype), vocabulary=VOCABULARY)
        logprobs = measure(policy, asked)
        for name, other in (
            ("stepping", "packed"), ("packed", "packed, microbatches of 5"), ("stepping", "own"), ("packed", "own"),
            ("own", "own, microbatches of 5"), ("own", "cached"), ("stepping", "cached"),
        ):  # fmt: skip
            difference = (logprobs[name] - logprobs[other]).abs()
            largest, mean = float(difference.max()), float(difference.mean())
            print(
                f"{dtype}: {name} / {other}: largest {largest:.2g}, mean {mean:.2g} of {difference.numel()}", flush=True
            )


def measure(policy: LanguageModelPolicy, asked: list[list[int]]) -> dict[str, torch.Tensor]:
    """Log-probs `[responses, tokens]` by the pass that computed them."""
    env = TokenVectorEnv(
        asked,
        lambda response: 0.0,
        tokenizer=make_tokenizer(),
        num_envs=PROMPTS * GROUP,
        max_tokens=TOKENS,
        group_size=GROUP,
    )
    env._is_end[:] = False
    rollout = collect_responses(env, policy, PROMPTS * GROUP, Seeds(0))
    logprobs = {"stepping": rollout.logprobs_BT, "packed": policy.logprobs_BT(rollout)}
    policy.microbatch_size = 5
    logprobs["packed, microbatches of 5"] = policy.logprobs_BT(rollout)
    policy.sequence_forward.fast = None
    logprobs["own, microbatches of 5"] = policy.logprobs_BT(rollout)
    policy.microbatch_size = 32
    logprobs["own"] = policy.logprobs_BT(rollout)
    pairs = zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)
    logprobs["cached"] = decode_cached(policy.model, torch.tensor([[*p, *r] for p, r in pairs], device="cuda"))
    return {name: logprobs_BT.float().cpu() for name, logprobs_BT in logprobs.items()}


@torch.no_grad()
def decode_cached(model: torch.nn.Module, ids_BT: torch.Tensor) -> torch.Tensor:
    cache, pieces = DynamicCache(config=model.config), [ids_BT[:, :PROMPT], *ids_BT[:, PROMPT:-1].split(1, 1)]
    logits = [model(input_ids=piece, past_key_values=cache, use_cache=True).logits[:, -1] for piece in pieces]
    logprobs_BTV = torch.stack(logits, 1).float().log_softmax(-1)
    return logprobs_BTV.gather(-1, ids_BT[:, PROMPT:, None])[..., 0]


if __name__ == "__main__":
    main()
