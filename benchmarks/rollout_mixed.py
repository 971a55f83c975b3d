"""Responses of mixed lengths (8 to 256): slots that are refilled against batches that wait for their longest.

Both produce the same number of responses with the same lengths. `generate()` takes them in batches of 64,
each as long as its longest response; ours has 64 slots, and a slot that has finished starts the next prompt
in the same step. One torch thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from _common import alternate, arguments, finish, median
from _models import load, prompts

from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy

SLOTS, SHORTEST, LONGEST = 64, 8, 256


class Lengths(TokenVectorEnv):
    """Every response ends when its prompt says so: the length is what is measured, not what is said."""

    def __init__(self, lengths: list[int], asked: list[list[int]], tokenizer: Any) -> None:
        self.wanted = lengths
        given = [Prompt(tuple(ids), "", length) for ids, length in zip(asked, lengths, strict=True)]
        super().__init__(given, lambda response: 0.0, tokenizer=tokenizer, num_envs=SLOTS, max_tokens=LONGEST)
        self._is_end[:] = False

    def prompt(self, episode: int) -> Prompt:
        return self._prompts[episode % len(self.items)]

    def _find_stopped(self, slots: np.ndarray) -> list[int]:
        count = self._length - self._prompt_length
        return [int(s) for s in slots if count[s] >= self._slot_prompts[s].source]  # type: ignore[union-attr]


def main() -> None:
    options = arguments(__doc__ or "", threads=1, models=("gpt2", "nano"))
    repetitions = 2 if options.quick else 5
    cases: dict[str, Any] = {}
    for name in options.models:
        model, tokenizer = load(name)
        cases[name] = measure(model, tokenizer, 2 * SLOTS if options.quick else 4 * SLOTS, repetitions)
        print(name, cases[name], flush=True)
    finish(
        "rollout_mixed",
        min(case["ratio"] for case in cases.values()),
        slots=SLOTS,
        repetitions=repetitions,
        cases=cases,
    )


def measure(model: Any, tokenizer: Any, responses: int, repetitions: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(SHORTEST, LONGEST + 1, responses).tolist()
    room = int(model.config.max_position_embeddings) - LONGEST
    asked = prompts(len(tokenizer), responses, min(32, room) if room > 0 else 8)
    if room <= 0:  # A small context: shorter responses, the same mixture.
        lengths = [max(SHORTEST, length * 3 // 4) for length in lengths]
    env = Lengths(lengths, asked, tokenizer)
    env.stop = ("",)
    policy = LanguageModelPolicy(model, vocabulary=len(tokenizer))
    total = sum(lengths)

    def generate() -> None:
        with torch.inference_mode():
            for start in range(0, responses, SLOTS):
                ids_BT = torch.tensor(asked[start : start + SLOTS])
                output = model.generate(
                    ids_BT,
                    attention_mask=torch.ones_like(ids_BT),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=max(lengths[start : start + SLOTS]),
                    eos_token_id=None,
                    pad_token_id=0,
                    return_dict_in_generate=True,
                    output_logits=True,
                )
                chosen_BT1 = output.sequences[:, ids_BT.shape[1] :, None]
                torch.stack(output.logits, 1).float().log_softmax(-1).gather(-1, chosen_BT1)

    def step() -> None:
        env.reset(seed=0, options={"episodes": 0})
        rollout = collect_responses(env, policy, responses, Seeds(0), first=0)
        assert rollout.num_actions == total

    theirs, ours = alternate(repetitions, generate, step)
    return {
        "ratio": round(median(theirs) / median(ours), 2), "responses": responses, "tokens": total,
        "generate_tokens_per_second": round(total / median(theirs)), "palaestra_tokens_per_second": round(total / median(ours)),
    }  # fmt: skip


if __name__ == "__main__":
    main()
