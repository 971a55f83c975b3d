"""Planted faults of environments, each for one check, and sound environments without an alarm."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import broken_envs
import gymnasium
import pytest
from broken_envs import FAULTS, Walk
from gymnasium.vector import SyncVectorEnv
from planted import list_faults, list_sound

from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import CheckStatus

HERE = Path(broken_envs.__file__)
SOUND = ("CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Pendulum-v1", "CliffWalking-v1", "palaestra/Guess-v0")


@pytest.mark.parametrize("kind", list_faults(FAULTS))
def test_a_planted_fault_is_found(kind: type[gymnasium.Env], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palaestra.recipes.check.runner._MIN_SECONDS", 3.0)
    monkeypatch.setattr("palaestra.recipes.check.runner._START_SECONDS", 6.0)
    monkeypatch.setattr("palaestra.recipes.check.runner._PATIENCE", 1.0)
    report = check(f"{HERE}:{kind.__name__}", only=FAULTS[kind])
    result = report.get(FAULTS[kind])
    assert result.status in (CheckStatus.FAIL, CheckStatus.WARN), result
    assert report.with_status(CheckStatus.FAIL, CheckStatus.WARN) == [result]
    assert result.remediation
    assert "palaestra check" in result.reproduction


@pytest.mark.parametrize("name", list_sound(*SOUND, *(f"{HERE}:{name}" for name in ("Walk", "Reach", "Teach"))))
def test_a_sound_environment_passes(name: str) -> None:
    report = check(name)
    assert not report.with_status(CheckStatus.FAIL, CheckStatus.WARN)
    assert len(report.with_status(CheckStatus.PASS)) > 10


def test_classes_instances_and_functions_are_checked() -> None:
    for source in (Walk, Walk(), lambda: Walk()):
        report = check(source, level=1, only="runtime.episode_determinism")
        assert str(report.verdict) == "pass", report.results


def test_the_budget_ends_the_checks() -> None:
    report = check("CartPole-v1", level=1, budget=0.05)
    assert report.stopped
    assert len(report.results) < 14


class Prints(Walk):
    """It prints much, also below Python, and calls `sys.exit` in its fifth step."""

    def step(self, action: Any) -> Any:
        sys.stdout.write("x" * 200)
        os.write(1, b"a C library")
        if self.count == 4:
            sys.exit("the simulator is gone")
        return super().step(action)


def test_an_environment_that_prints_and_exits(capfd: pytest.CaptureFixture[str]) -> None:
    result = check(Prints, level=1, only="runtime.api").get("runtime.api")
    assert "exit code 1" in result.summary
    assert "in step" in result.evidence[0]
    assert Path(__file__).name in result.evidence[0]
    assert "exception" in result.remediation
    assert capfd.readouterr().out == ""


class PaysDouble(SyncVectorEnv):
    """Its rewards are not those of the single environment."""

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        super().__init__([Walk] * num_envs)

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return (observations, rewards + 1, *rest)


class Steady(Walk):
    """Only the reset is random."""

    def draw(self) -> float:
        return super().draw() if self.is_reset else 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.is_reset = True
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.is_reset = False
        return super().step(action)


class PaysLittleLess(SyncVectorEnv):
    """Its rewards differ too little for a comparison of mean returns."""

    def __init__(self, num_envs: int = 1, **options: Any) -> None:
        super().__init__([Steady] * num_envs)

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return (observations, rewards - 0.1 * (observations[:, 0] > 4), *rest)


@pytest.mark.parametrize(
    ("single", "kind", "status"),
    [(Walk, PaysDouble, "fail"), (Steady, PaysLittleLess, "fail"), (Walk, None, "pass"), (Steady, None, "pass")],
)
def test_a_vector_environment_with_other_rewards(single: Any, kind: Any, status: str) -> None:
    entry = kind or (lambda num_envs, **options: SyncVectorEnv([single] * num_envs))
    gymnasium.register("broken/Walk-v0", entry_point=single, vector_entry_point=entry)
    try:
        report = check("broken/Walk-v0", level=1, only="runtime.vector_agreement")
        assert str(report.get("runtime.vector_agreement").status) == status
    finally:
        del gymnasium.registry["broken/Walk-v0"]
