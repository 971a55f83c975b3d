"""Planted faults of tasks, each for one check, and sound tasks without an alarm."""

from __future__ import annotations

import pytest
from broken_tasks import TASK_FAULTS, Colors, Doubler, HashedSeed, Rooms, ScoreByHash, Sums
from planted import list_faults, list_sound

from palaestra.core.records import Completion, Failure, FailureCause, Problem, Score
from palaestra.recipes.check import scorer
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import CheckStatus


@pytest.fixture(autouse=True)
def shorten_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_SLOW", 0.5)
    monkeypatch.setattr(scorer, "_SECONDS", 1.0)


@pytest.mark.parametrize("kind", list_faults(TASK_FAULTS))
def test_a_planted_fault_of_a_task_is_found(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind not in (HashedSeed, ScoreByHash):  # The others do not need another process, which takes a second to start.
        monkeypatch.setattr("palaestra.recipes.check.scorer.call_elsewhere", lambda *_: None)
        monkeypatch.setattr("palaestra.recipes.check.problems.call_elsewhere", lambda *_: None)
    report = check(kind(), only=TASK_FAULTS[kind])
    result = report.get(TASK_FAULTS[kind])
    assert result.status in (CheckStatus.FAIL, CheckStatus.WARN), result
    assert report.with_status(CheckStatus.FAIL, CheckStatus.WARN) == [result]
    assert result.remediation


@pytest.mark.parametrize("kind", list_sound(Sums, Colors, Doubler, Rooms))
def test_a_sound_task_passes(kind: type) -> None:
    report = check(kind())
    assert not report.with_status(CheckStatus.FAIL, CheckStatus.WARN)
    assert len(report.with_status(CheckStatus.PASS)) > 10


def test_failures_are_no_floor() -> None:
    class CannotScore(Sums):
        def score(self, problem: Problem, completion: Completion) -> Score | Failure:
            return Failure(FailureCause.SCORER, "the judge does not answer")

    report = check(CannotScore(), only=["semantic.floor_gap", "semantic.canary_floor"])
    assert {str(report.get(f"semantic.{name}").status) for name in ("floor_gap", "canary_floor")} == {"skip"}


def test_endless_scores_end_the_checks_of_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    class NeverScoresLists(Sums):
        def score(self, problem: Problem, completion: Completion) -> Score | Failure:
            while completion.text.count(",") > 3:
                pass
            return super().score(problem, completion)

    monkeypatch.setattr(scorer, "_SLOW", 0.1)
    report = check(NeverScoresLists(), only=["runtime.hostile_answers", "statistical.adversarial_floor"])
    assert report.get("runtime.hostile_answers").status is CheckStatus.FAIL
    assert "hostile_answers" in report.get("statistical.adversarial_floor").summary
