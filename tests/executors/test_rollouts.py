"""Rollouts by workers: equal to those of one process, also after a worker or a node died; bounded staleness."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import ExecutorError, SettingsError
from palaestra.core.records import Event
from palaestra.recipes.resume import load_policy, resume
from palaestra.recipes.train.presets import make_settings
from palaestra.recipes.train.recipe import Iteration, TrainResult, train
from palaestra.rl.rollout_workers import RolloutWorkers
from palaestra.runs.run import Run

TOKEN: dict[str, Any] = {
    "env": "CoTEnv-v0", "env_kwargs": {"problems": 10, "skills": ["clock", "percent"]}, "iterations": 2, "episodes": 16, "num_envs": 8,
    "group_size": 4, "evaluation": 2, "checkpoint_every": 1, "threads": 1, "max_tokens": 24, "keep_trajectories": 16,
}  # fmt: skip
TURN: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "env_kwargs": {"high": 4, "attempts": 2}, "iterations": 2, "episodes": 12, "num_envs": 6, "group_size": 4,
    "evaluation": 4, "threads": 1, "max_tokens": 8, "learning_rate": 1e-3,
}  # fmt: skip
WAITING_ENV = """
import os
import time
from pathlib import Path

import gymnasium

from palaestra import TokenEnv, TokenVectorEnv

FOLDER = Path(__file__).parent


class WaitingVector(TokenVectorEnv):
    def prompts(self):
        return ["What is 3 + 4?", "What is 12 - 5?", "What is 6 * 7?"]

    def reward(self, response):
        if response.episode >= 8:  # from the second iteration on
            (FOLDER / f"pid-{os.getpid()}").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
        return float(len(response.token_ids) % 3)


class Waiting(TokenEnv):
    vector_class = WaitingVector


gymnasium.registry.pop("Waiting-v0", None)
gymnasium.register("Waiting-v0", Waiting, vector_entry_point=WaitingVector)
"""


def assert_same(result: TrainResult, other: TrainResult) -> None:
    """Both runs sampled the same tokens with the same rewards. Kernels round differently for other batch sizes."""
    assert {**result.summary, "seconds": 0, "weights_sha256": ""} == {
        **other.summary,
        "seconds": 0,
        "weights_sha256": "",
    }
    assert read_metrics(result, "reward") == read_metrics(other, "reward")
    assert read_metrics(result, "grad_norm") == pytest.approx(read_metrics(other, "grad_norm"), rel=1e-3)
    with Run.open(result.folder, read_only=True) as run, Run.open(other.folder, read_only=True) as second:
        for number in range(1, result.summary["iterations"] + 1):
            pairs = list(zip(run.store.trajectories(number), second.store.trajectories(number), strict=True))
            assert pairs
            for a, b in pairs:
                assert (a.rewards, a.infos) == (b.rewards, b.infos)
                assert [segment.token_ids for segment in a.segments] == [segment.token_ids for segment in b.segments]


def read_metrics(result: TrainResult, name: str) -> list[float]:
    with Run.open(result.folder, read_only=True) as run:
        return [row[name] for number, row in sorted(run.store.metrics().items()) if number and name in row]


@pytest.mark.parametrize(
    "settings", [pytest.param(TOKEN, id="token"), pytest.param(TURN, id="turn", marks=pytest.mark.backends)]
)
def test_processes_collect_the_rollouts_of_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    inline = train(out=tmp_path / "inline", **settings)
    processes = train(out=tmp_path / "processes", executor="processes:2", **settings)
    assert_same(processes, inline)
    with Run.open(processes.folder, read_only=True) as run:
        assert {trajectory.infos[0]["version"] for trajectory in run.store.trajectories(2)} == {1}
    load_policy(processes.folder)


@pytest.fixture
def waiting_settings(tmp_path: Path) -> dict[str, Any]:
    """Settings of an environment whose rewards of the second iteration wait for the file `go`."""
    plugin = tmp_path / "waiting.py"
    plugin.write_text(WAITING_ENV)
    return {
        "plugins": (str(plugin),), "env": "Waiting-v0", "iterations": 2, "episodes": 8, "num_envs": 8, "group_size": 2,
        "evaluation": 0, "threads": 1, "max_tokens": 6,
    }  # fmt: skip


def run_while_killing(folder: Path, kill: Any, **settings: Any) -> TrainResult:
    """Train; when two workers play the second iteration, call `kill` with their process ids and let the others go on."""

    def watch() -> None:
        while len(pids := [int(path.name[4:]) for path in folder.glob("pid-*")]) < 2:
            time.sleep(0.01)
        kill(pids)
        (folder / "go").touch()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    result = train(out=folder / "killed", **settings)
    watcher.join(timeout=1)
    assert not watcher.is_alive()
    return result


@pytest.mark.backends
def test_a_node_killed_in_the_middle_of_a_rollout_loses_nothing(
    waiting_settings: dict[str, Any], tmp_path: Path, two_nodes: Any
) -> None:
    notices: list[Event] = []

    def kill(pids: list[int]) -> None:
        two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)
        while all(Path(f"/proc/{pid}").exists() for pid in pids):
            time.sleep(0.01)

    killed = run_while_killing(tmp_path, kill, executor="ray", listener=notices.append, **waiting_settings)
    inline = train(out=tmp_path / "inline", **waiting_settings)
    assert_same(killed, inline)
    assert any("a worker died" in str(event.data.get("text")) for event in notices)


@pytest.mark.backends  # Starts many processes: half a minute.
def test_a_worker_that_always_dies_ends_the_run_with_one_line(waiting_settings: dict[str, Any], tmp_path: Path) -> None:
    def kill_all(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            for path in tmp_path.glob("pid-*"):
                path.unlink()
                os.kill(int(path.name[4:]), signal.SIGKILL)

    stop = threading.Event()
    killer = threading.Thread(target=kill_all, args=(stop,), daemon=True)
    killer.start()
    with pytest.raises(ExecutorError, match=r"iteration 2 .*3 times"):
        train(out=tmp_path / "run", executor="processes:1", checkpoint_every=1, **waiting_settings)
    stop.set()
    killer.join()
    (tmp_path / "go").touch()
    resumed = resume(tmp_path / "run", executor="inline", progress=False)
    assert_same(resumed, train(out=tmp_path / "inline", **waiting_settings))


STALE: dict[str, Any] = {**TOKEN, "iterations": 4, "max_staleness": 2, "learning_rate": 1e-3, "curriculum": "sfl"}


def test_stale_rollouts_are_bounded_marked_and_weighted(tmp_path: Path) -> None:
    result = train(out=tmp_path / "run", **STALE)
    record = json.loads((result.folder / "rollouts.json").read_text())
    assert record["groups_per_part"] == 2
    versions = {int(n): [v for _, v in parts for _ in range(8)] for n, parts in record["iterations"].items()}
    staleness = {number: np.array([number - 1 - v for v in own]) for number, own in versions.items()}
    assert all(own.max() <= 2 for own in staleness.values())
    assert read_metrics(result, "staleness") == [own.mean() for own in staleness.values()]
    assert read_metrics(result, "staleness_max") == [own.max() for own in staleness.values()]
    with Run.open(result.folder, read_only=True) as run:
        for number, own in versions.items():
            assert [t.infos[0]["version"] for t in run.store.trajectories(number)] == own
    # Every group is learned once.
    assert sorted(part for parts in record["iterations"].values() for part, _ in parts) == list(range(8))
    # Without staleness the log-probs are the learner's own. Older weights have other ones.
    assert staleness[2].max() == 1
    assert max(read_metrics(result, "sampling_logprob_difference_max")) > 1e-3


@pytest.mark.backends
def test_a_recorded_order_is_repeated_to_the_bit(tmp_path: Path) -> None:
    run = train(out=tmp_path / "run", **STALE).folder
    # Parts late and early, and mixed versions in a batch.
    order = {1: [[0, 0], [5, 0]], 2: [[1, 0], [2, 1]], 3: [[3, 1], [4, 0]], 4: [[6, 3], [7, 2]]}
    first = replay(run, tmp_path / "first", order=order)
    with Run.open(first.folder, read_only=True) as opened:
        seen = [[(t.infos[0]["group"], t.infos[0]["version"]) for t in opened.store.trajectories(n)] for n in order]
    expected = [sorted((2 * part + k // 4, v) for part, v in parts for k in range(8)) for parts in order.values()]
    assert seen == expected
    assert read_metrics(first, "staleness") == [0, 0.5, 1.5, 0.5]
    # On other workers, and from a checkpoint: it has the weights after 2 updates, which sampled a part of iteration 4.
    again = replay(run, tmp_path / "again", order=order, executor="processes:2")
    assert again.summary["weights_sha256"] == first.summary["weights_sha256"]
    assert (first.folder / "checkpoints" / "iteration-3" / "sampler-2.safetensors").is_file()
    continued = replay(first.folder, tmp_path / "continued", done=3)
    assert continued.summary["weights_sha256"] == first.summary["weights_sha256"]
    assert read_metrics(continued, "grad_norm") == read_metrics(first, "grad_norm")


def replay(folder: Path, copy: Path, done: int = 0, order: Any = None, executor: str = "inline") -> TrainResult:
    """Resume a copy of a run that ended after `done` iterations, with its record or another one."""
    shutil.copytree(folder, copy)
    (copy / "summary.json").unlink()
    if order is not None:
        (copy / "rollouts.json").write_text(json.dumps({"groups_per_part": 2, "iterations": order}))
    for checkpoint in (copy / "checkpoints").iterdir():
        if int(checkpoint.name.removeprefix("iteration-")) > done:
            shutil.rmtree(checkpoint)
    return resume(copy, executor=executor, progress=False)


LONG_ENV = """
import time
from pathlib import Path

import gymnasium

from palaestra import TokenEnv, TokenVectorEnv

FOLDER = Path(__file__).parent


class LongVector(TokenVectorEnv):
    def prompts(self):
        return ["What is 3 + 4?", "What is 12 - 5?", "What is 6 * 7?"]

    def token_reward(self, prompt, ids):
        if len(ids) == 3 and 0 in self._episode:
            (FOLDER / "started").touch()
            while not (FOLDER / "go").exists():  # The responses of the first part take as long as several updates.
                time.sleep(0.005)
        return float(ids[-1] % 3)

    def reward(self, response):
        return float(len(response.token_ids) % 3)


class Long(TokenEnv):
    vector_class = LongVector


gymnasium.registry.pop("Long-v0", None)
gymnasium.register("Long-v0", Long, vector_entry_point=LongVector)
"""
LONG: dict[str, Any] = {
    "env": "Long-v0", "iterations": 4, "episodes": 4, "num_envs": 4, "group_size": 2, "evaluation": 0, "threads": 1,
    "max_tokens": 12, "learning_rate": 3e-2, "max_staleness": 1, "executor": "processes:2", "checkpoint_every": 1,
    "keep_trajectories": 4,
}  # fmt: skip


def train_long(folder: Path, go_after: int, **settings: Any) -> TrainResult:
    """Train while the responses of the first part wait until some iterations are done."""
    (folder / "long.py").write_text(LONG_ENV)

    def let_go(done: Iteration) -> None:
        if done.number == go_after:
            (folder / "go").touch()

    return train(out=folder / "run", plugins=(str(folder / "long.py"),), callbacks=[let_go], **LONG, **settings)


@pytest.mark.backends
def test_newer_weights_continue_a_long_response(tmp_path: Path) -> None:
    run = train_long(tmp_path, overdue="continue", go_after=3)
    record = json.loads((run.folder / "rollouts.json").read_text())["iterations"]
    [(iteration, first)] = [(int(n), part) for n, parts in record.items() for part in parts if part[0] == 0]
    assert iteration == 4, "the learner has not waited for it"
    assert first[1:] == [0, [[3, 2]]]
    with Run.open(run.folder, read_only=True) as opened:
        long = [t.infos[0] for t in opened.store.trajectories(4) if t.infos[0]["group"] == 0]
    assert {(info["version"], str(info["continued"])) for info in long if "continued" in info} == {(0, "[[3, 2]]")}
    assert read_metrics(run, "continued_groups") == [0, 0, 0, 1]
    assert read_metrics(run, "staleness_max")[-1] == 3
    # The weights of both versions sampled it, so they are in the checkpoint before its batch.
    assert {p.name for p in (run.folder / "checkpoints" / "iteration-3").glob("sampler-*")} >= {
        "sampler-0.safetensors",
        "sampler-2.safetensors",
    }
    whole = replay(run.folder, tmp_path / "whole", executor="inline")
    assert whole.summary["weights_sha256"] == run.summary["weights_sha256"]
    resumed = replay(run.folder, tmp_path / "resumed", done=3)
    assert resumed.summary["weights_sha256"] == run.summary["weights_sha256"]
    for other in (whole, resumed):
        assert json.loads((other.folder / "rollouts.json").read_text())["iterations"] == record


@pytest.mark.backends
def test_a_long_response_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post_orders = RolloutWorkers._post_orders

    def post_and_let_go(workers: RolloutWorkers, scheduler: Any) -> None:
        post_orders(workers, scheduler)
        if scheduler.orders:
            (tmp_path / "go").touch()

    monkeypatch.setattr(RolloutWorkers, "_post_orders", post_and_let_go)
    run = train_long(tmp_path, overdue="cut", go_after=0)
    record = json.loads((run.folder / "rollouts.json").read_text())["iterations"]
    assert record["2"][0] == [0, 0, [[3, None]]], "it is learned before it is too stale"
    with Run.open(run.folder, read_only=True) as opened:
        long = [t for t in opened.store.trajectories(2) if t.infos[0]["group"] == 0]
    assert len(long) == 2
    assert all(len(t.rewards) <= 4 and t.truncated for t in long)
    assert read_metrics(run, "cut_groups") == [0, 1, 0, 0]
    assert max(read_metrics(run, "staleness_max")) == 1
    whole = replay(run.folder, tmp_path / "whole", executor="inline")
    assert whole.summary["weights_sha256"] == run.summary["weights_sha256"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_staleness": 1, "overdue": "cut", "num_envs": 2}, "'num_envs': expected at least 4"),
        ({"max_staleness": 1, "overdue": "continue", "rollout": "engine"}, "'overdue': expected wait or drop"),
        ({"overdue": "continue"}, "'overdue' has no effect without max_staleness"),
    ],
)
def test_runs_that_cannot_interrupt_rollouts(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_settings({**TOKEN, **values})


def test_the_next_rollout_is_played_during_the_update(waiting_settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    seen: list[bool] = []

    def check_progress(done: Iteration) -> None:
        if done.number == 1:
            deadline = time.monotonic() + 30
            while not (played := list(tmp_path.glob("pid-*"))) and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(bool(played))  # The second iteration has not begun, its episodes are played.

    train(out=tmp_path / "run", max_staleness=1, callbacks=[check_progress], **waiting_settings)
    assert seen == [True]


def test_classic_environments_have_no_workers(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'max_staleness' .*language models"):
        train(env="CartPole-v1", max_staleness=1, out=tmp_path / "run")
