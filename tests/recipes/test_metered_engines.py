"""The limits on model calls that recipes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import SettingsError
from palaestra.models import registry as models
from palaestra.recipes.evaluate.recipe import evaluate
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.research.bench import bench
from palaestra.recipes.research.recipe import run_research
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import study

MODEL = "http://127.0.0.2:9/v1#unpriced"
DILEMMA = "prisoners_dilemma"
RECIPES: dict[str, Callable[[Path], Any]] = {
    "teach, the writer": lambda out: teach(writer=MODEL, max_cost=1.0, out=out),
    "teach, the planner": lambda out: teach(
        teacher="skill_tree", teacher_kwargs={"policy": "model"}, planner=MODEL, max_cost=1.0, out=out
    ),
    "teach, discovery": lambda out: teach(discover=MODEL, max_cost=1.0, out=out),
    "study": lambda out: study(TeachSettings(max_cost=1.0), {"writer": ["task", MODEL]}, 2, out=out),
    "evaluate": lambda out: evaluate(model=MODEL, max_cost=1.0, out=out),
    "research": lambda out: run_research(task=DILEMMA, agent="model", model=MODEL, max_cost=1.0, out=out),
    "research, the best of several": lambda out: run_research(
        task=DILEMMA, agent="best_of:2:model", model=MODEL, temperature=1.0, max_cost=1.0, out=out
    ),
    "bench": lambda out: bench(
        ResearchSettings(max_cost=1.0), tasks=[DILEMMA], agents=["baseline", f"model:{MODEL}"], out=out
    ),
    "bench, all runs together": lambda out: bench(
        tasks=[DILEMMA], agents=["baseline", f"model:{MODEL}"], total_cost=1.0, out=out
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_dollar_limit_without_a_known_price_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(models, "load", load)
    monkeypatch.delenv("PALAESTRA_PRICES", raising=False)
    with pytest.raises(SettingsError, match=r"price of .*#unpriced"):
        RECIPES[name](tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [TeachSettings, EvaluateSettings, ResearchSettings])
def test_the_limit_of_a_call_is_a_setting_of_600_seconds(kind: type[Any]) -> None:
    assert next(field.default for field in fields(kind) if field.name == "call_timeout") == 600.0
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SettingsError, match="'call_timeout'"):
            kind(call_timeout=seconds)
