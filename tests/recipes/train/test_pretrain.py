from pathlib import Path

import pytest

from palaestra import pretrain
from palaestra.models import registry
from palaestra.models.embedded import EMBEDDED
from palaestra.recipes.train import pretrain as recipe
from palaestra.runs.files import read_json
from palaestra.students import pretraining
from palaestra.tasks.base import make_task


def test_a_small_coder_is_pretrained_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "TOKENIZER_EXAMPLES", 300)
    monkeypatch.setattr(recipe, "TOKENIZER_EXAMPLES_PER_SKILL", 5)
    monkeypatch.setattr(pretraining, "_CONVERSATIONS", 32)
    for name in ("code-skills", "tools-skills"):
        monkeypatch.setattr(type(make_task(name)), "max_tokens", 8, raising=False)
    losses: list[float] = []
    report = pretrain(
        model="nano-coder",
        steps=20,
        batch_size=2048,
        layers=1,
        width=32,
        problems=1,
        device="cpu",
        out=str(tmp_path / "small"),
        listener=lambda event: losses.extend(event.data.values()) if event.phase == "pretrain" else None,
    )
    skills = [skill for task in EMBEDDED["nano-coder"].tasks for skill in make_task(task).skills()]
    assert sorted(part.name for part in report.slices) == sorted(skills)
    assert read_json(tmp_path / "small" / "summary.json")["loss"] == losses[-1] > 0
    card = (tmp_path / "small" / "README.md").read_text()
    assert all(f"| {skill} |" in card for skill in skills)
    loaded = registry.load(str(tmp_path / "small"), device="cpu")
    assert loaded.weights.config.max_position_embeddings == EMBEDDED["nano-coder"].context
    assert loaded.weights.config.num_key_value_heads == 1


def test_defaults_are_those_of_the_row() -> None:
    for name, row in EMBEDDED.items():
        settings = recipe.PretrainSettings(model=name).with_defaults()  # type: ignore[arg-type]
        assert (settings.steps, settings.batch_size, settings.layers) == (row.steps, row.batch_size, row.layers)
        assert recipe.PretrainSettings(model=name, layers=2).with_defaults().layers == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("name", list(EMBEDDED))
def test_the_card_measures_every_skill(name: str) -> None:
    """Also skills with fewer problems than requested."""
    for task, problems in recipe.draw_tests(recipe.PretrainSettings(model=name)):  # type: ignore[arg-type]
        assert {problem.skill for problem in problems} == set(task.skills())
