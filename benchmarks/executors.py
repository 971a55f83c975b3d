"""Is an evaluation on Ray as fast as one on a process pool, and is the driver's memory independent of the number of items?

Two workers each. The evaluation has 2,000 problems (500 with --quick) and warm workers, which have already loaded the model: once
with `nano` in the workers, once with a model in the driver that answers at once, so that the workers only score. The memory is
the largest resident size of the driver while it maps over 1,000 and over 100,000 items, each in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from _common import alternate, arguments, finish, median

from palaestra.core.records import Engine, Problem, Sampling, Split
from palaestra.engines.mock import MockEngine
from palaestra.engines.transformers import TransformersEngine
from palaestra.executors.base import Executor, Resources, open_executor
from palaestra.tasks.base import Task
from palaestra.tasks.evaluate import EvaluationWorkers, evaluate
from palaestra.tasks.math.task import MathSkills

WORKERS, MAX_TOKENS = 2, 72


def load_nano() -> Engine:
    from palaestra.models import registry as models

    return TransformersEngine.from_loaded(models.load("nano", device="cpu"), 64)


def make_tasks() -> dict[str, Task]:
    return {"": MathSkills()}


def open_pair(stack: ExitStack) -> list[Executor]:
    """Open a process pool, and a Ray cluster of this machine, with two workers each."""
    import ray

    os.environ |= {"RAY_TQDM_PATCH_PRINT": "0", "RAY_worker_niceness": "0"}  # Ray's workers have a niceness of 15.
    ray.init("local", num_cpus=WORKERS, include_dashboard=False, logging_level="warning", log_to_driver=False)
    stack.callback(ray.shutdown)
    return [stack.enter_context(open_executor(name)) for name in (f"processes:{WORKERS}", "ray")]


def compare(problems: list[Problem], make_engine: Callable[[], Engine] | None, repetitions: int) -> list[list[float]]:
    """Seconds of an evaluation on processes and on Ray."""
    here = MockEngine.open("mock:Answer: 7")
    with ExitStack() as stack:
        works = []
        for executor in open_pair(stack):
            opened = EvaluationWorkers.open(executor, Resources(), make_tasks, make_engine)
            workers = stack.enter_context(opened)
            works.append(
                partial(evaluate, MathSkills(), problems, lambda: here, sampling=Sampling(MAX_TOKENS), workers=workers)
            )
        for work in works:
            work()
        return alternate(repetitions, *works)


def make_state() -> None:
    """The items need no state."""


def repeat(state: None, item: int) -> str:
    return f"{item:01000d}"


def measure_memory(name: str, count: int) -> float:
    """The largest resident size in MB while this process maps over `count` items, after the first 1,000."""
    import psutil

    process, largest, total = psutil.Process(), 0, 0
    with ExitStack() as stack:
        executor = dict(zip(("processes", "ray"), open_pair(stack), strict=True))[name]
        for index, result in enumerate(executor.map(repeat, range(count), make_state)):
            total += len(str(result))
            if index % 100 == 99:
                largest = max(largest, process.memory_info().rss)
    assert total == 1000 * count
    return largest / 1e6


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        print(json.dumps(measure_memory(sys.argv[2], int(sys.argv[3]))))
        return
    options = arguments(__doc__ or "", threads=1)
    problems = MathSkills().problems(Split.TRAIN, 120, seed=0)[: 500 if options.quick else 2000]
    repetitions = 3 if options.quick else 5
    figures: dict[str, object] = {"problems": len(problems), "repetitions": repetitions}
    ratios = {}
    for name, make_engine in (("nano", load_nano), ("scoring", None)):
        processes, ray = compare(problems, make_engine, repetitions)
        ratios[name] = median(processes) / median(ray)
        figures |= {f"{name}_processes_seconds": median(processes), f"{name}_ray_seconds": median(ray)}
        print(f"{name}: processes {median(processes)} s, ray {median(ray)} s (medians), {1 / ratios[name]:.3f} times")
    for name in ("processes", "ray"):
        sizes = []
        for count in (1_000, 10_000 if options.quick else 100_000):
            command = [sys.executable, __file__, "memory", name, str(count)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            sizes.append(round(json.loads(output.splitlines()[-1]), 1))
            print(f"{name}: {count} items, the driver has at most {sizes[-1]} MB")
        figures[f"{name}_driver_megabytes"] = sizes
    finish("executors", ratios["nano"], scoring_ratio=round(ratios["scoring"], 3), **figures)


if __name__ == "__main__":
    main()
