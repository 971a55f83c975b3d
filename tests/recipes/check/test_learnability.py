"""Planted faults of what can be learned, each for one check of level 4, and sound environments that a short run learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broken_learning
import gymnasium
import pytest
from broken_learning import FAULTS, SOUND, Match
from planted import list_faults, list_sound

from palaestra.envs.turn import TurnEnv
from palaestra.models import registry
from palaestra.recipes.check import trials
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import SubjectReport

HERE = Path(broken_learning.__file__)
CONTROL = {
    "num_envs": 16,
    "n_steps": 16,
    "batch_size": 64,
    "n_epochs": 6,
    "learning_rate": 5e-3,
    "critic_learning_rate": 5e-3,
}
TEXT = {"episodes": 48, "num_envs": 48, "max_tokens": 10, "learning_rate": 1e-3}


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Load the model once, so that the processes of the checks inherit all imports."""
    from palaestra.recipes.train import build  # noqa: F401

    registry.load("nano")


def run_trial(kind: type, only: str, monkeypatch: pytest.MonkeyPatch, iterations: int = 12) -> SubjectReport:
    """Check a class with a trial of a few seconds."""
    is_text = not issubclass(kind, gymnasium.Env) or issubclass(kind, TurnEnv)
    size = trials.TrialSettings(60.0, 8 if is_text else iterations, 8, 4, 16, 32, TEXT if is_text else CONTROL)
    monkeypatch.setattr(trials, "TRIAL", size)
    return check(f"{HERE}:{kind.__name__}", level=4, only=only)


@pytest.mark.parametrize("kind", list_faults(FAULTS))
def test_a_planted_fault_is_found(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_trial(kind, FAULTS[kind], monkeypatch).get(FAULTS[kind])
    fails = ("gameability", "BySeed", "AcceptsAll")
    assert result.status == ("fail" if any(name in f"{FAULTS[kind]} {kind.__name__}" for name in fails) else "warn"), (
        result
    )
    assert result.remediation
    assert result.measured


@pytest.mark.parametrize("kind", list_sound(*SOUND))
def test_a_sound_environment_is_learned(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run_trial(kind, "statistical.gameability_gap", monkeypatch, 24)
    signal, gap = (report.get(f"statistical.{name}") for name in ("training_signal", "gameability_gap"))
    assert str(signal.status) == "pass", signal
    assert 0 < signal.measured["gain_low"] <= signal.measured["gain"] <= signal.measured["gain_high"]
    assert str(gap.status) == SOUND[kind], gap


def test_a_trial_ends_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_MIN_SECONDS", 1.0)
    report = check(f"{HERE}:PaysNoise", level=4, budget=8, only="statistical.training_signal")
    result = report.get("statistical.training_signal")
    assert str(result.status) == "warn"
    assert result.measured["seconds"] < 8
    assert not report.stopped


def test_without_time_a_trial_is_skipped() -> None:
    report = check(f"{HERE}:Match", level=4, budget=5, only="statistical.training_signal")
    assert str(report.get("statistical.training_signal").status) == "skip"


def test_an_environment_that_the_learner_cannot_play_is_skipped() -> None:
    class Named(Match):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Text(400)  # type: ignore[assignment]

        def observe(self) -> Any:
            return "".join(filter(str.isalnum, str(super().observe())))

    report = check(Named, level=4, only="statistical.gameability_gap")
    assert [str(result.status) for result in report.results[-2:]] == ["skip", "skip"]
    assert "learner" in report.results[-1].summary


@pytest.mark.backends
@pytest.mark.parametrize(
    ("name", "is_task"), [("CartPole-v1", False), ("palaestra/Guess-v0", False), ("math-skills", True)]
)
def test_a_full_trial_learns(name: str, is_task: bool) -> None:
    report = check(name, level=4, only=["statistical.variance_bound", "statistical.training_signal"], is_task=is_task)
    assert str(report.get("statistical.variance_bound").status) == "pass"
    assert report.get("statistical.training_signal").measured["gain_low"] > 0
