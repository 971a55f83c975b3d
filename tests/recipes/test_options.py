"""The keyword arguments of Python calls have the types of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.helpers.keyword_stub import STUB, write_stub

from palaestra.recipes.evaluate.recipe import EvaluateResult
from palaestra.recipes.train.recipe import TrainResult


def test_the_stub_of_keywords_is_up_to_date() -> None:
    assert STUB.read_text(encoding="utf-8") == write_stub(), "run `make stub`"


def test_results_have_a_short_repr() -> None:
    summary = {"before": 40.0, "after": 60.0, "gain": 20.0, "unit": "percent", "seconds": 3.0, "env": "CoTEnv-v0"}
    result = TrainResult(Path("runs/a"), summary, object())
    assert repr(result) == "TrainResult(before=40.0, after=60.0, gain=20.0, unit='percent', folder='runs/a')"
    evaluated: Any = EvaluateResult(Path("runs/b"), None, {"before": None, "after": 60.0, "unit": "percent"})  # type: ignore[arg-type]
    assert repr(evaluated) == "EvaluateResult(after=60.0, unit='percent', folder='runs/b')"
