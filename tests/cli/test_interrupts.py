"""Ctrl-C and SIGTERM leave a checkpoint, and the resumed run reaches the same result."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import processes

PLUGIN = Path(__file__).parents[1] / "helpers" / "user_plugin.py"
TRAIN = [
    "train", "--plugin", str(PLUGIN), "--env", "InterruptedCartPole-v0", "--iterations", "8", "--num-envs", "4", "--n-steps", "8",
    "--n-epochs", "1", "--evaluation", "2", "--threads", "1",
]  # fmt: skip
TEACH = [
    "teach", "--plugin", str(PLUGIN), "--learning", "interrupted", "--skill", "addition", "--rounds", "1", "--lesson-size", "12",
    "--validation", "1", "--test", "1", "--epochs", "2", "--batch-size", "4", "--threads", "1",
]  # fmt: skip


def palaestra(*arguments: str | Path, cwd: Path) -> processes.Completed:
    return processes.run_command(*arguments, cwd=cwd, env={"COLUMNS": "100"})


def finish(arguments: list[str], folder: Path, number: int, code: int) -> tuple[processes.Completed, dict[str, object]]:
    """Run a command that is interrupted, go on with it, and compare it with one that was left alone."""
    assert palaestra(*arguments, "--out", "alone", cwd=folder).returncode == 0
    (folder / "signal").write_text(str(int(number)))
    stopped = palaestra(*arguments, "--out", "stopped", cwd=folder)
    assert stopped.returncode == code, stopped.stderr
    assert "palaestra resume stopped" in stopped.stderr
    resumed = palaestra("resume", "stopped", cwd=folder)
    assert resumed.returncode == 0, resumed.stderr
    alone, summary = (json.loads((folder / name / "summary.json").read_text()) for name in ("alone", "stopped"))
    assert summary["weights_sha256"] == alone["weights_sha256"]
    return resumed, summary


def test_interrupted_training_resumes_after_the_iteration(tmp_path: Path) -> None:
    resumed, summary = finish(TRAIN, tmp_path, signal.SIGINT, 130)
    # 4 slots of 8 steps a round: the hundredth step is in the fourth iteration, before which an evaluation stepped too.
    shown = [line for line in resumed.stdout.splitlines() if "iteration " in line]
    first = int(shown[0].split("iteration ")[1].split("/")[0])
    assert 2 <= first <= 5, resumed.stdout
    assert summary["iterations"] == 8


def test_a_lesson_stops_after_the_step_and_goes_on_from_there(tmp_path: Path) -> None:
    finish(TEACH, tmp_path, signal.SIGTERM, 143)
    assert (tmp_path / "went on from").read_text() == "3"
