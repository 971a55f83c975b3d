"""Supervised and DPO training on one GPU: the packed forward pass against the model's own on padded batches.

A Llama of SmolLM2-135M's shape with random weights in bf16, all weights trained, 1,024 examples with prompts of 16 to 128 tokens
and responses of 16 to 384, batches of 64. The same loop runs with `ResponseLogProbs` as it is and with its padded pass, in turn. With
TRL installed, its SFTTrainer trains on the same examples and batch size, without gradient checkpointing, padded (its default).
DPO takes pairs of these examples, 32 a batch, with given reference log-probs.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from rollout import VOCABULARY, make_model, make_tokenizer, time_on_gpu

from palaestra.core.seeding import Seeds
from palaestra.students.batches import Encoded, ResponseLogProbs
from palaestra.students.preference import Preference, PreferencePair, preference_loss
from palaestra.students.supervised import Supervision, all_batches, optimize

EXAMPLES, BATCH, REPETITIONS = 1024, 64, 3


def main() -> None:
    transformers.logging.set_verbosity_error()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}")
    rows = make_rows()
    tokens = sum(len(row) for row in rows)
    figures: dict[str, dict[str, float]] = {}
    for kind, work in (("sft", train_sft), ("dpo", train_dpo)):
        model = make_model("smollm2")
        times: dict[str, list[float]] = {"packed": [], "padded": []}
        peaks: dict[str, float] = {}
        for _ in range(REPETITIONS + 1):
            for name in times:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                times[name].append(time_on_gpu(partial(work, model, rows, name == "packed")))
                peaks[name] = torch.cuda.max_memory_allocated() / 1e9
        for name, durations in times.items():
            seconds = statistics.median(durations[1:])
            figures[f"{kind}, {name}"] = {
                "tokens_per_second": round(tokens / seconds),
                "peak_gb": round(peaks[name], 1),
            }
            print(kind, name, figures[f"{kind}, {name}"], flush=True)
    if importlib.util.find_spec("trl") and importlib.util.find_spec("datasets"):
        figures["sft, trl"] = {"tokens_per_second": round(tokens / run_trl(rows))}
        print("sft trl", figures["sft, trl"], flush=True)
    rate = {name: values["tokens_per_second"] for name, values in figures.items()}
    ratios = {
        f"{name}, packed to {other}": round(rate[f"{name}, packed"] / rate[f"{name}, {other}"], 2)
        for name, other in (("sft", "padded"), ("dpo", "padded"), ("sft", "trl"))
        if f"{name}, {other}" in rate
    }
    print(json.dumps({"benchmark": "gpu/supervised", "ratio": min(ratios.values()), "ratios": ratios, **figures}))


def make_rows() -> list[Encoded]:
    generator = np.random.default_rng(0)

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(generator.integers(10, VOCABULARY - 10, generator.integers(low, high + 1)).tolist())

    return [Encoded(draw(16, 128), draw(16, 384)) for _ in range(EXAMPLES)]


def make_logprobs(model: Any, packed: bool) -> ResponseLogProbs:
    logprobs = ResponseLogProbs(model, VOCABULARY - 2)
    if not packed:
        logprobs._forward = None
    return logprobs


def train_sft(model: Any, rows: list[Encoded], packed: bool) -> None:
    logprobs, supervision = make_logprobs(model, packed), Supervision("full", 1, BATCH, 1e-5)
    batches = list(all_batches(rows, supervision, Seeds(0)))
    optimize(model, batches, lambda b: logprobs.compute_loss([rows[k] for k in b]), supervision, Seeds(0))


def train_dpo(model: Any, rows: list[Encoded], packed: bool) -> None:
    """Each pair shares a prompt, as pairs do."""
    logprobs, supervision = make_logprobs(model, packed), Supervision("full", 1, BATCH // 2, 1e-6)
    pairs = [
        PreferencePair(a, Encoded(a.prompt_ids, b.response_ids)) for a, b in zip(rows[::2], rows[1::2], strict=True)
    ]
    batches = list(all_batches([pair.longer for pair in pairs], supervision, Seeds(0)))
    settings = Preference(sft_weight=0.0)

    def batch_loss(batch: Any) -> torch.Tensor:
        return preference_loss(logprobs, [pairs[k] for k in batch], [[0.0, 0.0]] * len(batch), settings)

    optimize(model, batches, batch_loss, supervision, Seeds(0))


def run_trl(rows: list[Encoded]) -> float:
    """Seconds of one epoch; loading is not counted, a short training before it warms up."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = [
        {
            "input_ids": [*row.prompt_ids, *row.response_ids],
            "completion_mask": [0] * len(row.prompt_ids) + [1] * len(row.response_ids),
        }
        for row in rows
    ]
    seconds = 0.0
    for part in (data[: 4 * BATCH], data):
        with tempfile.TemporaryDirectory() as folder:
            config = SFTConfig(
                folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=1e-5,
                bf16=True,
                report_to=[],
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                completion_only_loss=True,
                max_length=1024,
            )
            trainer = SFTTrainer(
                make_model("smollm2").train(),
                config,
                train_dataset=Dataset.from_list(part),
                processing_class=make_tokenizer(),
            )
            seconds = time_on_gpu(trainer.train)
    return seconds


if __name__ == "__main__":
    main()
