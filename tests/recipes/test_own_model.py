"""A transformers model as a Python object in `train`, `evaluate` and `teach`, as in TRL."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra import evaluate, load_policy, resume, run_research, teach, train
from palaestra.core.errors import SettingsError
from palaestra.core.records import Event
from palaestra.models.registry import LoadedModel, load
from palaestra.runs.run import INITIAL_MODEL

TRAIN: dict[str, Any] = {"iterations": 2, "episodes": 8, "num_envs": 8, "evaluation": 0, "max_tokens": 4}
TRAIN |= {"threads": 1, "checkpoint_every": 1, "prompts": [f"What is {n} + 4?" for n in range(9)]}
EVALUATE: dict[str, Any] = {"skills": ["addition"], "problems": 2, "max_tokens": 4}


def count_characters(completion: str) -> float:
    return float(len(completion))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PALAESTRA_PROGRESS", "0")
    return tmp_path / "cache"


@pytest.fixture
def model() -> LoadedModel:
    """The embedded model with other weights."""
    loaded = load("nano", device="cpu")
    with torch.no_grad():
        for parameter in loaded.weights.parameters():
            parameter.mul_(1.01)
    return loaded


def read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())["settings"]
    return settings


def test_a_model_object_is_trained_and_the_run_resumed(model: LoadedModel, cache: Path, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.weights.state_dict().items()}
    notices: list[str] = []

    def listen(event: Event) -> None:
        notices.append(str(event.data.get("text", "")))

    def stop(iteration: object) -> None:
        raise KeyboardInterrupt

    own = {"model": model.weights, "tokenizer": model.tokenizer, "reward": count_characters, **TRAIN}
    whole = train(**own, out=tmp_path / "whole", listener=listen)
    with pytest.raises(KeyboardInterrupt):
        train(**own, out=tmp_path / "part", callbacks=[stop])
    part = resume(tmp_path / "part")

    assert part.summary["weights_sha256"] == whole.summary["weights_sha256"]
    assert sum(f"palaestra resume {tmp_path / 'whole'}" in text for text in notices) == 1
    assert read_settings(whole.folder)["model"] == str(whole.folder / INITIAL_MODEL)
    assert not list(cache.glob("model-*"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.weights.state_dict().items())
    stored = load(str(whole.folder / INITIAL_MODEL), device="cpu").weights.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in stored.items())


def test_a_model_object_is_evaluated_with_its_own_weights(model: LoadedModel, tmp_path: Path) -> None:
    with torch.no_grad():
        for parameter in model.weights.parameters():
            parameter.zero_()
    result = evaluate(model=model.weights, tokenizer=model.tokenizer, out=tmp_path / "run", **EVALUATE)
    assert result.report.accuracy == 0.0
    assert read_settings(result.folder)["model"] == str(result.folder / INITIAL_MODEL)


def test_a_student_may_be_an_object_or_the_result_of_a_run(model: LoadedModel, tmp_path: Path) -> None:
    small = {
        "skills": ["addition"],
        "rounds": 1,
        "lesson_size": 4,
        "validation": 1,
        "test": 1,
        "epochs": 1,
        "threads": 1,
    }
    taught = teach(student=model, out=tmp_path / "taught", **small)  # type: ignore[arg-type]
    assert read_settings(taught.folder)["student"] == str(taught.folder / INITIAL_MODEL)
    student = load_policy(taught.folder)
    assert evaluate(model=student, out=tmp_path / "after", **EVALUATE).report.count == 2


def test_the_tokenizer_is_that_of_the_checkpoint(model: LoadedModel, tmp_path: Path) -> None:
    assert evaluate(model=model.weights, out=tmp_path / "run", **EVALUATE).report.count == 2
    model.weights.config._name_or_path = ""
    with pytest.raises(SettingsError, match="tokenizer="):
        evaluate(model=model.weights, **EVALUATE)


def test_objects_without_use_are_refused(model: LoadedModel) -> None:
    with pytest.raises(SettingsError, match="'tokenizer'"):
        evaluate(model="nano", tokenizer=model.tokenizer)
    with pytest.raises(SettingsError, match="'model'"):
        run_research(model=model)


def test_a_wrong_setting_beside_a_model_object_writes_no_run(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        train(model=model, reward=count_characters, out=tmp_path / "run", **TRAIN, device="nonsense")
    assert not (tmp_path / "run").exists()
