"""Planted faults of environments whose actions are texts, and sound ones without an alarm."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import broken_talks
import gymnasium
import pytest
from broken_talks import SOUND_TALKS, TALK_FAULTS
from planted import list_faults, list_sound

from palaestra.recipes.check import scorer
from palaestra.recipes.check.leaks import _find_solving_info
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import CheckStatus

HERE = Path(broken_talks.__file__)


@pytest.fixture(autouse=True)
def shorten_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_SLOW", 0.5)
    monkeypatch.setattr(scorer, "_SECONDS", 1.0)


@pytest.mark.parametrize("kind", list_faults(TALK_FAULTS))
def test_a_planted_fault_of_a_talk_is_found(kind: type[gymnasium.Env]) -> None:
    report = check(f"{HERE}:{kind.__name__}", only=TALK_FAULTS[kind])
    result = report.get(TALK_FAULTS[kind])
    assert result.status in (CheckStatus.FAIL, CheckStatus.WARN), result
    assert report.with_status(CheckStatus.FAIL, CheckStatus.WARN) == [result]
    assert result.remediation


@pytest.mark.parametrize("kind", list_sound(*SOUND_TALKS))
def test_a_sound_talk_passes(kind: type[gymnasium.Env]) -> None:
    report = check(f"{HERE}:{kind.__name__}")
    assert not report.with_status(CheckStatus.FAIL, CheckStatus.WARN)
    assert len(report.with_status(CheckStatus.PASS)) > 10


@pytest.mark.parametrize(("usual", "finds"), [(0.0, True), (None, False)])
def test_a_failure_is_no_smaller_reward(usual: float | None, finds: bool) -> None:
    """An entry of `info` leaks if that of another episode is rewarded less, not if it could not be scored."""
    cases = [SimpleNamespace(key=str(number), info={"entry": str(number)}) for number in range(6)]
    answers: Any = SimpleNamespace(
        cases=cases,
        score=lambda case, texts: SimpleNamespace(value=1.0 if texts == [case.key] else usual),
    )
    assert bool(_find_solving_info(answers)) is finds
