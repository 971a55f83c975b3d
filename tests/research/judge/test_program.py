"""An evaluator that never ends is interrupted, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from number_task import number_task

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure, FailureCause
from palaestra.recipes.research.recipe import run_research
from palaestra.research.judge import evaluation, program
from palaestra.research.judge.evaluation import SubmissionJudge
from palaestra.research.judge.program import OverdueError, within
from palaestra.research.tasks.task import Grade, InvalidSubmission, load_task
from palaestra.sandbox import make_sandbox

LOOP = """
def evaluate(evaluation):
    with evaluation.program("answer.py") as program:
        program.call("first")
        while True:
            {body}
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SLACK", 0.0)
    monkeypatch.setattr(program, "GRACE", 0.4)


@pytest.fixture
def task(tmp_path: Path) -> Callable[[str], Path]:
    def write(evaluator: str) -> Path:
        created = number_task(tmp_path)
        (created / "evaluator.py").write_text(evaluator)
        output = (created / "task.yaml").read_text()
        (created / "task.yaml").write_text(
            output.replace("validations: 3", "validations: 3, evaluation_seconds: 0.2").replace(
                "answer.txt", "answer.py"
            )
        )
        return created

    return write


def list_evaluation_threads() -> set[str]:
    """What runs for an evaluation."""
    return {thread.name for thread in threading.enumerate()} & {"deadline", "submission"}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("body", "seconds"),
    [("pass", 0.2), ("program.call('again')", 60.0), ("evaluation.run('sleep', '60', seconds=60)", 60.0)],
)
def test_endless_evaluator_is_a_failure_and_its_programs_end(
    task: Callable[[str], Path], body: str, seconds: float
) -> None:
    folder = task(LOOP.format(body=body).replace('"answer.py"', f'"answer.py", {seconds}'))
    judge = SubmissionJudge(load_task(folder), make_sandbox())
    start = time.monotonic()
    result = judge.judge({"answer.py": b"def first(): pass\ndef again():\n    while True: pass\n"}, "validation")
    assert result == Failure(FailureCause.SCORER, "the evaluator of number exceeded its time limit of 0.6 s")
    assert judge.exposed  # as it was called
    while list_evaluation_threads() and time.monotonic() - start < 3:
        time.sleep(0.01)
    assert not list_evaluation_threads()


@pytest.mark.usefixtures("short")
def test_endless_baseline_raises_before_the_run(task: Callable[[str], Path], tmp_path: Path) -> None:
    folder = task("def evaluate(evaluation):\n    while True:\n        pass\n")
    (folder / "starter" / "answer.py").write_text("")
    with pytest.raises(TaskError, match=r"limit of 0\.6 s"):
        run_research(task=str(folder), agent="baseline", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_busy_machine_does_not_change_a_verdict(task: Callable[[str], Path]) -> None:
    folder = task(
        "def evaluate(evaluation):\n    with evaluation.program('answer.py', 0.8) as program: return {'value': program.call('work')}\n"
    )
    judge = SubmissionJudge(load_task(folder), make_sandbox())
    work = b"import time\ndef work():\n    end = time.process_time() + %s\n    while time.process_time() < end: pass\n    return 1\n"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        outcomes = [judge.judge({"answer.py": work % seconds}, "test") for seconds in (b"0.4", b"9")]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert isinstance(outcomes[0], Grade), outcomes
    assert isinstance(outcomes[1], InvalidSubmission)
    assert "cpu_time" in outcomes[1].reason


def test_ctrl_c_interrupts_the_work_and_is_raised_again() -> None:
    ended = threading.Event()

    def work() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    # In the background of a shell interrupts are ignored, and so they would be here.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(20.0, work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_within_returns_raises_and_abandons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "GRACE", 0.1)
    assert within(5.0, lambda: "given") == "given"
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    stop = threading.Event()

    def ignore_interrupts() -> None:
        while not stop.is_set():
            with suppress(BaseException):
                time.sleep(0.01)

    with pytest.raises(OverdueError):
        within(0.05, ignore_interrupts)
    stop.set()
