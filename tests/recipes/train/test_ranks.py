"""Several processes train one policy: the weights and metrics of a single process, and its checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from model_server import ModelServer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palaestra import resume, train
from palaestra.core.errors import SettingsError
from palaestra.recipes.train.build import check_processes
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.rl.distributed.shards import read_shards
from palaestra.runs.run import Run

WORKER = Path(__file__).with_name("ranks_worker.py")
BASE = {
    "env": "CoTEnv-v0", "env_kwargs": {"problems": 10, "skills": ["clock", "percent"]}, "model": "nano", "episodes": 16, "num_envs": 8, "iterations": 2, "evaluation": 0,
    "max_tokens": 16, "threads": 1, "seed": 0, "learning_rate": 1e-4, "checkpoint_every": 1, "group_size": 4,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "token": {"loss_aggregation": "token", "num_minibatches": 2},
    "sequence": {"loss_aggregation": "sequence", "n_epochs": 2, "rollout": "engine", "seed": 1, "parallel": "fsdp"},
    "ppo": {"algorithm": "ppo", "batch_size": 7, "n_epochs": 2, "parallel": "fsdp"},
}
SLOW_CASES: dict[str, dict[str, Any]] = {
    "token": CASES["token"] | {"parallel": "fsdp"},
    "constant": {"loss_aggregation": "constant", "num_minibatches": 3},
    "constant_fsdp": {"loss_aggregation": "constant", "num_minibatches": 3, "parallel": "fsdp"},
    "lora": {"method": "lora", "rank": 2, "learning_rate": 1e-3},
    "engine": {"rollout": "engine", "seed": 1, "evaluation": 4},
    "lora_engine": {
        "method": "lora", "rank": 2, "learning_rate": 1e-3, "rollout": "engine", "seed": 1, "parallel": "fsdp",
    },
    "workers": {"executor": "processes:2", "max_staleness": 1, "parallel": "fsdp"},
    "turns_engine": {
        "env": "palaestra/Task-v0", "env_kwargs": {"skills": ["clock", "percent"]}, "episodes": 32, "evaluation": 5,
        "rollout": "engine", "parallel": "fsdp",
    },
    "lora_fsdp": {"method": "lora", "rank": 2, "learning_rate": 1e-3, "parallel": "fsdp"},
    "ppo": CASES["ppo"] | {"parallel": "ddp"},
    # Odd counts: shares of different size, and padding.
    "dapo": {"variant": "dapo", "ent_coef": 0.01, "episodes": 20, "num_minibatches": 3, "parallel": "fsdp"},
    "separate": {
        "algorithm": "ppo", "critic": "separate", "batch_size": 8, "n_epochs": 3, "target_kl": 1e-4, "ent_coef": 0.01,
        "parallel": "fsdp",
    },
    "lora_ppo": {"algorithm": "ppo", "method": "lora", "rank": 2, "batch_size": 8, "parallel": "fsdp"},
    "rloo": {"algorithm": "rloo", "n_epochs": 2, "normalize_advantage": True, "parallel": "fsdp"},
    "reinforce": {"algorithm": "reinforce"},
    "reinforce_critic": {"algorithm": "reinforce", "baseline": "critic", "parallel": "fsdp"},
    "rlhf": {"env": "RLHFEnv-v0", "env_kwargs": {}, "algorithm": "ppo", "batch_size": 8, "evaluation": 6, "parallel": "fsdp"},
    "turns": {"env": "palaestra/Task-v0", "env_kwargs": {"skills": ["clock", "percent"]}, "episodes": 32, "evaluation": 5},
    "turn_credit": {"env": "palaestra/Guess-v0", "env_kwargs": {}, "credit": "turn", "loss_aggregation": "turn", "max_tokens": 12},
    "turn_credit_ppo": {
        "env": "palaestra/Guess-v0", "env_kwargs": {}, "algorithm": "ppo", "credit": "turn", "batch_size": 7, "max_tokens": 12,
    },
}  # fmt: skip


def make_job(case: Mapping[str, Any], out: Path) -> dict[str, Any]:
    values = {**BASE, **case, "out": str(out)}
    if values.get("algorithm", "grpo") not in ("grpo", "rloo"):
        del values["group_size"]
    return values


def launch(folder: Path, jobs: list[dict[str, Any]], processes: int = 2) -> None:
    """Run jobs in several processes of torchrun."""
    paths = []
    for k, job in enumerate(jobs):
        paths.append(folder / f"job-{processes}-{k}.json")
        paths[-1].write_text(json.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), str(WORKER)]
    result = subprocess.run(
        [*command, *map(str, paths)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=600
    )
    assert result.returncode == 0, result.stderr.decode()[-3000:]


def copy_unfinished(source: Path, target: Path) -> None:
    """Copy a finished run as it was after its first iteration."""
    shutil.copytree(source, target)
    shutil.rmtree(target / "model")
    shutil.rmtree(target / "checkpoints" / "iteration-2")
    (target / "summary.json").unlink()


def load_state(run: Path, name: str) -> dict[str, torch.Tensor]:
    """The weights or the moments of the last checkpoint, whether it is sharded or not."""
    checkpoint = run / "checkpoints" / "iteration-2"
    if not (checkpoint / "shards").is_dir():
        state: dict[str, torch.Tensor] = load_file(checkpoint / f"{name}.safetensors")
        return state
    return read_shards(checkpoint / "shards", f"{name}/", {})


def flatten_moments(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state of a small model's optimizer as one process stores it: each moment of all parameters in one tensor."""
    if "steps" in state:
        return state
    names = {"mean": "exp_avg", "square": "exp_avg_sq"}
    flat = {k: torch.cat([state[f"{i}/{v}"].flatten() for i in range(len(state) // 3)]) for k, v in names.items()}
    return {**flat, "steps": state["0/step"].long().reshape(())}


def assert_equal_runs(first: Path, second: Path) -> None:
    """The same metrics, weights and optimizer within float error. Adam turns a tiny gradient's error into part of a step."""
    for name, tolerance in (("policy", 1e-4), ("optimizer", 1e-6)):
        states = [load_state(run, name) for run in (first, second)]
        if any("steps" in state for state in states):
            states = [flatten_moments(state) for state in states]
        assert states[0].keys() == states[1].keys()
        pairs = [[state[key].double() for state in states] for key in states[0]]
        difference = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
        assert difference <= tolerance * sum(float(a.square().sum()) for a, _ in pairs) ** 0.5
    tables = []
    for run in (first, second):
        with Run.open(run, read_only=True) as opened:
            table = opened.store.metrics()
        tables.append(
            [
                {k: v for k, v in row.items() if "second" not in k and not k.startswith("system/")}
                for row in table.values()
            ]
        )
    assert any(row.get("grad_norm", 0.0) > 0.01 for row in tables[0]), "nothing was learned"
    for ours, theirs in zip(*tables, strict=True):
        assert ours.keys() == theirs.keys()
        # With an engine that has the learner's weights, the largest difference is rounding of a log-prob.
        largest = [row.pop("sampling_logprob_difference_max", 0.0) for row in (ours, theirs)]
        assert largest[0] == pytest.approx(largest[1], rel=1e-3, abs=1e-4)
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case trained by one process and by two, and a run of one that two have resumed."""
    folder = tmp_path_factory.mktemp("ranks")
    for name, case in CASES.items():
        train(progress=False, **make_job(case, folder / f"{name}-1"))  # type: ignore[arg-type]
    copy_unfinished(folder / "token-1", folder / "resumed-2")
    jobs = [make_job(case, folder / f"{name}-2") for name, case in CASES.items()]
    launch(folder, [*jobs, {"out": str(folder / "resumed-2"), "resume": {"parallel": "fsdp"}}])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_like_one(runs: Path, name: str) -> None:
    assert_equal_runs(runs / f"{name}-1", runs / f"{name}-2")


def test_two_processes_resume_a_run_of_one(runs: Path) -> None:
    assert_equal_runs(runs / "token-1", runs / "resumed-2")


def test_one_process_resumes_a_sharded_run_of_two(runs: Path) -> None:
    copy_unfinished(runs / "ppo-2", runs / "resumed-1")
    resume(runs / "resumed-1", progress=False)
    assert_equal_runs(runs / "ppo-1", runs / "resumed-1")


def test_the_saved_model_of_a_sharded_run_loads(runs: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(runs / "sequence-2" / "model")
    trained = load_state(runs / "sequence-2", "policy")
    weights = {f"model.{name}": tensor for name, tensor in model.named_parameters()}
    assert weights.keys() == trained.keys()
    assert all(torch.equal(weights[name], trained[name]) for name in trained)
    names = sorted(path.name for path in (runs / "sequence-1" / "model").iterdir())
    assert names == sorted(path.name for path in (runs / "sequence-2" / "model").iterdir())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"env": "CartPole-v1"}, "language models only"),
        ({"episodes": 8, "group_size": 8}, r"at least 16, .*2 processes; got 8"),
        ({"evaluation": 1}, "0 or at least 2"),
        ({"max_staleness": 1}, "processes:N or ray"),
    ],
)
def test_runs_that_several_processes_cannot_train(values: dict[str, Any], message: str) -> None:
    settings = fill_presets(make_settings(values))
    check_processes(settings, 1)
    with pytest.raises(SettingsError, match=message):
        check_processes(settings, 2)


@pytest.mark.backends
def test_every_algorithm_in_two_processes_and_three(tmp_path: Path) -> None:
    for name, case in SLOW_CASES.items():
        train(progress=False, **make_job(case, tmp_path / f"{name}-1"))  # type: ignore[arg-type]
    launch(tmp_path, [make_job(case, tmp_path / f"{name}-2") for name, case in SLOW_CASES.items()])
    few = {name: SLOW_CASES[name] for name in ("dapo", "separate")}
    launch(tmp_path, [make_job(case, tmp_path / f"{name}-3") for name, case in few.items()], processes=3)
    for name in SLOW_CASES:
        assert_equal_runs(tmp_path / f"{name}-1", tmp_path / f"{name}-2")
    for name in few:
        assert_equal_runs(tmp_path / f"{name}-1", tmp_path / f"{name}-3")


@pytest.mark.backends
@pytest.mark.filterwarnings("ignore")
def test_two_processes_with_vllm_train_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    case = {"engine": "vllm", "evaluation": 4}
    train(progress=False, **make_job(case, tmp_path / "one"))  # type: ignore[arg-type]
    launch(tmp_path, [make_job({**case, "parallel": name}, tmp_path / name) for name in ("ddp", "fsdp")])
    assert_equal_runs(tmp_path / "one", tmp_path / "ddp")
    assert_equal_runs(tmp_path / "one", tmp_path / "fsdp")


@pytest.mark.backends
def test_a_recorded_order_is_repeated_with_gloo(tmp_path: Path) -> None:
    """Two learners and two samplers. The weights go from each learner to each sampler; none are in the driver."""
    case = {"iterations": 4, "max_staleness": 2, "learning_rate": 1e-3}
    run = tmp_path / "run"
    train(progress=False, **make_job(case, run))  # type: ignore[arg-type]
    order = {1: [[0, 0], [5, 0]], 2: [[1, 0], [2, 1]], 3: [[3, 1, [[4, 2]]], [4, 0]], 4: [[6, 3], [7, 2, [[3, None]]]]}
    changes = {"executor": "processes:2"}  # Several learners send weights by gloo.

    def replay(source: Path, name: str, done: int = 0) -> dict[str, Any]:
        shutil.copytree(source, tmp_path / name)
        (tmp_path / name / "summary.json").unlink()
        record = {"groups_per_part": 2, "iterations": order}
        (tmp_path / name / "rollouts.json").write_text(json.dumps(record))
        for checkpoint in (tmp_path / name / "checkpoints").iterdir():
            if int(checkpoint.name.removeprefix("iteration-")) > done:
                shutil.rmtree(checkpoint)
        return {"out": str(tmp_path / name), "resume": changes}

    launch(tmp_path, [replay(run, "first"), replay(run, "again")])
    checkpoint = tmp_path / "first" / "checkpoints" / "iteration-3"
    assert (checkpoint / "sampler-2.safetensors").is_file(), "rank 0 has received the older weights for it"
    launch(tmp_path, [replay(tmp_path / "first", "continued", done=3)])
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("first", "again", "continued")]
    assert len({summary["weights_sha256"] for summary in summaries}) == 1
    for name in ("first", "again", "continued"):
        record = json.loads((tmp_path / name / "rollouts.json").read_text())
        assert record["iterations"] == {str(number): parts for number, parts in order.items()}
    with Run.open(tmp_path / "first", read_only=True) as opened:
        assert [opened.store.metrics()[n]["staleness"] for n in order] == [0, 0.5, 1.5, 0.5]


@pytest.mark.backends
def test_two_learners_train_with_two_servers(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [ModelServer(stack, "--receive-weights") for _ in range(2)]
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        case = {"rollout_servers": f"{servers[0].url},{servers[1].url}#nano", "parallel": "fsdp", "evaluation": 4}
        train(progress=False, **make_job(case, tmp_path / "one"))  # type: ignore[arg-type]
        launch(tmp_path, [make_job(case, tmp_path / "two")])
    assert_equal_runs(tmp_path / "one", tmp_path / "two")


def start_torchrun(out: Path, *options: str, restarts: int = 0) -> subprocess.Popen[str]:
    """Start `palaestra train` in two processes."""
    flags = [f"--{k.replace('_', '-')}={value}" for k, value in BASE.items() if k not in ("env_kwargs", "iterations")]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return subprocess.Popen(
        [*command, "-m", "palaestra", "train", *flags, *options, "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def kill_rank(process: subprocess.Popen[str], out: Path, rank: int) -> None:
    """Kill a rank after the first checkpoint."""
    while not (out / "checkpoints" / "iteration-1").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.kill(find_rank(process.pid, rank), 9)


@pytest.mark.backends
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_run_resumes(tmp_path: Path, victim: int) -> None:
    process = start_torchrun(tmp_path / "run", "--iterations=100000")
    try:
        kill_rank(process, tmp_path / "run", victim)
        output = process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode != 0
    survivor = 1 - victim
    assert f"rank {survivor} lost the connection to another of the 2 processes" in output
    assert output.count("train: model nano") == 1, "only rank 0 reports"
    settings = tmp_path / "run" / "settings.json"
    settings.write_text(settings.read_text().replace('"iterations": 100000', '"iterations": 4'))
    done = max(int(path.name.split("-")[1]) for path in (tmp_path / "run" / "checkpoints").glob("iteration-*"))
    result = resume(tmp_path / "run", progress=False)
    assert result.summary["iterations"] == max(done, 4)


@pytest.mark.backends
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_restarts_a_killed_rank(tmp_path: Path, victim: int) -> None:
    options = ("--iterations=12", "--parallel=fsdp")
    process = start_torchrun(tmp_path / "killed", *options, restarts=1)
    try:
        kill_rank(process, tmp_path / "killed", victim)
        output = process.communicate(timeout=200)[0]
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "restart 1 of 1 by torchrun: going on from the last checkpoint" in output
    whole = start_torchrun(tmp_path / "whole", *options)
    output = whole.communicate(timeout=200)[0]
    assert whole.returncode == 0, output
    hashes = {
        json.loads((tmp_path / name / "summary.json").read_text())["weights_sha256"] for name in ("killed", "whole")
    }
    assert len(hashes) == 1, "the restarted run ends with the same weights to the bit"


def test_restarts_need_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(SettingsError, match="expected --out FOLDER"):
        train(model="nano", env="CoTEnv-v0", progress=False)


@pytest.mark.backends
def test_learners_on_a_ray_cluster(tmp_path: Path) -> None:
    """In a process of its own: a process can start one cluster only."""
    script = Path(__file__).with_name("ray_learners.py")
    result = subprocess.run([sys.executable, script, tmp_path], capture_output=True, timeout=900)
    assert result.returncode == 0, result.stderr.decode()[-3000:]


def find_rank(launcher: int, rank: int) -> int:
    """The process of a rank among the children of torchrun."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return next(int(pid) for pid in children if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text())
