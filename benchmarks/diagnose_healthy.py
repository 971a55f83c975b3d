"""Are healthy runs without a finding of `palaestra diagnose`? Trains runs that differ in scale, environment, algorithm and seed.

Ratio: the fraction of runs without a finding. What `diagnose` reads of each run is written to
`diagnose_healthy.json`, for `tests/recipes/test_diagnosis.py`; `--only WORD` runs the cases with this word in their names.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import arguments, finish

STORED = Path(__file__).with_name("diagnose_healthy.json")
SKILLS = ["average", "change", "groups", "clock"]
CONTROL: dict[str, Any] = {"evaluation": 20}
TOKEN: dict[str, Any] = {"iterations": 8, "episodes": 64, "num_envs": 64, "evaluation": 40}
TEACH: dict[str, Any] = {"rounds": 1, "lesson_size": 96, "test": 40, "validation": 8}


def shorten(completions: list[str], **columns: Any) -> list[float]:
    return [-len(completion) / 100 for completion in completions]


def contains_answer(completion: str, answer: str) -> float:
    return float(answer in completion)


SUMS = [{"prompt": f"What is {n} + {n % 7}?", "answer": str(n + n % 7)} for n in range(10, 210)]
PARITY = [{"question": f"Is {n} odd or even?", "answer": "even" if n % 2 == 0 else "odd"} for n in range(100, 500)]
TRAIN: dict[str, dict[str, Any]] = {
    "cartpole ppo": {"env": "CartPole-v1", "iterations": 60, "seed": 0, **CONTROL},
    "cartpole ppo slow": {"env": "CartPole-v1", "iterations": 60, "learning_rate": 5e-4, "seed": 1, **CONTROL},
    "cartpole ppo solved": {"env": "CartPole-v1", "stop_at": 475.0, "seed": 2, **CONTROL},
    "cartpole grpo": {"env": "CartPole-v1", "algorithm": "grpo", "iterations": 30, "seed": 3, **CONTROL},
    "cartpole rloo": {"env": "CartPole-v1", "algorithm": "rloo", "iterations": 30, "seed": 4, **CONTROL},
    "cartpole reinforce": {"env": "CartPole-v1", "algorithm": "reinforce", "iterations": 40, "seed": 5, **CONTROL},
    "cartpole transformer": {"env": "CartPole-v1", "policy": "transformer", "layers": 1, "window": 4, "iterations": 20, "seed": 6, **CONTROL},
    "acrobot ppo": {"env": "Acrobot-v1", "iterations": 40, "seed": 7, **CONTROL},
    "acrobot ppo other": {"env": "Acrobot-v1", "iterations": 40, "learning_rate": 5e-4, "seed": 8, **CONTROL},
    "pendulum ppo": {"env": "Pendulum-v1", "seed": 9, **CONTROL},
    "math grpo": {"env_kwargs": {"skills": SKILLS}, "algorithm": "grpo", "seed": 11, **TOKEN},
    "math rloo": {"env_kwargs": {"skills": SKILLS}, "algorithm": "rloo", "seed": 12, **TOKEN},
    "math ppo": {"env_kwargs": {"skills": SKILLS}, "algorithm": "ppo", "seed": 13, **TOKEN},
    "math reinforce": {"env_kwargs": {"skills": SKILLS}, "algorithm": "reinforce", "seed": 14, **TOKEN},
    "math dapo": {"env_kwargs": {"skills": ["fractions", "missing_number"]}, "variant": "dapo", "temperature": 1.2, "seed": 15, **TOKEN},
    "math kl": {"env_kwargs": {"skills": SKILLS}, "kl_coef": 0.02, "n_epochs": 2, "seed": 16, **TOKEN},
    "math engine": {"env_kwargs": {"skills": SKILLS}, "rollout": "engine", "seed": 17, **TOKEN},
    "guess grpo": {"env": "palaestra/Guess-v0", "seed": 18, **TOKEN, "evaluation": 64, "num_envs": 32},
    "prompts short": {"prompts": SUMS, "reward": shorten, "seed": 19, **TOKEN},
    "prompts two rewards": {"prompts": SUMS, "reward": [contains_answer, shorten], "algorithm": "rloo", "seed": 20, **TOKEN},
}  # fmt: skip
TEACH_CASES: dict[str, dict[str, Any]] = {
    "teach tree": {"skills": SKILLS, "seed": 21, **TEACH},
    "teach open": {"skills": ["percent", "clock"], "teacher": "open_ended", "start": "last", "seed": 22, **TEACH, "rounds": 2},
    "teach parity": {"task": PARITY, "seed": 23, **TEACH},
    "teach practice": {"skills": SKILLS, "learning": "practice", "seed": 24, **TEACH, "test": 80, "lesson_size": 48},
}  # fmt: skip
METRICS = (
    "reward", "reward_min", "reward_max", "episodes", "failures", "truncated", "tools/malformed", "entropy", "approx_kl",
    "clip_fraction", "frac_reward_zero_std", "grad_norm", "sampling_logprob_difference",
)  # fmt: skip
SUMMARY = ("gain", "gain_low", "gain_high", "before", "after", "unit", "problems", "fell", "equal_returns", "failures")
SETTINGS = ("algorithm", "policy", "hyperparameters", "max_tokens", "max_staleness")


def main() -> None:
    options = arguments(__doc__ or "", threads=1, only="only the cases with this word in their names")
    cases = [*(("train", *case) for case in TRAIN.items()), *(("teach", *case) for case in TEACH_CASES.items())]
    cases = [case for case in cases if options.only in case[1]][:: 6 if options.quick else 1]
    healthy = 0
    for recipe, name, values in cases:
        run = run_case(recipe, name, values)
        healthy += not run.pop("findings")
        if not options.quick:
            stored = {**(json.loads(STORED.read_text()) if STORED.exists() else {}), name: run}
            STORED.write_text(
                "{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(r)}" for n, r in stored.items()) + "\n}\n"
            )
    finish("diagnose_healthy", healthy / len(cases), runs=len(cases), healthy=healthy)


def run_case(recipe: str, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Run one case and return what `diagnose` reads of it, with the findings."""
    from palaestra import teach, train
    from palaestra.recipes.diagnosis import diagnose
    from palaestra.runs.run import Run

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        {"train": train, "teach": teach}[recipe](out=f"{folder}/run", threads=1, progress=False, **values)
        with Run.open(Path(folder, "run"), read_only=True) as run:
            findings = [str(finding) for finding in diagnose(run)]
            summary, table = run.summary or {}, run.store.metrics()
            stored = {
                "recipe": recipe,
                "settings": {key: run.settings[key] for key in SETTINGS if key in run.settings},
                "summary": {key: summary[key] for key in SUMMARY if key in summary},
                "metrics": {key: [round_value(row.get(key)) for _, row in sorted(table.items())] for key in METRICS},
                "findings": findings,
            }
    rewards = [value for value in stored["metrics"]["reward"] if value is not None]
    print(
        f"{name}: {time.perf_counter() - start:.0f} s, reward {rewards[:1]} to {rewards[-1:]}, gain {summary.get('gain')}"
    )
    print("".join(f"  {finding}\n" for finding in findings), end="", flush=True)
    return stored


def round_value(value: float | None) -> float | None:
    return None if value is None or value != value else float(f"{value:.4g}")


if __name__ == "__main__":
    main()
