"""Service times of the stages of RL on language models, on this machine: the inputs of `simulate_cluster.py`.

With a GPU: decoding, prefill, updates and weight copies of Llama models with random weights in bfloat16, by plain
transformers and torch. Without one: the grading of answers with our scorers, and what the driver of rollout workers does,
both in seconds of one core. `--out FILE` merges the figures into a JSON file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

SHAPES = {
    "1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192},
    "7b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336},
}  # fmt: skip
PROMPT, RESPONSE = 256, 256
"""Tokens of a prompt and of a response in the decoding test."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64, 256], help="sequences decoded together")
    parser.add_argument("--works", nargs="+", default=["grading", "driver"], help="what is measured without a GPU")
    parser.add_argument("--out", default="", help="a JSON file that the figures are merged into")
    parser.add_argument("--data", default="", help="a folder with GSM8K and HumanEval, for the graders")
    options = parser.parse_args()
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        measured: dict[str, Any] = {name: {model: measure_gpu(model, options.batches) for model in options.models}}
    else:
        works = {"grading": measure_grading, "driver": measure_driver}
        measured = {name: works[name]() for name in options.works}
    print(json.dumps(measured), flush=True)
    if options.out:
        path = Path(options.out)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **measured}, indent=1) + "\n")


def measure_gpu(name: str, batches: list[int]) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(vocab_size=32000, max_position_embeddings=4096, **SHAPES[name])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters())
    head_dim = config.hidden_size // config.num_attention_heads
    figures: dict[str, Any] = {
        "parameters": parameters, "decode_ms": {}, "decode_context": PROMPT + RESPONSE,
        "cache_bytes_per_token": 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim,
        "prefill_tokens_per_second": 0.0,
    }  # fmt: skip
    for batch in batches:
        figures["decode_ms"][batch] = measure_decoding(model, batch)
        print(name, "decode", batch, figures["decode_ms"][batch], flush=True)
    ids = torch.randint(0, 32000, (16, 512), device="cuda")
    with torch.inference_mode():
        figures["prefill_tokens_per_second"] = round(ids.numel() / measure(lambda: model(ids, logits_to_keep=1)))
    figures |= measure_update(model)
    weights = torch.cat([p.detach().flatten() for p in list(model.parameters())[:20]])
    host = torch.empty(weights.shape, dtype=weights.dtype, pin_memory=True)
    figures["to_host_gb_per_second"] = round(weights.nbytes / measure(lambda: host.copy_(weights)) / 1e9, 1)
    figures["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    print(name, figures, flush=True)
    return figures


def measure_decoding(model: Any, batch: int) -> float:
    """Milliseconds of one decoding step of `batch` sequences: sampled, with a static cache and CUDA graphs."""
    ids = torch.randint(0, 32000, (batch, PROMPT), device="cuda")

    def generate(tokens: int) -> None:
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
                cache_implementation="static",
            )

    generate(RESPONSE)  # compiles
    generate(RESPONSE)
    # Another length would compile again: the prompt's part is measured by itself.
    with torch.inference_mode():
        prefill = measure(lambda: model(ids, logits_to_keep=1))
    return round((measure(lambda: generate(RESPONSE), 3) - prefill) / RESPONSE * 1e3, 3)


def measure_update(model: Any) -> dict[str, float]:
    """Tokens per second of forward and backward with gradient checkpointing, and seconds of an AdamW step."""
    model.train()
    model.gradient_checkpointing_enable()
    ids = torch.randint(0, 32000, (8, 1024), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def learn() -> None:
        model(ids, labels=ids).loss.backward()

    tokens = round(ids.numel() / measure(learn))
    step = measure(optimizer.step)
    return {"update_tokens_per_second": tokens, "optimizer_step_seconds": round(step, 4)}


def measure_grading() -> dict[str, float]:
    """Seconds of one verdict: an arithmetic answer by our parser, and a program in a sandbox."""
    from palaestra.core.records import Completion, Split
    from palaestra.tasks.base import make_task
    from palaestra.tasks.evaluate import score

    figures = {}
    for name, count in (("math-skills", 2000), ("code-skills", 40)):
        task = make_task(name)
        problems = task.problems(Split.TEST, 10, 0)
        answers = [(problem, Completion(str(problem.reference))) for problem in problems]
        score(task, *answers[0])
        start = time.perf_counter()
        for k in range(count):
            score(task, *answers[k % len(answers)])
        figures[name] = round((time.perf_counter() - start) / count, 6)
    return figures


def measure_driver() -> dict[str, float]:
    """CPU seconds of the driver: per part without its content, per token to receive and to join; and GB/s of sharing."""
    from pipeline import GROUP, Load, SleepingActor, make_rollout, measure_phases

    from palaestra.executors.base import open_executor
    from palaestra.rl.collection import join_rollouts

    load, tokens = Load(workers=2, groups=64, group_seconds=0.0, learn=0.0, staleness=0), 2048

    def receive(tokens: int) -> float:
        """Seconds per part."""
        [measured] = measure_phases([load], 6, partial(SleepingActor, tokens))
        return measured.cpu_seconds / load.parts_per_batch

    short = receive(1)
    per_token = (receive(tokens) - short) / (load.part_groups * GROUP * tokens)
    rollouts = [make_rollout(8 * k, 8, tokens) for k in range(32)]
    start = time.process_time()
    join_rollouts(rollouts)
    joining = (time.process_time() - start) / (32 * 8 * tokens)
    weights = {str(k): torch.ones(1 << 22) for k in range(32)}
    with open_executor("processes:1") as executor:
        start = time.process_time()
        executor.share(weights).release()
        share = time.process_time() - start
    return {
        "part_seconds": round(short, 6),
        "receive_seconds_per_token": float(f"{max(per_token, 0):.3g}"),
        "join_seconds_per_token": float(f"{joining:.3g}"),
        "share_gb_per_second": round(sum(w.nbytes for w in weights.values()) / share / 1e9, 2),
    }


def measure(work: Callable[[], Any], repetitions: int = 5) -> float:
    """The median of several seconds, after one call that does not count."""
    work()
    times = []
    for _ in range(repetitions):
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        start = time.perf_counter()
        work()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
