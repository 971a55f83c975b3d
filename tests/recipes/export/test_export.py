"""Runs as datasets and models that other libraries load, and pushes to the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from local_hub import open_local_hub
from typer.testing import CliRunner

from palaestra import load_policy, train
from palaestra.cli.main import app
from palaestra.core.errors import PalaestraError, RunError
from palaestra.core.records import (
    Attempt,
    Completion,
    Example,
    Failure,
    FailureCause,
    Lesson,
    Message,
    Problem,
    Score,
    ToolCall,
)
from palaestra.models.registry import LoadedModel
from palaestra.recipes.export.dataset import export_dataset
from palaestra.recipes.export.hub import push_folder
from palaestra.recipes.export.model import export_model
from palaestra.recipes.settings import to_plain
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.runs.files import read_json, write_json
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run

TOKEN = "hf_localtokenforatest"


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = train(
        env="palaestra/Guess-v0",
        iterations=2,
        episodes=8,
        num_envs=8,
        group_size=4,
        max_tokens=8,
        evaluation=4,
        threads=1,
        device="cpu",
        progress=False,
        keep_trajectories=4,
        out=tmp_path_factory.mktemp("export") / "run",
    )
    return result.folder


@pytest.fixture
def teach_run(tmp_path: Path) -> Path:
    """A run of `teach` with two rounds, an evaluation with a failure, and a secret in its settings."""
    settings = to_plain(TeachSettings(rounds=2))
    call = Message("assistant", "", (ToolCall("add", '{"a": 1}', "c1"),))
    lessons = [
        Lesson((Example((Message("user", "1 + 1?"),), "2", "sums", "small", "2", {"level": 1}),)),
        Lesson((Example((Message("user", "2 + 2?"), call, Message("tool", "4", (), "c1")), "4", "sums"),)),
    ]
    problem = Problem("p1", (Message("user", "3 + 3?"),), "6", "sums", metadata={"level": 2})
    answer = Completion("6", (4, 5), (-0.5, -0.25), prompt_ids=(1, 2, 3))
    attempts = [
        Attempt(problem, answer, Score(1.0, {"answer": "6"})),
        Attempt(Problem("p2", (Message("user", "4 + 4?"),), "8", "sums"), None, Failure(FailureCause.ENGINE, "gone")),
    ]
    with Run.create(tmp_path / "taught", "teach", {**settings, "api_key": "abcdefgh12345678"}) as run:
        for round_, lesson in enumerate(lessons, 1):
            run.store.add_lesson(round_, lesson, LedgerEntry(f"{round_}/lesson"))
        run.store.add_attempts("0/validation", attempts[:1], LedgerEntry("0/validation"))
        run.store.add_attempts("2/test", attempts, LedgerEntry("2/test"))
    return tmp_path / "taught"


def read_card(folder: Path) -> tuple[dict[str, Any], str]:
    _, header, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(header), body


def test_trajectories_are_a_dataset_with_exact_tokens(trained_run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = export_dataset(trained_run, tmp_path / "data")
    rows = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    with Run.open(trained_run, read_only=True) as run:
        stored = [(k, t) for k in (1, 2) for t in run.store.trajectories(k)]
        summary = run.summary
    assert len(rows) == len(stored) == 8
    for row, (iteration, trajectory) in zip(rows, stored, strict=True):
        assert row["iteration"] == iteration
        assert row["token_ids"] == [token for s in trajectory.segments for token in s.token_ids]
        assert row["chosen"] == [chosen for s in trajectory.segments for chosen in s.chosen]
        assert row["logprobs"] == pytest.approx([p for s in trajectory.segments for p in s.logprobs], abs=1e-6)
        assert row["reward"] == trajectory.total_reward
        assert row["rewards"] == list(trajectory.rewards)
        assert row["completion"] == trajectory.infos[0]["response"]
        assert row["failure"] is None
    header, body = read_card(folder)
    assert header["configs"] == [
        {
            "config_name": "trajectories",
            "default": True,
            "data_files": [{"split": "train", "path": "trajectories/train.parquet"}],
        }
    ]
    assert header["size_categories"] == "n<1K"
    assert "grpo with nano on palaestra/Guess-v0" in body
    assert f"| after | {summary['after']:.4g} |" in body  # type: ignore[index]
    assert str(trained_run) not in body


def test_lessons_and_evaluations_are_dataset_configs(teach_run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = export_dataset(teach_run, tmp_path / "data")
    cache = str(tmp_path / "cache")
    lessons = datasets.load_dataset(str(folder), split="train", cache_dir=cache)
    assert [row["round"] for row in lessons] == [1, 2]
    assert [m["role"] for m in lessons[1]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert lessons[1]["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert json.loads(lessons[0]["metadata"]) == {"level": 1}
    evaluations = datasets.load_dataset(str(folder), "evaluations", cache_dir=cache)
    assert {split: len(rows) for split, rows in evaluations.items()} == {"validation": 1, "test": 2}
    right, failed = evaluations["test"]
    assert (right["iteration"], right["problem"], right["score"], right["correct"]) == (2, "p1", 1.0, True)
    assert (right["prompt_ids"], right["token_ids"], right["logprobs"]) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
    assert (failed["score"], failed["correct"], failed["failure"]) == (None, None, "engine: gone")
    header, body = read_card(folder)
    assert [config["config_name"] for config in header["configs"]] == ["lessons", "evaluations"]
    assert "abcdefgh12345678" not in body
    assert "The run has not ended." in body


def test_a_language_model_is_a_folder_that_transformers_loads(trained_run: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = export_model(trained_run, tmp_path / "model")
    names = {path.name for path in folder.iterdir()}
    assert names >= {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    trained_weights = load_policy(trained_run, device="cpu").model.state_dict()
    assert all(torch.equal(tensor, trained_weights[name]) for name, tensor in model.state_dict().items())
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "Guess."}], tokenize=False)
        == "<|user|>Guess.<|end|>"
    )
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 1
    summary = json.loads((trained_run / "summary.json").read_text())
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert {"palaestra", "reinforcement-learning", "grpo"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == summary["after"]
    assert f"| gain | {summary['gain']:.4g} |" in card.text
    assert '"group_size": 4' in card.text


def test_an_adapter_without_a_base_on_the_hub_is_merged(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    """The base model of this run is a folder, which is not on the hub."""
    from safetensors.torch import load_file

    fresh_nano.weights.save_pretrained(tmp_path / "base")
    fresh_nano.tokenizer.save_pretrained(tmp_path / "base")
    result = train(
        env="palaestra/Guess-v0",
        iterations=1,
        episodes=8,
        num_envs=8,
        group_size=4,
        max_tokens=8,
        evaluation=0,
        threads=1,
        device="cpu",
        progress=False,
        method="lora",
        rank=2,
        learning_rate=1e-2,
        model=str(tmp_path / "base"),
        out=tmp_path / "run",
    )
    folder = export_model(result.folder, tmp_path / "model")
    assert not (folder / "adapter_config.json").exists()
    merged, base = load_file(folder / "model.safetensors"), fresh_nano.weights.state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert merged[name].shape == base[name].shape
    header, body = read_card(folder)
    assert "base_model" not in header
    assert str(tmp_path) not in body


def test_policy_of_classic_env_is_loaded_from_its_folder(tmp_path: Path) -> None:
    result = train(
        env="CartPole-v1",
        iterations=1,
        num_envs=2,
        n_steps=16,
        evaluation=2,
        threads=1,
        progress=False,
        out=tmp_path / "run",
    )
    values = read_json(result.folder / "settings.json")
    secrets = {"wandb": "https://me:password@host/project", "env_kwargs": {"token": "abcdefgh12345678"}}
    write_json(result.folder / "settings.json", {**values, "settings": values["settings"] | secrets})
    folder = export_model(result.folder, tmp_path / "policy")
    for name in ("settings.json", "README.md"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "https://***@host" in text
        assert "***" in text.partition("token")[2][:20]
        assert "password" not in text
        assert "abcdefgh" not in text
        assert str(tmp_path) not in text
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "policy.json",
        "policy.safetensors",
        "settings.json",
    }
    again, weights = load_policy(folder), result.policy.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.state_dict().items())
    header, body = read_card(folder)
    assert (header["library_name"], header["pipeline_tag"]) == ("palaestra", "reinforcement-learning")
    assert "ppo with the policy mlp on CartPole-v1" in body


def test_a_push_uploads_every_file_and_needs_the_right_token(
    teach_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    folder = export_dataset(teach_run, tmp_path / "data")
    with open_local_hub(TOKEN) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        url = push_folder(folder, "me/lessons", "dataset", private=True)
        repository = hub.repositories["datasets/me/lessons"]
        monkeypatch.setenv("HF_TOKEN", "hf_anothertoken")
        with pytest.raises(RunError, match="me/lessons"):
            push_folder(folder, "me/lessons", "dataset")
    assert url.endswith("/datasets/me/lessons")
    assert repository["private"]
    local = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: data for name, data in repository["files"].items() if name != ".gitattributes"} == local
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(RunError, match="me/lessons"):  # The server is gone.
        push_folder(folder, "me/lessons", "dataset")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--to", "parquet"], "unknown export target 'parquet'"),
        (["--to", "verifiers", "--merge"], "--merge cannot be used with --to verifiers"),
        (["--to", "dataset", "--private"], "--private is for --push"),
        (["--to", "dataset", "--push", "me/lessons"], "no Hugging Face token; set HF_TOKEN"),
        (["--to", "dataset", "--push", "a/b/c"], "expected --push owner/name"),
        (["--to", "model"], "has not ended"),
        (["--to", "dataset", "--out", "."], "is not empty"),
    ],
)
def test_wrong_exports_are_refused_before_anything_is_written(
    teach_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(teach_run)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    before = sorted(teach_run.rglob("*"))
    result = CliRunner().invoke(app, ["export", str(teach_run), *arguments])
    assert isinstance(result.exception, PalaestraError)
    assert reason in str(result.exception)
    assert sorted(teach_run.rglob("*")) == before


def test_the_command_writes_a_dataset_beside_the_run(teach_run: Path) -> None:
    pytest.importorskip("pyarrow")
    result = CliRunner().invoke(app, ["export", str(teach_run), "--to", "dataset"])
    assert result.exit_code == 0, result.output
    assert (teach_run / "exported-dataset" / "lessons" / "train.parquet").exists()
