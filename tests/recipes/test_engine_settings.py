from pathlib import Path

import pytest

from palaestra.core.errors import SettingsError
from palaestra.engines.base import ENGINES, BaseEngine
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.runs.run import Run


@pytest.mark.parametrize("settings", [EvaluateSettings(engine="openai"), TeachSettings(engine="mock")])
def test_an_engine_without_weights_is_one_line(settings: EvaluateSettings | TeachSettings) -> None:
    with pytest.raises(SettingsError, match=r"'engine': .*transformers or vllm"):
        settings.check_engine()


def test_options_need_an_engine_that_has_some() -> None:
    with pytest.raises(SettingsError, match="'transformers' has no options"):
        EvaluateSettings(engine_kwargs={"max_model_len": 64}).check_engine()
    settings = ResearchSettings(engine="vllm", engine_kwargs={"max_model_len": 64})
    settings.check_engine()
    assert settings.engine_kwargs == {"max_model_len": 64}


def test_engines_that_a_run_opened_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class ClosingEngine(BaseEngine):
        def __init__(self, name: str) -> None:
            self.name = self.identity = name

        def close(self) -> None:
            closed.append(self.name)

    monkeypatch.setattr(ENGINES, "_entries", {**ENGINES._entries, "closing": ClosingEngine})
    settings = TeachSettings(cache=str(tmp_path / "c.sqlite"))
    with Run.create(tmp_path / "run", "teach", {}) as run, meter_engines(run, settings) as engines:
        engines.open("closing:a")
        engines.open("closing:b", ClosingEngine("closing:b"))  # Opened elsewhere.
        assert closed == []
    assert closed == ["closing:a"]
