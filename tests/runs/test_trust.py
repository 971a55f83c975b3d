"""Settings that name code run only for the user who started the run, or with trust."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import RunError
from palaestra.runs.run import Run
from palaestra.runs.trust import check_trust, copy_code, is_own_pickle, list_code, record_pickle, record_trust


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Become another user of this machine."""

    def switch_user(name: str) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))

    switch_user("alice")
    return switch_user


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text("x = 1\n")
    return {"env": f"{tmp_path / 'mine.py'}:Env", "env_kwargs": {"level": 2}, "seed": 3}


@pytest.mark.parametrize(
    "settings",
    [
        {"env": "CartPole-v1", "policy": "mlp", "hyperparameters": {"gamma": 0.9}, "plugins": [], "agent": ""},
        {"env": "ALE/Pong-v5", "device": "cuda:1", "executor": "processes:4"},
        {
            "env": "palaestra/CoT-v0",
            "env_kwargs": {"skills": ["clock", "percent"], "problems": 10},
            "model": "owner/name",
        },
        {"task": "math-skills", "student": "nano", "writer": "openai:gpt-5", "stop": ["\n\n", "Answer: "]},
        {"task": "prisoners_dilemma", "agent": "model:nano", "history": ["last:4"], "sandbox": "bubblewrap"},
        {"env": "text:FrozenLake-v1", "tags": ["see http://host/a.py"]},
    ],
)
def test_plain_settings_name_no_code(settings: dict[str, Any]) -> None:
    assert list_code("research" if "sandbox" in settings else "train", settings) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plugins", ["my_module"]),
        ("plugins", ["/shared/plugin.py"]),
        ("env", "games.py:Chess"),
        ("env", "my_package:Chess-v0"),
        ("env", "text:games.py:Chess"),
        ("env", "verifiers:anything"),
        ("env", "openenv:http://host:8000"),
        ("env_kwargs", ["opponent=players:random"]),
        ("env_kwargs", ['opponent="players\\u003arandom"']),
        ("env_kwargs", ['nested={"a": ["players:random"]}']),
        ("env_kwargs", ["sandbox=none"]),
        ("sandbox", "none"),
        ("task", "subprocess:Popen"),
        ("task", "text:Evil"),
        ("task", "./folder"),
        ("task", "~/folder"),
        ("algorithm", "mine:PPO"),
        ("hyperparameters", {"optimizer": "mine:Adam"}),
        ("hyperparameters", {"executor": "processes:Evil"}),
        ("agent", "bash"),
        ("agent", "python agent.py"),
        ("engine_kwargs", ["trust_remote_code=true"]),
        ("trainer_kwargs", ["command=anything"]),
        ("writer", "http://host/v1#model"),
        ("model", "https://host/v1#model"),
        ("executor", "ray://host:10001"),
        ("executor", "ray:host:6379"),
        ("mlgym", "checkout"),
        ("prompts", "/shared/prompts"),
        ("memory", "authorized_keys"),
        ("validation_tasks", ["data path=/shared/data"]),
        ("validation_tasks", ["mine:Task problems=3"]),
    ],
)
def test_settings_that_could_run_code_are_listed(name: str, value: Any) -> None:
    assert list_code("train", {"seed": 0, name: value})


def test_a_folder_here_with_the_name_of_a_task_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prisoners_dilemma").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list_code("research", {"task": "prisoners_dilemma"})
    assert list_code("train", {"env": "palaestra/Research-v0", "env_kwargs": {"task": "prisoners_dilemma"}})


def test_only_the_user_who_started_a_run_continues_it(
    tmp_path: Path, settings: dict[str, Any], user: Callable[[str], None]
) -> None:
    Run.create(tmp_path / "run", "train", settings).close()
    check_trust(tmp_path / "elsewhere", "train", settings)
    user("bob")
    with pytest.raises(RunError, match=r"env=.*mine\.py:Env.*--trust"):
        check_trust(tmp_path / "run", "train", settings)
    check_trust(tmp_path / "run", "train", settings, trust=True)
    check_trust(tmp_path / "run", "train", settings)


def test_own_code_with_other_arguments_is_not_trusted(tmp_path: Path, settings: dict[str, Any]) -> None:
    record_trust("train", settings)
    for changed in ({"env_kwargs": {"level": 3}}, {"plugins": ["evil"]}, {"seed": 4}):
        with pytest.raises(RunError, match="have not started"):
            check_trust(tmp_path, "train", {**settings, **changed})
    with pytest.raises(RunError, match="have not started"):
        check_trust(tmp_path, "teach", settings)


def test_changed_code_needs_trust_once(tmp_path: Path, settings: dict[str, Any]) -> None:
    record_trust("train", settings)
    (tmp_path / "mine.py").write_text("x = 2\n")
    with pytest.raises(RunError, match=r"changed .*mine\.py"):
        check_trust(tmp_path, "train", settings)
    check_trust(tmp_path, "train", settings, trust=True)
    check_trust(tmp_path, "train", settings)


def test_a_module_of_the_same_name_elsewhere_is_other_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_module_for_trust.py").write_text("x = 1\n")
    named = {"task": "own_module_for_trust:Task"}
    monkeypatch.chdir(tmp_path / "mine")
    record_trust("evaluate", named)
    check_trust(tmp_path, "evaluate", named)
    monkeypatch.chdir(tmp_path / "theirs")
    with pytest.raises(RunError, match="has changed"):
        check_trust(tmp_path, "evaluate", named)


def test_the_files_of_a_task_folder_and_a_command_are_code(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    for path, named in (
        (tmp_path / "task" / "evaluate.py", {"task": str(tmp_path / "task")}),
        (tmp_path / "task" / "evaluate.py", {"task": ["mine"], "places": {"mine": str(tmp_path / "task")}}),
        (tmp_path / "task" / "data.py", {"env_kwargs": {"task": str(tmp_path / "task")}}),
        (tmp_path / "agent.py", {"agent": f"python '{tmp_path / 'agent.py'}' --fast"}),
    ):
        path.write_text("x = 1\n")
        record_trust("train", named)
        check_trust(tmp_path, "train", named)
        path.write_text("x = 2\n")
        with pytest.raises(RunError, match=path.name):
            check_trust(tmp_path, "train", named)


def test_a_pickle_belongs_to_the_user_who_wrote_it(user: Callable[[str], None]) -> None:
    record_pickle(b"state")
    assert is_own_pickle(b"state")
    assert not is_own_pickle(b"other")
    user("bob")
    assert not is_own_pickle(b"state")


def test_a_run_starts_without_a_writable_home(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    Run.create(tmp_path / "run", "train", settings).close()
    with pytest.raises(RunError, match="have not started"):
        check_trust(tmp_path / "run", "train", settings)


def test_files_of_the_same_name_are_both_copied(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"name = {name!r}\n")
    copy_code({"reward": [f"{tmp_path}/{name}/mine.py:f" for name in ("first", "second")]}, tmp_path / "code")
    assert sorted(path.read_text() for path in (tmp_path / "code").iterdir()) == [
        "name = 'first'\n",
        "name = 'second'\n",
    ]
