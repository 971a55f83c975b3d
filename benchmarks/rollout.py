"""Tokens a second through `VectorEnv.step` against `generate()`, at the same batch, sampled, with log-probs.

Ours: every token goes through the environment's `step` and the policy's cache per slot. Theirs:
`model.generate(do_sample=True, output_logits=True)` and the log-probs of what it chose. One torch thread.
"""

from __future__ import annotations

from typing import Any

import torch
from _common import alternate, arguments, finish, median
from _models import load, prompts

from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy

TOKENS = 64


def main() -> None:
    options = arguments(__doc__ or "", threads=1, models=("gpt2", "nano"))
    repetitions = 3 if options.quick else 7
    ratios: dict[str, Any] = {}
    for name in options.models:
        model, tokenizer = load(name)
        for slots in (64, 8):
            if name == "smollm2" and slots == 64 and options.quick:
                continue
            theirs, ours = measure(model, tokenizer, slots, repetitions if name != "smollm2" else 5)
            rate = {who: slots * TOKENS / median(times) for who, times in (("generate", theirs), ("palaestra", ours))}
            ratios[f"{name}/{slots}"] = {
                "ratio": round(rate["palaestra"] / rate["generate"], 2),
                **{f"{who}_tokens_per_second": round(value) for who, value in rate.items()},
            }
            print(name, slots, ratios[f"{name}/{slots}"], flush=True)
    finish(
        "rollout",
        min(entry["ratio"] for entry in ratios.values()),
        tokens=TOKENS,
        repetitions=repetitions,
        cases=ratios,
    )


def measure(model: Any, tokenizer: Any, slots: int, repetitions: int) -> list[list[float]]:
    asked = prompts(len(tokenizer), slots)
    ids_BT = torch.tensor(asked)
    env = TokenVectorEnv(asked, lambda response: 0.0, tokenizer=tokenizer, num_envs=slots, max_tokens=TOKENS)
    env._is_end[:] = False  # Every response has all of its tokens, as on the other side.
    policy = LanguageModelPolicy(model, vocabulary=len(tokenizer))

    def generate() -> None:
        with torch.inference_mode():
            output = model.generate(
                ids_BT,
                attention_mask=torch.ones_like(ids_BT),
                do_sample=True,
                top_k=0,
                max_new_tokens=TOKENS,
                eos_token_id=None,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            chosen_BT1 = output.sequences[:, ids_BT.shape[1] :, None]
            torch.stack(output.logits, 1).float().log_softmax(-1).gather(-1, chosen_BT1)

    def step() -> None:
        rollout = collect_responses(env, policy, slots, Seeds(0))
        assert rollout.num_actions == slots * TOKENS

    generate()
    step()
    return alternate(repetitions, generate, step)


if __name__ == "__main__":
    main()
