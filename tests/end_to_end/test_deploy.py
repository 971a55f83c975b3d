"""The files of `deploy/`: their commands exist, and the script for two nodes trains with two launchers on this host."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
BIN = Path(sys.executable).parent
SMALL = shlex.split(
    "--env palaestra/CoT-v0 --model nano --iterations 2 --episodes 16 --num-envs 8 --max-tokens 12 --evaluation 2"
)


def list_commands() -> list[list[str]]:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    job = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())
    return [*(service["command"] for service in services.values()), shlex.split(job["spec"]["entrypoint"])[1:]]


@pytest.mark.backends
@pytest.mark.parametrize("command", list_commands(), ids=lambda command: command[0])
def test_every_option_of_a_command_exists(command: list[str]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "palaestra", command[0], "--help-all" if command[0] == "train" else "--help"],
        env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert {word for word in command if word.startswith("--")} <= set(shown.split())


def test_the_job_of_a_cluster_mounts_what_it_writes() -> None:
    job = yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())["spec"]
    cluster = job["rayClusterSpec"]
    learners = int(job["entrypoint"].split("--learners ")[1].split()[0])
    [group] = cluster["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert group["replicas"] * int(limits["nvidia.com/gpu"]) == learners
    for template in (cluster["headGroupSpec"]["template"], group["template"]):
        [container] = template["spec"]["containers"]
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/runs" in paths
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            v["name"] for v in template["spec"]["volumes"]
        }


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment in which `srun` runs a command once per node, on this host."""
    programs = {
        "scontrol": "echo 127.0.0.1; echo 127.0.0.1",
        "srun": 'shift; for node in 0 1; do SLURM_NODEID=$node "$@" & jobs+=($!); done; for job in "${jobs[@]}"; do wait $job; done',
    }
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\nset -e\n{text}\n")
        path.chmod(0o755)
    own = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": str(os.getpid()),
           "PATH": f"{tmp_path}/bin:{BIN}:/usr/bin:/bin", "RUN": str(tmp_path / "run"), "SLURM_CPUS_PER_TASK": "1"}  # fmt: skip
    return {**os.environ, **own}


@pytest.mark.backends
def test_two_nodes_train_and_go_on_after_a_requeue(slurm: dict[str, str], tmp_path: Path) -> None:
    script = ["bash", str(DEPLOY / "slurm.sbatch"), *SMALL]
    first = subprocess.run(script, env=slurm, capture_output=True, text=True, timeout=400)
    assert first.returncode == 0, first.stderr[-2000:]
    assert first.stdout.count("report: ") == 1, "only rank 0 reports"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    # Requeued before its end: the run goes on from its last checkpoint.
    (tmp_path / "run" / "summary.json").unlink()
    again = subprocess.run(script, env=slurm, capture_output=True, text=True, timeout=400)
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["weights_sha256"] == summary["weights_sha256"]


@pytest.mark.backends
def test_a_job_that_is_submitted_to_a_cluster_trains(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp_cors", reason="needs ray[default]")
    ray = shutil.which("ray", path=str(BIN))
    assert ray is not None
    short = tempfile.mkdtemp(prefix="ray-")  # The paths of sockets have at most 107 characters.
    start = [ray, "start", "--head", "--num-cpus=2", "--port=0", "--dashboard-port=8299", f"--temp-dir={short}"]
    environment = {**os.environ, "PATH": f"{BIN}:/usr/bin:/bin", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    subprocess.run(start, env=environment, check=True, capture_output=True, timeout=120)
    try:
        job = ["palaestra", "train", *SMALL, "--learners", "2", "--out", str(tmp_path / "run")]
        submit = [ray, "job", "submit", "--address", "http://127.0.0.1:8299", "--", *job]
        result = subprocess.run(submit, env=environment, capture_output=True, text=True, timeout=500)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]
    finally:
        subprocess.run([ray, "stop", "--force"], env=environment, capture_output=True)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["iterations"], summary["failures"]) == (2, {})
