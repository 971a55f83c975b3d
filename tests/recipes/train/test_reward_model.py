import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import ModelError, RunError, SettingsError
from palaestra.core.records import Event
from palaestra.recipes.settings import list_settings
from palaestra.recipes.train import reward_model as reward
from palaestra.recipes.train.reward_model import RewardSettings, train_reward
from palaestra.rewards.model import load_reward_model
from palaestra.students.supervised import TrainingState, read_state, write_state


def make_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Make rows in which an answer is better than none. A model learns this in a few batches."""
    generator = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        a, b = (int(n) for n in generator.integers(2, 90, size=2))
        pairs.append({"prompt": f"Compute {a} + {b}.", "chosen": f"Answer: {a + b}", "rejected": "I do not know"})
    return pairs


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    same = {"prompt": "Compute 1 + 1.", "chosen": "2", "rejected": "2"}
    path.write_text("".join(json.dumps(row) + "\n" for row in [*make_rows(90), same]))
    return path


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shape of `nano` at a hundredth of its size, with dropout."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from palaestra.models.registry import locate

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = AutoTokenizer.from_pretrained(locate("nano"))
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, embd_pdrop=0.1)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


SMALL: dict[str, Any] = {"batch_size": 16, "epochs": 3, "device": "cpu", "threads": 1, "seed": 1, "learning_rate": 1e-2}


def have_same_weights(first: Path, second: Path) -> bool:
    return (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained_model(
    backbone: str, pairs_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path, list[Event]]:
    folder, events = tmp_path_factory.mktemp("out") / "models" / "reward_model", []
    model = train_reward(backbone, pairs_file, folder, listener=events.append, **SMALL)
    return model, folder, events


def test_the_model_is_measured_before_and_after_and_learns(trained_model: tuple[Any, Path, list[Event]]) -> None:
    model, folder, events = trained_model
    metrics = json.loads((folder / "reward_metrics.json").read_text())
    assert metrics == json.loads(json.dumps(model.metrics))
    assert metrics["counts"] == {"train": 65, "validation": 7, "held_out": 18, "identical_left_out": 1}
    for name in ("report_before", "report_after"):
        assert metrics[name]["count"] == 18
        assert metrics[name]["low"] <= metrics[name]["accuracy"] <= metrics[name]["high"]
        assert {"mean_reciprocal_rank", "ranking_loss", "calibration_error", "brier", "reliability"} <= set(
            metrics[name]
        )
    assert metrics["after"] > 90
    assert metrics["report_after"]["ranking_loss"] < 0.5 * metrics["report_before"]["ranking_loss"]
    assert model.report.accuracy == metrics["report_after"]["accuracy"]
    assert metrics["gain"] == pytest.approx(metrics["after"] - metrics["before"], abs=0.02)
    assert metrics["unit"] == "percent"
    assert metrics["settings"]["learning_rate"] == 1e-2
    steps = [event for event in events if event.phase == "train"]
    assert [event.done for event in steps] == list(range(1, metrics["steps"] + 1))
    assert {event.round for event in steps} == set(range(1, len(metrics["validation"]) + 1))
    assert {"read", "load", "evaluate before", "validate", "evaluate after"} <= {event.phase for event in events}


def test_the_checkpoint_scores_as_the_model_did(trained_model: tuple[Any, Path, list[Event]]) -> None:
    model, folder, _ = trained_model
    loaded = load_reward_model(folder, "cpu")
    texts = [model.render("Compute 3 + 4.", response) for response in ("Answer: 7", "I do not know")]
    assert loaded.score(texts) == pytest.approx(model.score(texts), abs=1e-6)
    assert loaded.metrics == json.loads(json.dumps(model.metrics))
    assert not folder.with_name("reward_model.training").exists()


@pytest.mark.parametrize("how", ["killed", "killed, and gone on with elsewhere", "terminated"])
def test_a_stopped_training_goes_on_to_the_same_weights(
    trained_model: tuple[Any, Path, list[Event]], backbone: str, pairs_file: Path, tmp_path: Path, how: str
) -> None:
    model, whole, _ = trained_model
    out, seen = tmp_path / "stopped", []

    def stop(event: Event) -> None:
        if event.phase == "train" and event.done == 8:
            if how == "terminated":  # What was done is saved then, whatever time has passed since the last save.
                signal.raise_signal(signal.SIGTERM)
            else:
                raise KeyboardInterrupt

    seconds = 3600.0 if how == "terminated" else 0.0
    with pytest.raises(KeyboardInterrupt) as raised:
        train_reward(backbone, pairs_file, out, listener=stop, checkpoint_seconds=seconds, **SMALL)
    assert raised.value.__notes__ == [f"the same command, with --reward-model-path {out}"]
    assert not out.exists()
    more = {}
    if "elsewhere" in how:
        more, out = {"resume_checkpoint": out}, tmp_path / "elsewhere"
    again = train_reward(backbone, pairs_file, out, listener=seen.append, **more, **SMALL)
    assert next(event.done for event in seen if event.phase == "train") == (9 if how == "terminated" else 8)
    assert have_same_weights(out, whole)
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["started"]["models"][str(backbone)]["files"]["model.safetensors"]
    assert [entry["changed"] for entry in provenance["resumed"]] == [{}]
    for name in ("curve", "validation", "before", "after", "best_epoch"):
        assert again.metrics[name] == model.metrics[name]


def test_state_of_other_data_or_settings_is_not_used(
    trained_model: tuple[Any, Path, list[Event]], backbone: str, pairs_file: Path, tmp_path: Path
) -> None:
    def kill(event: Event) -> None:
        if event.phase == "train" and event.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_reward(
            backbone, pairs_file, tmp_path / "m", listener=kill, checkpoint_seconds=0.0, **{**SMALL, "seed": 2}
        )
    with pytest.raises(RunError, match="other settings"):
        train_reward(backbone, pairs_file, tmp_path / "n", resume_checkpoint=str(tmp_path / "m"), **SMALL)
    train_reward(backbone, pairs_file, tmp_path / "m", **SMALL)
    assert have_same_weights(tmp_path / "m", trained_model[1])
    with pytest.raises(RunError, match="found none"):
        train_reward(backbone, pairs_file, tmp_path / "n", resume_checkpoint=str(tmp_path / "nowhere"), **SMALL)


def test_a_state_survives_its_file_to_the_bit(tmp_path: Path) -> None:
    def make_tensors(seed: int) -> dict[str, torch.Tensor]:
        return {"a.weight": torch.rand(3, 2, generator=torch.Generator().manual_seed(seed))}

    state = TrainingState(
        7, make_tensors(0), {0: make_tensors(1)}, [(7, 0.1 + 0.2)], make_tensors(2), [{"ranking_loss": 1 / 3}]
    )
    write_state(tmp_path / "s", state, "of")
    restored = read_state(tmp_path / "s", "of")
    assert restored is not None
    for before, after in (
        (state.weights, restored.weights),
        (state.best, restored.best),
        (state.moments[0], restored.moments[0]),
    ):
        assert torch.equal(before["a.weight"], after["a.weight"])
    assert (restored.step, restored.curve, restored.validation) == (state.step, state.curve, state.validation)
    (tmp_path / "s").write_bytes(b"half")
    with pytest.raises(RunError, match="damaged"):
        read_state(tmp_path / "s", "of")


def test_a_dry_run_takes_two_batches_and_writes_nothing(backbone: str, pairs_file: Path, tmp_path: Path) -> None:
    model = train_reward(
        backbone, pairs_file, tmp_path / "m", dry_run=True, resume_checkpoint=None, **{**SMALL, "batch_size": 4}
    )
    assert model.metrics["steps"] == 2
    assert list(tmp_path.iterdir()) == []


def test_one_best_of_four_and_held_out_data_of_its_own(backbone: str, tmp_path: Path) -> None:
    def write_best_of_four(count: int, seed: int) -> str:
        generator, lines = np.random.default_rng(seed), ""
        for row in make_rows(count, seed):
            best = int(generator.integers(4))
            samples = {f"sample{k}": row["chosen"] if k == best else row["rejected"] for k in range(4)}
            lines += json.dumps({"query": row["prompt"], **samples, "best": best}) + "\n"
        return lines

    (tmp_path / "train.jsonl").write_text(write_best_of_four(48, 0))
    (tmp_path / "held.jsonl").write_text(write_best_of_four(20, 1))
    model = train_reward(
        model_name=backbone,
        datasets_path=tmp_path / "train.jsonl",
        held_out_path=tmp_path / "held.jsonl",
        patience=0,
        **SMALL,
    )
    assert model.metrics["counts"] == {"train": 48, "validation": 0, "held_out": 20, "identical_left_out": 0}
    assert model.report is not None
    assert model.report.accuracy > 0.9
    assert model.report.mean_reciprocal_rank >= model.report.accuracy


def test_default_backbone_is_nano_with_its_own_rate(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = train_reward(
        datasets_path=pairs_file, epochs=1, batch_size=8, patience=0, threads=1, device=torch.device("cpu")
    )
    assert model.metrics["settings"]["learning_rate"] == 5e-4
    assert model.report is not None
    assert model.report.accuracy > 0.9
    assert model.folder is not None  # It is saved below runs/ where nobody says where.
    assert str(model.folder).startswith("runs/reward-")
    assert load_reward_model(model.folder).metrics == json.loads(json.dumps(model.metrics))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"test_size": 1.5}, "'test_size'"),
        ({"epochs": 0}, "'epochs': expected at least 1"),
        ({"epoch": 3}, "'epochs'"),
        ({"datasets_path": ""}, "'datasets_path'"),
        ({"datasets_path": "nowhere.jsonl"}, "nowhere.jsonl"),
    ],
)
def test_a_bad_setting_is_one_clear_line(values: dict[str, Any], message: str, pairs_file: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        train_reward(**{"datasets_path": str(pairs_file), **values})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_backbone_is_refused(pairs_file: Path) -> None:
    with pytest.raises(ModelError, match="no/such/model"):
        train_reward("./no/such/model", pairs_file)


def test_a_folder_of_something_else_is_not_replaced(pairs_file: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="not a reward model"):
        train_reward("nano", pairs_file, tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_every_setting_is_documented() -> None:
    assert all(text.endswith(".") for _, _, text in list_settings(RewardSettings))


def test_import_loads_neither_torch_nor_transformers() -> None:
    code = f"import sys, {reward.__name__}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", ["rows", "dataset"])
def test_comparisons_may_be_rows_or_a_dataset(
    kind: str, backbone: str, pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    data: Any = [json.loads(line) for line in pairs_file.read_text().splitlines()]
    if kind == "dataset":
        data = pytest.importorskip("datasets").Dataset.from_list(data)
    values: dict[str, Any] = {"dry_run": True, "batch_size": 2, "progress": False}
    given = train_reward(backbone, data, **values)
    read = train_reward(backbone, pairs_file, **values)
    assert given.metrics["counts"] == read.metrics["counts"]
    assert given.metrics["curve"] == read.metrics["curve"]
