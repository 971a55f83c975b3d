"""A user's task, teacher and environment: from the command line, from Python, killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import own_code
import processes
import pytest

import palaestra
from palaestra.core.errors import SettingsError
from palaestra.runs.run import Run

FILE = Path(own_code.__file__)
TEACH = {"rounds": 2, "lesson_size": 6, "validation": 2, "test": 3, "epochs": 1, "threads": 1}
TRAIN = {"iterations": 12, "num_envs": 4, "n_steps": 16, "evaluation": 2, "checkpoint_every": 2, "threads": 1}


def to_options(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the user's file."""
    (tmp_path / "mine.py").write_text(FILE.read_text())
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


@pytest.mark.backends
@pytest.mark.parametrize(
    ("command", "killed_by"),
    [
        (["evaluate", "--task", "mine.py:Doubling", "--task-option", "factor=3", "--problems", "5"], "task"),
        (["teach", "--task", "mine:Doubling", "--plugin", "mine.py", "--teacher", "repeater", *to_options(TEACH)], "teacher"),
        (["teach", "--task", "mine.py:Doubling", "--teacher", "mine.py:Repeater", *to_options(TEACH)], "teacher"),
        (["train", "--env", "mine.py:ShortPole", *to_options(TRAIN)], "environment"),
    ],
)  # fmt: skip
def test_own_code_is_killed_and_resumed_to_the_same_result(command: list[str], killed_by: str, folder: Path) -> None:
    whole = processes.run_command(*command, "--out", folder / "whole", cwd=folder)
    assert whole.returncode == 0, whole.stderr
    dies = {"OWN_CODE_DIES": str(folder / killed_by)}
    killed = processes.run_command(*command, "--out", folder / "run", cwd=folder, env=dies)
    assert killed.returncode == -9, killed.stderr
    assert (folder / killed_by).exists()
    # From another folder: the run knows where the user's file is. A bare module is found where the command is called.
    cwd = folder if any(part.startswith("mine:") for part in command) else folder / "elsewhere"
    resumed = processes.run_command("resume", folder / "run", cwd=cwd, env=dies)
    assert resumed.returncode == 0, resumed.stderr
    drop = {"seconds"}
    first, second = ({k: v for k, v in summary(folder / name).items() if k not in drop} for name in ("whole", "run"))
    assert first == second


def test_python_calls_take_classes(tmp_path: Path) -> None:
    result = palaestra.evaluate(task=own_code.Doubling, problems=3, out=tmp_path / "evaluate")
    assert result.summary["task"] == f"{FILE}:Doubling"
    taught = palaestra.teach(task=own_code.Doubling, teacher=own_code.Repeater, out=tmp_path / "teach", **TEACH)
    assert taught.summary["examples"] == 12
    trained = palaestra.train(env=own_code.ShortPole, out=tmp_path / "train", **TRAIN)
    assert trained.summary["env"] == f"{FILE}:ShortPole"
    assert trained.summary["episodes"] >= 12 * 4
    again = processes.run_command("resume", tmp_path / "teach", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


def test_python_calls_take_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.py").write_text(
        "from gymnasium import register\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "register('OwnPole-v0', CartPoleEnv, max_episode_steps=9)\n"
    )
    monkeypatch.chdir(folder)
    result = palaestra.train(plugins=["other.py"], env="OwnPole-v0", out="run", **TRAIN)
    with Run.open(folder / "run", read_only=True) as run:
        assert run.settings["plugins"] == [str(folder / "other.py")]
    assert result.summary["env"] == "OwnPole-v0"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("nowhere.py:Doubling", "nowhere.py:Doubling': FileNotFoundError"),
        (f"{FILE}:Doubbling", "own_code.py .*'Doubbling'"),
        ("no_such_module:Doubling", "'no_such_module:Doubling': ModuleNotFoundError"),
    ],
)
def test_a_reference_that_cannot_be_loaded_is_one_line(task: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        palaestra.evaluate(task=task, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
