"""What one token costs at length 512 against length 64: with a cache it hardly grows.

One slot (the latency of one sequence) and eight. The ratio is cost at 64 over cost at 512, so at most 1.6
times the cost is a ratio of at least 0.625. One torch thread.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from _common import arguments, finish, median
from _models import load, prompts

from palaestra.rl.policies.language_model import LanguageModelPolicy

NEAR, FAR, WINDOW = 64, 512, 16


def main() -> None:
    options = arguments(__doc__ or "", threads=1, models=("gpt2",))
    repetitions = 3 if options.quick else 7
    cases: dict[str, Any] = {}
    for name in options.models:
        model, tokenizer = load(name)
        for slots in (1, 8):
            near, far = zip(*[measure(model, tokenizer, slots) for _ in range(repetitions)], strict=True)
            cost = {"at_64_ms": round(1e3 * median(list(near)), 2), "at_512_ms": round(1e3 * median(list(far)), 2)}
            cases[f"{name}/{slots}"] = {"times": round(cost["at_512_ms"] / cost["at_64_ms"], 2), **cost}
            print(name, slots, cases[f"{name}/{slots}"], flush=True)
    worst = max(case["times"] for case in cases.values())
    finish("token_cost", 1 / worst, times=worst, repetitions=repetitions, cases=cases)


def measure(model: Any, tokenizer: Any, slots: int) -> tuple[float, float]:
    """Median seconds of a step around each of the two lengths, in one growing sequence."""
    policy = LanguageModelPolicy(model, vocabulary=len(tokenizer))
    policy.begin(slots)
    tokens = np.zeros((slots, FAR + WINDOW + 1), dtype=np.int64)
    tokens[:, :32] = prompts(len(tokenizer), slots)
    length, fresh, active = np.full(slots, 32), np.ones(slots, dtype=bool), np.ones(slots, dtype=bool)
    uniform, durations = np.full(slots, 0.5), {NEAR: [], FAR: []}  # type: ignore[var-annotated]
    while length[0] < FAR + WINDOW:
        start = time.perf_counter()
        chosen, _, _ = policy.act(tokens, length, fresh, active, uniform)
        seconds = time.perf_counter() - start
        for at, times in durations.items():
            if abs(int(length[0]) - at) < WINDOW:
                times.append(seconds)
        tokens[np.arange(slots), length] = chosen
        length, fresh = length + 1, np.zeros(slots, dtype=bool)
    return median(durations[NEAR]), median(durations[FAR])


if __name__ == "__main__":
    main()
