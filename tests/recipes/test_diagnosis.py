"""Each disease of a run is found in a run that has it, and healthy runs have none."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from palaestra import train
from palaestra.core.records import Attempt, Completion, Message, Problem, Score
from palaestra.recipes.diagnosis import Diagnosis, diagnose
from palaestra.recipes.settings import to_plain
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.train.presets import make_settings
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


DISEASES: list[tuple[dict[str, tuple[float, float]], dict[str, Any], str]] = [
    ({}, {"equal_returns": "every episode had the return 0"}, "equal_rewards"),
    ({"frac_reward_zero_std": (0.5, 1.0)}, {}, "no_variance_in_groups"),
    ({"truncated": (0.9, 0.95)}, {}, "truncation"),
    ({"tools/malformed": (50.0, 50.0)}, {}, "unreadable_calls"),
    ({"failures": (6.0, 6.0)}, {"failures": {"reward": 60}}, "failed_episodes"),
    ({"entropy": (1.2, 0.01), "reward": (0.4, 0.4)}, {}, "entropy_collapse"),
    ({"approx_kl": (0.1, 2.0)}, {}, "kl_explosion"),
    ({"sampling_logprob_difference": (0.4, 0.4)}, {}, "sampling_drift"),
    ({"clip_fraction": (0.6, 0.7), "reward": (0.4, 0.4)}, {}, "learning_rate_too_high"),
    ({"approx_kl": (0.0, 0.0), "clip_fraction": (0.0, 0.0)}, {}, "learning_rate_too_low"),
    ({}, {"gain": -1.0, "gain_low": -4.0, "gain_high": 2.0}, "reward_without_success"),
    ({"reward": (0.4, 0.4)}, {"gain": -9.0, "gain_low": -12.0, "gain_high": -6.0}, "worse_than_before"),
    ({}, {"gain": 5.0, "gain_low": -6.0, "gain_high": 16.0, "problems": 50}, "evaluation_too_small"),
    ({}, {"fell": ["percent"]}, "forgetting"),
]
HEALTHY_RUNS = json.loads((Path(__file__).parents[2] / "benchmarks" / "diagnose_healthy.json").read_text())
"""What `benchmarks/diagnose_healthy.py` stored of the runs that it trained."""


@dataclass(frozen=True)
class RunInMemory:
    """What `diagnose` reads of a run, without a folder."""

    recipe: str
    settings: dict[str, Any]
    summary: dict[str, Any]
    table: dict[int, dict[str, float]]

    @property
    def store(self) -> Any:
        return self

    def metrics(self) -> dict[int, dict[str, float]]:
        return self.table

    def phases(self) -> list[str]:
        return []


def diagnose_values(
    change: dict[str, tuple[float, float]],
    summary: dict[str, Any],
    settings: dict[str, Any] = SETTINGS,
    recipe: str = "train",
) -> list[Diagnosis]:
    """The diagnoses of a run of ten iterations.

    Arguments:
        change: the values of metrics in the first three iterations, and after them.
    """
    table = {k: dict(HEALTHY, reward=0.4 + 0.03 * k + 0.01 * (k % 2)) for k in range(1, 11)}
    for iteration, row in table.items():
        row |= {name: first if iteration <= 3 else last for name, (first, last) in change.items()}
    run: Any = RunInMemory(recipe, settings, {**SUMMARY, **summary}, table)
    return diagnose(run)


def name_findings(diagnoses: list[Diagnosis]) -> list[str]:
    return [diagnosis.name for diagnosis in diagnoses]


def test_a_healthy_run_has_no_diagnosis() -> None:
    assert diagnose_values({}, {}) == []


@pytest.mark.parametrize(
    ("change", "summary", "expected"), DISEASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_disease_is_found(change: dict[str, Any], summary: dict[str, Any], expected: str) -> None:
    assert name_findings(diagnose_values(change, summary)) == [expected]


@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_runs_that_learned_have_no_diagnosis(name: str) -> None:
    stored = HEALTHY_RUNS[name]
    rows = enumerate(zip(*stored["metrics"].values(), strict=True))
    table = {k: {n: v for n, v in zip(stored["metrics"], row, strict=True) if v is not None} for k, row in rows}
    run: Any = RunInMemory(stored["recipe"], stored["settings"], stored["summary"], table)
    assert diagnose(run) == []


TRAIN_KINDS = [
    {"env": env, "algorithm": algorithm, **more}
    for env, more in (("CartPole-v1", {}), ("palaestra/CoT-v0", {"rollout": "engine"}))
    for algorithm in ("ppo", "grpo", "rloo", "reinforce")
]


@pytest.mark.parametrize("values", TRAIN_KINDS, ids=lambda values: f"{values['env']} {values['algorithm']}")
def test_advised_options_of_train_have_an_effect(values: dict[str, Any]) -> None:
    settings = to_plain(make_settings(values))
    known = {**settings, **settings["hyperparameters"], "kl_coef": 0.05}
    for change, summary, expected in DISEASES:
        diagnoses = diagnose_values(change, summary, settings)
        assert diagnoses or expected == "learning_rate_too_low"
        for diagnosis in diagnoses:
            assert diagnosis.advice, diagnosis
            for option in re.findall(r"--([a-z-]+)", str(diagnosis)):
                name = option.replace("-", "_")
                make_settings({**values, name: known[name]})  # Raises for an option without effect.


@pytest.mark.parametrize("learning", ["supervised", "preference", "practice"])
def test_advised_options_of_teach_have_an_effect(learning: str) -> None:
    names = {f.name for f in fields(TeachSettings)} - ({"learning_rate", "epochs"} if learning == "practice" else set())
    settings = to_plain(TeachSettings(learning=learning))
    for _, summary, expected in DISEASES[-3:]:
        [diagnosis] = diagnose_values({}, summary, settings, "teach")
        assert diagnosis.name == expected
        assert diagnosis.advice
        for option in re.findall(r"--([a-z-]+)", str(diagnosis)):
            assert option.replace("-option", "-kwargs").replace("-", "_") in names, diagnosis
        assert ("--student-option kl_coef=0.05" in str(diagnosis)) == (
            learning == "practice" and expected != "evaluation_too_small"
        )


@pytest.mark.parametrize(("answer", "expected"), [("", ["unreadable_answers"]), ("7", [])])
def test_answers_that_cannot_be_read_are_found(answer: str, expected: list[str], tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "train", SETTINGS) as run:
        for number in range(10):
            problem = Problem(f"p{number}", (Message("user", "?"),), "8")
            text = answer if number < 4 else "8"
            attempt = Attempt(problem, Completion(text), Score(0.0, {"extracted": text}))
            run.store.add_attempts("3/test", [attempt], LedgerEntry("3/test"))
        assert name_findings(diagnose(run)) == expected


def test_drift_is_found_with_a_learning_rate_of_zero() -> None:
    settings = {**SETTINGS, "hyperparameters": {"learning_rate": 0.0, "n_epochs": 1}}
    assert name_findings(diagnose_values({"approx_kl": (0.02, 0.02)}, {}, settings)) == ["sampling_drift"]
    assert diagnose_values({"approx_kl": (1e-6, 1e-6)}, {}, settings) == []


def test_a_solved_task_needs_no_variance_and_no_entropy() -> None:
    change = {"reward": (0.5, 0.99), "entropy": (1.2, 0.01), "frac_reward_zero_std": (0.3, 0.99)}
    assert diagnose_values(change, {}) == []


def test_the_size_of_an_evaluation_is_calculated() -> None:
    settings = to_plain(TeachSettings())
    summary = {"gain": 5.0, "gain_low": -5.0, "gain_high": 15.0, "problems": 50}
    [diagnosis] = diagnose_values({}, summary, settings, "teach")
    assert "--test 100" in str(diagnosis)
    assert "about 200 problems" in str(diagnosis)


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
    assert ("kl explosion: the last updates moved the policy" in page) == bool(expected)
