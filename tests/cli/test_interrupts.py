"""Ctrl-C is one line at every moment. Ctrl-C and SIGTERM leave a checkpoint, and the resumed run reaches the same result."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest

PLUGIN = Path(__file__).parents[1] / "helpers" / "user_plugin.py"
TRAIN = [
    "train", "--plugin", str(PLUGIN), "--env", "InterruptedCartPole-v0", "--iterations", "8", "--num-envs", "4", "--n-steps", "8",
    "--n-epochs", "1", "--evaluation", "2", "--threads", "1",
]  # fmt: skip
TEACH = [
    "teach", "--plugin", str(PLUGIN), "--learning", "interrupted", "--skill", "addition", "--rounds", "1", "--lesson-size", "12",
    "--validation", "1", "--test", "1", "--epochs", "2", "--batch-size", "4", "--threads", "1",
]  # fmt: skip

INTERRUPT_AT_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module and finder in sys.meta_path:
            sys.meta_path.remove(finder)
            os.kill(os.getpid(), signal.SIGINT)

finder, module = Finder(), sys.argv[1]
sys.meta_path.insert(0, finder)
sys.argv = ["palaestra", *sys.argv[2:]]
from palaestra.__main__ import main
main()
"""
EVALUATE = ["evaluate", "--problems", "60", "--out", "run"]


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


def start(code: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a Python program in which Ctrl-C raises, although what runs the tests in the background may have it ignored."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.parametrize(
    "module",
    ["palaestra.integrations", "gymnasium", "numpy", "palaestra.cli.main", "typer", "rich", "palaestra.recipes.evaluate.recipe", "torch", "transformers"],
)  # fmt: skip
def test_ctrl_c_during_an_import_is_one_line(module: str, tmp_path: Path) -> None:
    process = start(INTERRUPT_AT_IMPORT, module, *EVALUATE, cwd=tmp_path)
    _, error = process.communicate(timeout=120)
    assert error == "stopped\n"
    assert process.returncode == 130


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.5, 1.0, 2.0, 4.0])
def test_ctrl_c_at_every_moment_of_a_start_is_one_line(seconds: float, tmp_path: Path) -> None:
    code = "import palaestra; print('imported', flush=True); from palaestra.__main__ import main; main()"
    process = start(code, *EVALUATE, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "imported\n"
    time.sleep(seconds + 0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    # An interrupt within an import lets Python end itself by the signal, which a shell also reports as 130.
    assert process.returncode in (130, -signal.SIGINT), error
    has_run = (tmp_path / "run" / "settings.json").exists()
    resume = "; the work so far is saved. Continue with: palaestra resume run"
    assert error == f"stopped{resume if has_run else ''}\n"


def test_a_program_keeps_its_own_interrupts(tmp_path: Path) -> None:
    code = "import signal, palaestra; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    _, error = start(code, cwd=tmp_path).communicate(timeout=60)
    assert not error
