"""Each disease of a run is found in a run that has it, and healthy runs have none."""

from pathlib import Path
from typing import Any

import pytest

from palaestra import train
from palaestra.recipes.diagnosis import diagnose
from palaestra.report.page import render_with_figures
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

HEALTHY = {
    "reward": 0.4, "reward_min": 0.0, "reward_max": 1.0, "episodes": 64.0, "failures": 0.0, "truncated": 0.05, "entropy": 1.2,
    "approx_kl": 0.01, "clip_fraction": 0.1, "frac_reward_zero_std": 0.3, "grad_norm": 0.5, "sampling_logprob_difference": 0.01,
}  # fmt: skip
SETTINGS: dict[str, Any] = {"max_tokens": 72, "hyperparameters": {"learning_rate": 1e-4, "n_epochs": 2}}
SUMMARY: dict[str, Any] = {
    "before": 40.0, "after": 60.0, "gain": 20.0, "gain_low": 15.0, "gain_high": 25.0, "unit": "percent", "problems": 300
}  # fmt: skip


def write_run(
    folder: Path, change: dict[str, tuple[float, float]], summary: dict[str, Any], settings: dict[str, Any] = SETTINGS
) -> list[str]:
    """Store a run of ten iterations and return the names of its diagnoses.

    Arguments:
        change: the values of metrics in the first three iterations, and after them.
    """
    with Run.create(folder, "train", settings) as run:
        for iteration in range(1, 11):
            row = dict(HEALTHY, reward=0.4 + 0.03 * iteration + 0.01 * (iteration % 2))
            row |= {name: first if iteration <= 3 else last for name, (first, last) in change.items()}
            run.store.add_iteration(iteration, row, [], LedgerEntry(f"{iteration}/train"))
        run.write_summary({**SUMMARY, **summary})
        return [diagnosis.name for diagnosis in diagnose(run)]


def test_a_healthy_run_has_no_diagnosis(tmp_path: Path) -> None:
    assert write_run(tmp_path / "run", {}, {}) == []


@pytest.mark.parametrize(
    ("change", "summary", "expected"),
    [
        ({}, {"equal_returns": "every episode had the return 0"}, "equal_rewards"),
        ({"frac_reward_zero_std": (0.5, 1.0)}, {}, "no_variance_in_groups"),
        ({"truncated": (0.9, 0.95)}, {}, "truncation"),
        ({"tools/malformed": (50.0, 50.0)}, {}, "unreadable_calls"),
        ({"failures": (6.0, 6.0)}, {"failures": {"reward": 60}}, "failed_episodes"),
        ({"entropy": (1.2, 0.01), "reward": (0.4, 0.4)}, {}, "entropy_collapse"),
        ({"approx_kl": (0.1, 2.0)}, {}, "kl_explosion"),
        ({"sampling_logprob_difference": (0.4, 0.4)}, {}, "sampling_drift"),
        ({"clip_fraction": (0.6, 0.7)}, {}, "learning_rate_too_high"),
        ({"approx_kl": (0.0, 0.0), "clip_fraction": (0.0, 0.0)}, {}, "learning_rate_too_low"),
        ({}, {"gain": -1.0, "gain_low": -4.0, "gain_high": 2.0}, "reward_without_success"),
        ({"reward": (0.4, 0.4)}, {"gain": -9.0, "gain_low": -12.0, "gain_high": -6.0}, "worse_than_before"),
        ({}, {"gain": 5.0, "gain_low": -6.0, "gain_high": 16.0, "problems": 50}, "evaluation_too_small"),
        ({}, {"fell": ["percent"]}, "forgetting"),
    ],
)
def test_each_disease_is_found(change: dict[str, Any], summary: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert write_run(tmp_path / "run", change, summary) == [expected]


def test_a_solved_task_needs_no_variance_and_no_entropy(tmp_path: Path) -> None:
    change = {"reward": (0.5, 0.99), "entropy": (1.2, 0.01), "frac_reward_zero_std": (0.3, 0.99)}
    assert write_run(tmp_path / "run", change, {}) == []


def test_the_size_of_an_evaluation_is_calculated(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {}, {"gain": 5.0, "gain_low": -5.0, "gain_high": 15.0, "problems": 50})
    with Run.open(tmp_path / "run", read_only=True) as run:
        [diagnosis] = diagnose(run)
    assert "about 200 held-out problems" in diagnosis.advice


def test_real_runs_have_the_diseases_that_they_were_given(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "iterations": 4,
        "episodes": 16,
        "num_envs": 16,
        "evaluation": 0,
        "progress": False,
        "threads": 1,
    }
    rows = [{"prompt": f"What is {n} + 4?"} for n in range(3, 33)]
    names = {}
    for name, values in {
        "constant": {"reward": lambda completion: 1.0},
        "cut": {"reward": lambda completion, completion_ids: float(len(set(completion_ids))), "max_tokens": 2},
    }.items():
        result = train(prompts=rows, out=tmp_path / name, **{**small, **values})
        with Run.open(result.folder, read_only=True) as run:
            names[name] = {diagnosis.name for diagnosis in diagnose(run)}
    assert "equal_rewards" in names["constant"]
    assert "truncation" in names["cut"]


@pytest.mark.parametrize(("learning_rate", "expected"), [(1e-3, set()), (1.0, {"kl_explosion"})])
def test_a_learning_rate_far_off_is_found_in_cartpole(learning_rate: float, expected: set[str], tmp_path: Path) -> None:
    values: dict[str, Any] = {"iterations": 8, "evaluation": 0, "progress": False, "threads": 1}
    train(env="CartPole-v1", learning_rate=learning_rate, out=tmp_path / "run", **values)
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert {diagnosis.name for diagnosis in diagnose(run)} & {"kl_explosion", "learning_rate_too_high"} == expected
    page, _ = render_with_figures(tmp_path / "run")
    assert ("kl explosion: an update moved the policy" in page) == bool(expected)
