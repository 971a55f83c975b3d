"""Published faults of other projects, rebuilt, are found by the check that is meant for them."""

from __future__ import annotations

from pathlib import Path

import published_faults
import pytest
from planted import list_faults
from published_faults import PUBLISHED

from palaestra.recipes.check import answers, floors, scorer
from palaestra.recipes.check.recipe import check
from palaestra.recipes.check.records import CheckStatus

HERE = Path(published_faults.__file__)


@pytest.fixture(autouse=True)
def shorten_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "_SLOW", 0.5)
    monkeypatch.setattr(answers, "_CASES", 6)
    monkeypatch.setattr(floors, "_FIRST", 2)
    monkeypatch.setattr("palaestra.recipes.check.scorer.call_elsewhere", lambda *_: None)


@pytest.mark.parametrize("kind", list_faults({kind: check_id for kind, (_, check_id) in PUBLISHED.items()}))
def test_a_published_fault_is_found(kind: type) -> None:
    _, check_id = PUBLISHED[kind]
    report = check(f"{HERE}:{kind.__name__}", only=check_id, oracle=getattr(kind, "oracle", None))
    result = report.get(check_id)
    assert result.status in (CheckStatus.FAIL, CheckStatus.WARN), result
    assert report.with_status(CheckStatus.FAIL, CheckStatus.WARN) == [result]
    assert result.remediation


def test_each_fixture_tells_its_fault() -> None:
    assert len(PUBLISHED) >= 30
    assert all(kind.__doc__ and "#" in citation for kind, (citation, _) in PUBLISHED.items())
