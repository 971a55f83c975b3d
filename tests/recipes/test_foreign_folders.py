"""A run folder of somebody else: reading it runs nothing, resuming it runs its code only with trust."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import palaestra
from palaestra.core.errors import ModelError, RunError, StorageError
from palaestra.recipes.export.dataset import export_dataset
from palaestra.recipes.export.model import export_model
from palaestra.recipes.settings import load_values
from palaestra.runs.files import read_json, write_json
from palaestra.view import make_app

TRAIN: dict[str, Any] = {
    "iterations": 4, "num_envs": 2, "n_steps": 8, "evaluation": 0, "threads": 1, "checkpoint_every": 2, "progress": False
}  # fmt: skip
ENVIRONMENT = """
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

(Path(__file__).parent / "ran").touch()


class Piece:
    pass


class Env(CartPoleEnv):
    def step(self, action):
        self.piece = Piece()  # A fresh environment has none, so that only a pickle can hold the state.
        return super().step(action)


class PlainEnv(CartPoleEnv):
    pass
"""


class Stop(Exception):
    """Ends a run in the middle."""


def stop(iteration: Any) -> None:
    if iteration.number == 3:
        raise Stop


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(ENVIRONMENT)
    return tmp_path / "code" / "mine.py"


def leave(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Become another user, in whose processes the code has not run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(plugin.parent / "bob"))
    (plugin.parent / "ran").unlink()
    plugin.write_text(f"{ENVIRONMENT}\n# changed, so that it is imported again\n")
    monkeypatch.setattr(
        "sys.modules", {name: module for name, module in __import__("sys").modules.items() if "mine" not in name}
    )


def test_reading_a_run_does_not_run_its_code(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = palaestra.train(env=f"{plugin}:Env", plugins=[str(plugin)], out=tmp_path / "run", **TRAIN)
    leave(plugin, monkeypatch)
    exported = export_model(tmp_path / "run", tmp_path / "exported")
    for folder in (tmp_path / "run", exported):
        weights = palaestra.load_policy(folder).state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in trained.policy.state_dict().items())
    palaestra.write_report(tmp_path / "run")
    export_dataset(tmp_path / "run", tmp_path / "data")
    with TestClient(make_app([tmp_path]), base_url="http://127.0.0.1") as client:
        for page in ("/", "/run/run/", "/run/run/episodes", "/settings?run=run"):
            assert client.get(page).status_code == 200
    with pytest.raises(ModelError, match="load_policy"):
        palaestra.evaluate(model=str(tmp_path / "run"), out=tmp_path / "evaluation")
    with pytest.raises(RunError, match=r"env=.*mine\.py"):
        load_values(tmp_path / "run" / "settings.json")
    assert not (plugin.parent / "ran").exists()


@pytest.mark.parametrize("name", ["Env", "PlainEnv"])
def test_a_foreign_run_is_resumed_with_trust_only(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whole = palaestra.train(env=f"{plugin}:{name}", out=tmp_path / "whole", **TRAIN)
    with pytest.raises(Stop):
        palaestra.train(env=f"{plugin}:{name}", out=tmp_path / "run", callbacks=[stop], **TRAIN)
    checkpoint = tmp_path / "run" / "checkpoints" / "iteration-2"
    assert (checkpoint / "environment.pkl").exists() == (name == "Env")
    assert (checkpoint / "environment.json").exists() == (name == "PlainEnv")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    own = palaestra.resume(tmp_path / "copy", progress=False)
    assert own.summary["weights_sha256"] == whole.summary["weights_sha256"]
    leave(plugin, monkeypatch)
    with pytest.raises(RunError, match=r"env=.*mine\.py.*--trust"):
        palaestra.resume(tmp_path / "run", progress=False)
    assert not (plugin.parent / "ran").exists()
    trusted = palaestra.resume(tmp_path / "run", progress=False, trust=True)
    assert trusted.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_the_command_asks_for_trust(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from palaestra.cli.main import app

    palaestra.train(env=f"{plugin}:PlainEnv", out=tmp_path / "run", **TRAIN)
    leave(plugin, monkeypatch)
    refused = CliRunner().invoke(app, ["resume", str(tmp_path / "run")])
    assert isinstance(refused.exception, RunError)
    assert not (plugin.parent / "ran").exists()
    trusted = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--trust"])
    assert trusted.exit_code == 0, trusted.output


class Attack:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("attacked"),)


def test_a_foreign_pickle_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop):
        palaestra.train(env="CartPole-v1", out="run", callbacks=[stop], **TRAIN)
    checkpoint = tmp_path / "run" / "checkpoints" / "iteration-2"
    (checkpoint / "environment.json").unlink()
    (checkpoint / "environment.pkl").write_bytes(pickle.dumps({"env": Attack()}))
    palaestra.load_policy("run")
    with pytest.raises(RunError, match="pickle"):
        palaestra.resume("run", progress=False)
    assert not Path("attacked").exists()


def test_a_model_folder_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.models import registry as models

    monkeypatch.chdir(tmp_path)
    shutil.copytree(models.locate("nano"), "model")
    Path("model/custom.py").write_text("import pathlib; pathlib.Path('attacked').touch()")
    Path("evil.py").write_text("import pathlib; pathlib.Path('attacked').touch()")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = read_json(Path("model/config.json"))
    write_json(Path("model/config.json"), {**config, "model_type": "own", "auto_map": {"AutoConfig": "custom.Config"}})
    with pytest.raises(ModelError):
        models.load("./model")
    write_json(Path("model/config.json"), {**config, "attn_implementation": "owner/kernel"})
    with pytest.raises(ModelError, match="attention code"):
        models.load("./model")
    write_json(Path("model/config.json"), config)
    Path("model/model.safetensors").unlink()
    torch.save({"weight": Attack()}, "model/pytorch_model.bin")
    with pytest.raises(ModelError):
        models.load("./model")
    Path("adapter").mkdir()
    adapter = {
        "peft_type": "LORA",
        "base_model_name_or_path": "nano",
        "megatron_config": {"a": 1},
        "megatron_core": "evil",
    }
    write_json(Path("adapter/adapter_config.json"), adapter)
    with pytest.raises(ModelError, match="Python module"):
        models.load("./adapter")
    assert not Path("attacked").exists()


def test_an_export_publishes_no_linked_file(tmp_path: Path) -> None:
    palaestra.train(env="CartPole-v1", out=tmp_path / "run", **TRAIN)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "run" / "model" / "policy.json").unlink()
    (tmp_path / "run" / "model" / "policy.json").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="is a link"):
        export_model(tmp_path / "run", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_prompt_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    from palaestra.core.errors import PromptError
    from palaestra.core.prompts import Prompts

    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "ask.md.j2").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(PromptError, match="unsafe"):
        Prompts(tmp_path / "base").render("ask")
