"""From Python, a run folder can be resumed, reported, loaded and used as a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import processes
import pytest
import torch

import palaestra
from palaestra.core.errors import ModelError, RunError, SettingsError

CONTROL = {"env": "CartPole-v1", "iterations": 2, "num_envs": 2, "n_steps": 8, "evaluation": 0, "threads": 1}
TEACH = {
    "skills": ("addition",),
    "rounds": 1,
    "lesson_size": 8,
    "validation": 2,
    "test": 2,
    "epochs": 1,
    "threads": 1,
    "answer_tokens": 24,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    palaestra.train(**CONTROL, out=folder / "control")
    palaestra.teach(**TEACH, out=folder / "teach")
    return folder


def test_resume_and_report_take_a_folder(runs: Path) -> None:
    result = palaestra.resume(str(runs / "teach"))
    assert result.summary == json.loads((runs / "teach" / "summary.json").read_text())
    assert palaestra.write_report(runs / "teach") == runs / "teach" / "report.html"
    with pytest.raises(SettingsError, match=r"train .*max_cost"):
        palaestra.resume(runs / "control", max_cost=1.0)


def test_load_policy_returns_the_trained_weights(runs: Path, tmp_path: Path) -> None:
    trained = palaestra.train(**CONTROL, out=tmp_path / "control")
    loaded = palaestra.load_policy(tmp_path / "control")
    assert type(loaded) is type(trained.policy)
    for mine, theirs in zip(loaded.parameters(), trained.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    student = palaestra.load_policy(runs / "teach", device="cpu")
    assert student.tokenizer is not None
    shutil.rmtree(tmp_path / "control" / "checkpoints")
    with pytest.raises(RunError, match="no checkpoint"):
        palaestra.load_policy(tmp_path / "control")


def test_a_run_folder_is_a_model(runs: Path, tmp_path: Path) -> None:
    result = palaestra.evaluate(model=str(runs / "teach"), skills=("addition",), problems=2, out=tmp_path / "run")
    assert result.summary["model"] == str(runs / "teach")
    with pytest.raises(ModelError, match="not a language model"):
        palaestra.evaluate(model=str(runs / "control"), out=tmp_path / "other")
    with pytest.raises(ModelError, match="run of evaluate"):
        palaestra.evaluate(model=str(tmp_path / "run"), out=tmp_path / "other")
    command = processes.run_command(
        "train",
        "--model",
        runs / "teach",
        "--iterations",
        "1",
        "--num-envs",
        "8",
        "--episodes",
        "8",
        "--evaluation",
        "0",
        "--threads",
        "1",
        "--out",
        tmp_path / "train",
    )
    assert command.returncode == 0, command.stderr
    again = palaestra.evaluate(model=str(tmp_path / "train"), skills=("addition",), problems=1, out=tmp_path / "third")
    assert again.report.count == 1


def test_a_run_folder_is_a_student(runs: Path, tmp_path: Path) -> None:
    command = processes.run_command(
        "teach",
        "--student",
        runs / "teach",
        "--skill",
        "addition",
        "--rounds",
        "1",
        "--lesson-size",
        "8",
        "--validation",
        "2",
        "--test",
        "2",
        "--epochs",
        "1",
        "--threads",
        "1",
        "--out",
        tmp_path / "run",
    )
    assert command.returncode == 0, command.stderr
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (runs / "teach", tmp_path / "run"))
    assert second["student"] == str(runs / "teach")
    assert second["before"] == first["after"]
