"""A whole GRPO step on one GPU against a loop over `generate()` with the same loss, in the same process.

64 prompts of 32 tokens, 8 responses of 128 tokens each, a Llama of SmolLM2-135M's shape with random weights in bf16, one pass,
AdamW, no reference. The loop generates, computes the log-probs of its samples once without gradients, and updates in
microbatches of 32 with the model's own forward pass. Peak memory is that of the update. The FLOP utilisation counts 6 FLOP
per parameter and token of the update, against 989 TFLOP/s of an H200 in bf16.

With TRL installed, its GRPOTrainer takes the same step with `generate()` (its default), in microbatches of 32 and of 128, without
gradient checkpointing. Only whole steps of it can be timed.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import torch
import transformers
from rollout import PROMPT, VOCABULARY, make_model, make_tokenizer, time_on_gpu

from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.rl.collection import collect_responses
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.policies.language_model import LanguageModelPolicy

PROMPTS, GROUP, TOKENS, MICROBATCH, REPETITIONS, PEAK = 64, 8, 128, 32, 3, 989e12


def score(ids: Any) -> float:
    """Something that differs from response to response."""
    return float(len(set(ids)) % 7)


def main() -> None:
    transformers.logging.set_verbosity_error()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    asked = np.random.default_rng(0).integers(10, VOCABULARY - 10, (PROMPTS, PROMPT)).tolist()
    figures: dict[str, dict[str, float]] = {}
    for name, make in (("loop", GenerateLoop), ("ours", OurStep)):
        side: Any = make(asked)
        side.step()
        times = []
        for _ in range(REPETITIONS):
            torch.cuda.empty_cache()
            rollout = time_on_gpu(side.sample)
            torch.cuda.reset_peak_memory_stats()
            times.append((rollout, time_on_gpu(side.update)))
        rollout, update = (statistics.median(column) for column in zip(*times, strict=True))
        flop = 6 * sum(p.numel() for p in side.model.parameters()) * PROMPTS * GROUP * (PROMPT + TOKENS)
        figures[name] = {
            "rollout_seconds": round(rollout, 3), "update_seconds": round(update, 3),
            "update_peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
            "flop_utilisation": round(flop / update / PEAK, 3),
        }  # fmt: skip
        print(name, figures[name], flush=True)
        del side
        gc.collect()
    total = {name: values["rollout_seconds"] + values["update_seconds"] for name, values in figures.items()}
    ratios = {"ratio_to_loop": round(total["loop"] / total["ours"], 2)}
    if importlib.util.find_spec("trl") and importlib.util.find_spec("datasets"):
        for microbatch in (MICROBATCH, 4 * MICROBATCH):
            name = f"trl, microbatches of {microbatch}"
            figures[name] = run_trl(asked, microbatch)
            print(name, figures[name], flush=True)
        best = min(values["step_seconds"] for name, values in figures.items() if name.startswith("trl"))
        ratios["ratio_to_trl"] = round(best / total["ours"], 2)
    print(json.dumps({"benchmark": "gpu/grpo", "ratio": min(ratios.values()), **ratios, **figures}))


class OurStep:
    def __init__(self, asked: list[list[int]]) -> None:
        self.model = make_model("smollm2")
        self.env = TokenVectorEnv(
            asked,
            lambda response: score(response.token_ids),
            tokenizer=make_tokenizer(),
            num_envs=PROMPTS * GROUP,
            max_tokens=TOKENS,
            group_size=GROUP,
        )
        self.env._is_end[:] = False
        self.policy = LanguageModelPolicy(self.model, vocabulary=VOCABULARY)
        config = GRPOConfig(learning_rate=1e-6, group_size=GROUP, loss_aggregation="token")
        self.algorithm = GRPO(self.policy, config, Seeds(0))

    def sample(self) -> None:
        self.rollout = collect_responses(self.env, self.policy, PROMPTS * GROUP, Seeds(0))

    def update(self) -> None:
        self.algorithm.update(self.rollout, 0)

    def step(self) -> None:
        self.sample()
        self.update()


class GenerateLoop:
    def __init__(self, asked: list[list[int]]) -> None:
        self.model = make_model("smollm2")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        self.prompts_BP = torch.tensor(asked, device="cuda").repeat_interleave(GROUP, 0)

    def sample(self) -> None:
        with torch.inference_mode():
            ids_BT = self.model.generate(
                self.prompts_BP,
                attention_mask=torch.ones_like(self.prompts_BP),
                do_sample=True,
                top_k=0,
                max_new_tokens=TOKENS,
                eos_token_id=None,
                pad_token_id=0,
            )
            self.ids_BT = ids_BT.clone()
        rewards = torch.tensor([score(row) for row in ids_BT[:, PROMPT:].tolist()], device="cuda").view(-1, GROUP)
        centred = rewards - rewards.mean(1, keepdim=True)
        self.advantages_B = (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten()

    def update(self) -> None:
        with torch.no_grad():
            old_BT = torch.cat([self.compute_logprobs(ids_MT) for ids_MT in self.ids_BT.split(MICROBATCH)])
        self.optimizer.zero_grad()
        parts = zip(*(t.split(MICROBATCH) for t in (self.ids_BT.clone(), old_BT, self.advantages_B)), strict=True)
        for ids_MT, old_MT, advantages_M in parts:
            ratio_MT = (self.compute_logprobs(ids_MT) - old_MT).exp()
            gain_MT = torch.minimum(ratio_MT * advantages_M[:, None], ratio_MT.clamp(0.8, 1.2) * advantages_M[:, None])
            (-gain_MT.sum() / old_BT.numel()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def compute_logprobs(self, ids_MT: torch.Tensor) -> torch.Tensor:
        logits_MTV = self.model(input_ids=ids_MT[:, :-1]).logits[:, PROMPT - 1 :].float()
        chosen_MT1 = ids_MT[:, PROMPT:, None]
        return logits_MTV.gather(-1, chosen_MT1)[..., 0] - logits_MTV.logsumexp(-1)

    def step(self) -> None:
        self.sample()
        self.update()


def run_trl(asked: list[list[int]], microbatch: int) -> dict[str, float]:
    """The median seconds of whole steps of TRL's GRPOTrainer, and its peak memory."""
    from datasets import Dataset
    from trl import GRPOConfig as TrlConfig
    from trl import GRPOTrainer

    tokenizer = make_tokenizer()
    times: list[float] = []

    class TimeSteps(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            torch.cuda.synchronize()
            times.append(time.perf_counter() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        config = TrlConfig(
            folder,
            per_device_train_batch_size=microbatch,
            gradient_accumulation_steps=PROMPTS * GROUP // microbatch,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            beta=0.0,
            max_steps=REPETITIONS + 1,
            learning_rate=1e-6,
            bf16=True,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            generation_kwargs={"min_new_tokens": TOKENS},
        )
        trainer = GRPOTrainer(
            make_model("smollm2").train(),
            lambda completion_ids, **_: [score(ids) for ids in completion_ids],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": tokenizer.decode(ids)} for ids in asked]),
            processing_class=tokenizer,
            callbacks=[TimeSteps()],
        )
        torch.cuda.reset_peak_memory_stats()
        trainer.train()
    peak = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return {"step_seconds": round(statistics.median(times[1:]), 3), "step_peak_gb": peak}


if __name__ == "__main__":
    main()
