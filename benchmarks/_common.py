"""What the benchmarks share: how they are called, and the last line that they print."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def arguments(description: str, threads: int = 0, models: Sequence[str] = (), **texts: str) -> argparse.Namespace:
    """The options of a benchmark.

    Arguments:
        threads: how many CPU threads unless told otherwise; 0 leaves torch's own choice.
        models: which language models are measured unless told otherwise.
        texts: further options that take a text, each with its help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="about a minute: fewer seeds and repetitions")
    parser.add_argument("--threads", type=int, default=threads, help="CPU threads; 0 leaves torch's own choice")
    if models:
        parser.add_argument("--models", nargs="+", default=list(models), help="gpt2, nano, smollm2, ...")
    for name, text in texts.items():
        parser.add_argument(f"--{name}", default="", help=text)
    options = parser.parse_args()
    if options.threads and os.environ.get("OMP_NUM_THREADS") != str(options.threads):
        # Torch's own setting does not reach all of its kernels (oneDNN's on ARM keep their threads): start anew.
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from transformers.utils import logging

    logging.disable_progress_bar()
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    return options


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternate(repetitions: int, *works: Callable[[], Any]) -> list[list[float]]:
    """Seconds of each work, measured in turn so that a slow spell of the machine hits all alike."""
    durations: list[list[float]] = [[] for _ in works]
    for _ in range(repetitions):
        for times, work in zip(durations, works, strict=True):
            times.append(seconds(work))
    return durations


def finish(benchmark: str, ratio: float, **figures: Any) -> None:
    """Print the result as the last line: one JSON object."""
    print(json.dumps({"benchmark": benchmark, "ratio": round(ratio, 3), **figures}))


def median(values: list[float]) -> float:
    return round(statistics.median(values), 6)
