"""What the benchmarks share: how they are called, and the last line that they print."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
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


Row = dict[str, Any]
ROWS = {
    "workers": "runs side by side (1)",
    "minutes": "start no run after this many minutes (no limit)",
    "out": "a file that keeps the rows, so that a stopped benchmark continues (none)",
}
"""Options of the benchmarks that call `collect_rows`."""


def collect_rows(
    work: Callable[..., Row], cells: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> list[Row]:
    """Run `work(**cell)` for every cell that has no row yet, in processes side by side. Returns the rows of all cells.

    A row consists of its cell and of what `work` returned. It is printed, and appended to `--out`.
    """
    out = Path(options.out or os.devnull)
    known = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    rows = {_key(row, cell): row for cell in cells for row in known if _key(row, cell) == _key(cell, cell)}
    waiting = [cell for cell in cells if _key(cell, cell) not in rows]
    deadline, running = time.monotonic() + 60 * float(options.minutes or "inf"), dict[Future[Row], Mapping[str, Any]]()
    workers = int(options.workers or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool, out.open("a") as file:
        while running or (waiting and time.monotonic() < deadline):
            while waiting and len(running) < workers and time.monotonic() < deadline:
                cell = waiting.pop(0)
                running[pool.submit(_run_cell, work, dict(cell), options.threads)] = cell
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                row = {**cell, **future.result()}
                rows[_key(cell, cell)] = row
                print(json.dumps(row), file=file, flush=True)
                print({name: value for name, value in row.items() if isinstance(value, (int, float, str))}, flush=True)
    return [rows[_key(cell, cell)] for cell in cells if _key(cell, cell) in rows]


def _key(row: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    return json.dumps([row.get(name) for name in cell])


def _run_cell(work: Callable[..., Row], cell: Row, threads: int) -> Row:
    import torch

    torch.set_num_threads(threads or 1)
    start = time.perf_counter()
    return work(**cell) | {"seconds": round(time.perf_counter() - start, 1)}


def finish(benchmark: str, ratio: float, **figures: Any) -> None:
    """Print the result as the last line: one JSON object."""
    print(json.dumps({"benchmark": benchmark, "ratio": round(ratio, 3), **figures}))


def median(values: list[float]) -> float:
    return round(statistics.median(values), 6)
