"""Planted faults of environments whose actions are texts, and sound ones without an alarm."""

from __future__ import annotations

from pathlib import Path

import broken_talks
import gymnasium
import pytest
from broken_talks import SOUND_TALKS, TALK_FAULTS
from planted import list_faults, list_sound

from palaestra.recipes.check import scorer
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
