"""Metrics under TRL's names have the values that TRL computes, and reach the trackers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bare_trl import make_bare_trainer

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import TurnVectorEnv
from palaestra.envs.turn.games import GuessEnv
from palaestra.models.registry import LoadedModel
from palaestra.recipes.train.recipe import train
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollout_metrics import count_tokens, measure_calls, measure_completions, measure_kl
from palaestra.rl.rollouts import Rollout
from palaestra.rl.turns import collect_turns
from palaestra.runs.run import Run

NAMES = {
    "reward", "reward_std", "frac_reward_zero_std", "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean",
    "clip_ratio/region_mean", "completions/mean_length", "completions/min_length", "completions/max_length",
    "completions/clipped_ratio", "num_tokens",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "iterations": 2, "episodes": 8, "num_envs": 8, "group_size": 4, "max_tokens": 8, "kl_coef": 0.1,
    "evaluation": 2, "threads": 1, "device": "cpu", "progress": False,
}  # fmt: skip


def play(nano: LoadedModel, policy: LanguageModelPolicy) -> Rollout:
    env = TurnVectorEnv(GuessEnv, 8, autoreset=False, high=4, attempts=2)
    end = int(nano.tokenizer.eos_token_id)
    rollout = collect_turns(
        env, policy, ChatEncoder(nano.tokenizer), 24, Seeds(1), end_ids=[end], max_tokens=9, group_size=4
    )
    env.close()
    return rollout


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_an_update_logs_what_trl_logs_for_the_same_episodes(fresh_nano: LoadedModel, level: Any) -> None:
    trl = pytest.importorskip("trl")
    from trl.trainer.utils import entropy_from_logits, nanstd

    policy = LanguageModelPolicy(fresh_nano.weights)
    rollout = play(fresh_nano, policy)
    generator = torch.Generator().manual_seed(0)
    entropy = float(rollout.entropy_BT[rollout.mask_BT].mean())  # type: ignore[index]
    new_BT, entropies_BT = policy.logprobs_BT(rollout), torch.zeros_like(rollout.logprobs_BT)
    with torch.no_grad():
        for k, (prompt, response) in enumerate(zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True)):
            logits = fresh_nano.weights(input_ids=torch.tensor([prompt + response])).logits[0]
            places = torch.from_numpy(rollout.inputs.chosen[k]) + len(prompt) - 1
            entropies_BT[k, : len(places)] = entropy_from_logits(logits[places])
    # As if the weights had moved since the episodes were played.
    noise_BT = 0.3 * torch.randn(new_BT.shape, generator=generator) + 1.0 * torch.randn((24, 1), generator=generator)
    rollout.logprobs_BT = new_BT + noise_BT * rollout.mask_BT
    rollout.reference_BT = (new_BT + 0.2 * torch.randn(new_BT.shape, generator=generator)) * rollout.mask_BT
    rewards_GK = torch.tensor(rollout.stats.returns).view(-1, 4)
    zero_std = torch.isclose(nanstd(rewards_GK, dim=1), torch.zeros(6))
    assert 0 < int(zero_std.sum()) < 6
    advantages_B = (
        (rewards_GK - rewards_GK.mean(1, keepdim=True)) / (nanstd(rewards_GK, dim=1)[:, None] + 1e-4)
    ).flatten()
    trainer = make_bare_trainer(trl, new_BT, entropies_BT, level=level, beta=0.1, epsilon=(0.2, 0.2))
    shape, width = (24, 2), new_BT.shape[1]
    trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.zeros(shape, dtype=torch.long),
            "prompt_mask": torch.ones(shape, dtype=torch.long),
            "completion_ids": torch.zeros(24, width, dtype=torch.long),
            "completion_mask": rollout.mask_BT.long(),
            "advantages": advantages_B,
            "old_per_token_logps": rollout.logprobs_BT,
            "ref_per_token_logps": rollout.reference_BT,
            "num_items_in_batch": rollout.mask_BT.sum(),
        },
    )
    theirs = {name: values[0] for name, values in trainer._metrics["train"].items()}
    config = GRPOConfig(group_size=4, kl_coef=0.1, importance_sampling_level=level, learning_rate=0.0)
    ours = GRPO(policy, config).update(rollout, 1)
    assert theirs["clip_ratio/low_mean"] > 0
    assert theirs["clip_ratio/high_mean"] > 0
    for name in ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "kl"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
    assert ours["frac_reward_zero_std"] == pytest.approx(float(zero_std.float().mean()))
    assert entropy == pytest.approx(theirs["entropy"], rel=1e-4)
    without_kl = GRPO(policy, GRPOConfig(group_size=4, importance_sampling_level=level, learning_rate=0.0))
    # Without a KL penalty the groups with equal rewards are skipped, and still count.
    assert without_kl.update(rollout, 1)["clip_ratio/region_mean"] == pytest.approx(theirs["clip_ratio/region_mean"])


def test_lengths_rewards_and_tokens_are_those_of_the_episodes(nano: LoadedModel) -> None:
    policy = LanguageModelPolicy(nano.weights)
    rollout = play(nano, policy)
    end = int(nano.tokenizer.eos_token_id)
    cut = [episode.ids[-1] != end for episode in rollout.get_episodes().records]
    metrics = measure_completions(rollout, cut)
    lengths = [len(episode.chosen) for episode in rollout.get_episodes().records]
    assert metrics["completions/mean_length"] == pytest.approx(sum(lengths) / 24)
    assert (metrics["completions/min_length"], metrics["completions/max_length"]) == (min(lengths), max(lengths))
    assert metrics["completions/clipped_ratio"] == pytest.approx(sum(cut) / 24)
    assert metrics["reward_std"] == pytest.approx(float(torch.tensor(rollout.stats.returns).std()))
    # Replies of the environment count neither as prompt nor as completion, as in TRL.
    assert count_tokens(rollout) == sum(
        episode.prompt + len(episode.chosen) for episode in rollout.get_episodes().records
    )
    assert count_tokens(rollout) < sum(len(episode.ids) for episode in rollout.get_episodes().records)
    rollout.valid_B[0] = False  # type: ignore[index]
    assert measure_completions(rollout, cut)["completions/mean_length"] == pytest.approx(sum(lengths[1:]) / 23)
    assert measure_kl(rollout, rollout.logprobs_BT) == 0.0
    assert measure_calls(rollout.get_episodes().records)["tools/call_frequency"] == 0.0


def test_a_run_logs_the_names_to_the_store_and_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(out=tmp_path / "run", tensorboard=True, **SMALL)
    with Run.open(result.folder, read_only=True) as run:
        stored = run.store.metrics()
    assert set(stored[1]) >= NAMES
    assert stored[2]["num_tokens"] > stored[1]["num_tokens"] > stored[1]["actions"]
    events = EventAccumulator(str(result.folder / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= NAMES | {"test_reward"}
    for name in NAMES:
        assert [event.value for event in events.Scalars(name)] == pytest.approx([stored[k][name] for k in (1, 2)])


@pytest.mark.backends
@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_run_logs_the_names_to_other_trackers(tmp_path: Path, tracker: str) -> None:
    """Weights & Biases without a server, trackio with its local database."""
    pytest.importorskip(tracker)
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from palaestra import train\n"
        f"settings = {SMALL!r}\n"
        f"train(out=sys.argv[1], {tracker}='lessons', **settings)\n"
    )
    environment = {
        **os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    subprocess.run([sys.executable, str(script), str(tmp_path / "run")], env=environment, check=True, timeout=300)
    with Run.open(tmp_path / "run", read_only=True) as run:
        stored = run.store.metrics()
    rows = read_wandb(tmp_path / "run") if tracker == "wandb" else read_trackio(tmp_path / "trackio", "lessons")
    for iteration in (1, 2):
        for name in NAMES:
            assert rows[iteration][name] == pytest.approx(stored[iteration][name]), name
    assert "test_reward" in rows[0]


@pytest.mark.backends
def test_a_resumed_run_continues_its_entry_in_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from palaestra import resume, train\n"
        f"settings = {SMALL | {'checkpoint_every': 1}!r}\n"
        "def interrupt(event):\n"
        "    if event.phase == 'learn' and event.done == 1:\n"
        "        raise KeyboardInterrupt\n"
        "if sys.argv[2] == 'resume':\n"
        "    resume(sys.argv[1], progress=False)\n"
        "else:\n"
        "    train(out=sys.argv[1], wandb='lessons', listener=interrupt, **settings)\n"
    )
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
    for command in ("train", "resume"):
        arguments = [sys.executable, str(script), str(tmp_path / "run"), command]
        subprocess.run(arguments, env=environment, check=command == "resume", timeout=300)
    with Run.open(tmp_path / "run", read_only=True) as run:
        run_id = run.store.id
    first, second = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert first.stem == second.stem == f"run-{run_id}"
    assert (sorted(read_wandb_file(first)), sorted(read_wandb_file(second))) == ([0, 1], [2])


def read_wandb(folder: Path) -> dict[int, dict[str, float]]:
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return read_wandb_file(path)


def read_wandb_file(path: Path) -> dict[int, dict[str, float]]:
    """Read the file that `wandb sync` would send: a header, then blocks of LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    data, place, part, rows = path.read_bytes(), 7, b"", dict[int, dict[str, float]]()
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # A block ends with padding if no header fits.
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            record = wandb_internal_pb2.Record.FromString(part)
            part = b""
            values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            if values:
                rows[int(values["_step"])] = values
    return rows


def read_trackio(folder: Path, project: str) -> dict[int, dict[str, float]]:
    import sqlite3

    (path,) = folder.glob(f"{project}*.db")
    database = sqlite3.connect(path)
    rows: dict[int, dict[str, float]] = {}
    for step, metrics in database.execute("SELECT step, metrics FROM metrics ORDER BY step"):
        rows.setdefault(step, {}).update(json.loads(metrics))
    database.close()
    return rows
