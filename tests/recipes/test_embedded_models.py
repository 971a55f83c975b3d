from pathlib import Path
from typing import Any

import pytest
from small_coder import make_small_coder

from palaestra import evaluate, teach
from palaestra.core.errors import SettingsError
from palaestra.models import embedded, registry
from palaestra.models.embedded import EMBEDDED
from palaestra.recipes.embedded_models import check_reads_task, choose_model, choose_model_for_env
from palaestra.recipes.train.presets import make_settings
from palaestra.recipes.train.recipe import train
from palaestra.tasks.base import make_task

SMALL: dict[str, Any] = {
    "rounds": 1,
    "lesson_size": 4,
    "validation": 1,
    "test": 1,
    "epochs": 1,
    "answer_tokens": 4,
    "device": "cpu",
    "progress": False,
}


@pytest.fixture
def shipped_coder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose assets also contain `nano-coder`: its folder is enough."""
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in ("nano", "nano-vlm"):
        (assets / EMBEDDED[name].folder.name).symlink_to(EMBEDDED[name].folder)
    monkeypatch.setattr(embedded, "ASSETS", assets)
    model = make_small_coder()
    model.weights.save_pretrained(assets / "nano_coder")
    model.tokenizer.save_pretrained(assets / "nano_coder")
    return "nano-coder"


@pytest.mark.parametrize(("name", "model"), [("math-skills", "nano"), ("vision-skills", "nano-vlm")])
def test_the_default_model_fits_the_task(name: str, model: str) -> None:
    assert choose_model(make_task(name)) == model


def test_code_and_tools_get_the_coder_once_it_is_shipped(shipped_coder: str) -> None:
    for name in ("code-skills", "tools-skills"):
        assert choose_model(make_task(name)) == shipped_coder
    assert choose_model(make_task("math-skills")) == "nano"
    assert choose_model(make_task("vision-skills")) == "nano-vlm"


def test_environments_get_the_model_of_their_task(shipped_coder: str) -> None:
    assert choose_model_for_env("palaestra/Research-v0", {"task": "prisoners_dilemma"}) == shipped_coder
    assert choose_model_for_env("palaestra/CoT-v0", {"task": "code-skills", "skills": "lists"}) == shipped_coder
    assert choose_model_for_env("palaestra/Guess-v0", {}) == "nano"
    for env in ("palaestra/Research-v0", "palaestra/Writer-v0"):
        assert make_settings({"env": env}).model == shipped_coder
    assert make_settings({"env": "CartPole-v1"}).model == "nano"


def test_no_default_is_a_model_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nano").symlink_to(EMBEDDED["nano"].folder)
    monkeypatch.setattr(embedded, "ASSETS", tmp_path)
    assert choose_model(make_task("tools-skills")) == "nano"
    assert make_settings({"env": "palaestra/Research-v0"}).model == "nano"


def test_teach_refuses_a_student_that_cannot_read_the_task(tmp_path: Path, shipped_coder: str) -> None:
    for task in ("code-skills", "tools-skills"):
        with pytest.raises(SettingsError, match=f"reads 256 tokens.*use {shipped_coder}$"):
            teach(task=task, student="nano", out=tmp_path / "run", **SMALL)
    with pytest.raises(SettingsError, match="use nano-vlm"):
        teach(task="vision-skills", student="nano", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
    check_reads_task("nano", make_task("tools-skills", prompt="short", distractors=1, most_calls=2))


def test_train_refuses_a_model_that_cannot_read_the_environment(tmp_path: Path, shipped_coder: str) -> None:
    for values in (
        {"env": "palaestra/Research-v0"},
        {"env": "palaestra/Writer-v0"},
        {"env": "palaestra/CoT-v0", "task": "tools-skills"},
    ):
        with pytest.raises(SettingsError, match=f"use {shipped_coder}$"):
            train(model="nano", out=tmp_path / "run", progress=False, **values)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["code-skills", "tools-skills"])
def test_the_coder_is_taught_without_naming_it(task: str, tmp_path: Path, shipped_coder: str) -> None:
    skills = list(make_task(task).skills())[:1]
    result = teach(task=task, skills=skills, out=tmp_path / "run", **SMALL)
    assert result.summary["student"] == shipped_coder
    assert result.summary["examples"] == SMALL["lesson_size"]


def test_evaluate_uses_the_model_that_fits(tmp_path: Path, shipped_coder: str) -> None:
    result = evaluate(task="tools-skills", limit=2, max_tokens=4, device="cpu", out=tmp_path / "run", progress=False)
    assert result.summary["model"] == shipped_coder
    assert result.report.count == 2
    assert registry.locate(shipped_coder) == str(EMBEDDED[shipped_coder].folder)
