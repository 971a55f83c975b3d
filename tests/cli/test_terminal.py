"""Terminal output: plain text, resume hints after Ctrl-C, the width of standings, progress lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from number_task import number_task
from rich.console import Console

from palaestra.cli.main import main
from palaestra.cli.terminal import standings_tables
from palaestra.core.records import Event, Message
from palaestra.engines.openai_endpoint import RETRY
from palaestra.recipes.progress import RunProgress, plain_console
from palaestra.recipes.research.episode_player import describe_step
from palaestra.research.standings.standings import RunScore, Standings, TaskScale, compare_methods
from palaestra.research.tasks.task import Direction
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """The exit code of the command in this process, and its stderr."""
    monkeypatch.setattr(sys, "argv", ["palaestra", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


def test_ctrl_c_prints_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def create_and_interrupt(settings: Any, **_: Any) -> None:
        with Run.create(tmp_path / "run", "evaluate", {}):
            raise KeyboardInterrupt

    monkeypatch.setattr("palaestra.recipes.evaluate.recipe.evaluate", create_and_interrupt)
    code, error = run_command(monkeypatch, capsys, "evaluate")
    assert (code, error) == (
        130,
        f"stopped; the work so far is saved. Continue with: palaestra resume {tmp_path / 'run'}\n",
    )

    def study(*arguments: Any, out: Path, **_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("palaestra.recipes.teach.study.study", study)
    _, error = run_command(monkeypatch, capsys, "teach", "--seeds", "2", "--out", "here")
    assert error.endswith("Continue with: the same command, with --out here\n")

    def interrupt(kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("palaestra.cli.main.list_entries", interrupt)
    assert run_command(monkeypatch, capsys, "list") == (130, "stopped\n")


def test_ctrl_c_in_a_bench_prints_how_to_resume(tmp_path: Path) -> None:
    (tmp_path / "slow.txt").write_text("touch started\n%%\nsleep 2\n%%\nsubmit\n")
    command = [
        "research", "bench", "--tasks", number_task(tmp_path), "--agents", f"script:{tmp_path / 'slow.txt'}", "--out",
        tmp_path / "bench",
    ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "palaestra.cli.main", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        # Whatever runs the tests in the background may have it ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("bench/number/*/settings.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error == f"stopped; the work so far is saved. Continue with: palaestra resume {tmp_path / 'bench'}\n"
    assert "stopping: waiting for running commands" in out
    with Run.open(next(tmp_path.glob("bench/number/*")), read_only=True) as run:
        assert run.summary is None
        assert run.store.episodes() == [0]
        assert all(not step.stop_reason for step in run.store.steps(Step, 0)), "the running command was waited for"


def test_text_of_the_user_is_no_markup_and_no_emoji(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run_command(monkeypatch, capsys, "research", "--agent", "best_of:x:baseline[bold]")
    assert (code, "'best_of:x:baseline[bold]'" in error) == (2, True), error
    plain_console().print("runs/:x:[red]", Path("a[/]"))
    assert capsys.readouterr().out == "runs/:x:[red] a[/]\n"
    out = StringIO()
    progress = RunProgress(Console(file=out, width=200))
    progress(Event("step", 1, 8, 0, {"text": "1/8 echo :x: [bold]"}))
    assert "1/8 echo :x: [bold]\n" in out.getvalue()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"action": "ls"}, "ls"),
        ({"action": "submit", "stop_reason": "submitted"}, "submit"),
        ({"action": "validate", "attempts": [3.0, 4.5]}, "validate: 4.5"),
        ({}, "no readable action"),
        ({"stop_reason": "format"}, "no readable action; ended: format"),
        ({"action": "ls", "stop_reason": "steps"}, "ls; ended: steps"),
        (
            {"spoke": False, "stop_reason": "gave_up", "note": "the input ended"},
            "ended: gave up: the input ended",
        ),
        ({"spoke": False, "stop_reason": "context", "note": "too long"}, "ended: context: too long"),
    ],
)
def test_a_step_says_what_was_done_and_an_end_says_why(data: dict[str, Any], line: str) -> None:
    message = None if data.pop("spoke", True) is False else Message("assistant", "")
    attempts = data.pop("attempts", [])
    assert describe_step(Step(0, 1, message, **data), attempts) == line


def test_retries_of_a_service_are_shown(tmp_path: Path) -> None:
    for terminal_ in (False, True):
        out = StringIO()
        with RunProgress(Console(file=out, width=200, force_terminal=terminal_)) as progress:
            progress(Event(RETRY, 3, 10, data={"reason": "http://a:1/v1#m: ConnectError", "seconds": 1.84}))
            progress(Event(RETRY, 9, 10, data={"reason": "b answered 500: no", "seconds": 31.9}))
        assert "http://a:1/v1#m: ConnectError; retrying in 1.8 s (call 3 of at most 10)" in out.getvalue()
        assert "b answered 500: no; retrying in 32 s (call 9 of at most 10)" in out.getvalue()


def make_standings(methods: list[str]) -> Standings:
    scales = {name: TaskScale(Direction.HIGHER, 2.0) for name in ("tabular_classification", "grid_maze")}
    runs = [
        RunScore(task, method, seed, (2.5 + seed,), 1234.56 + place + seed / 7)
        for place, method in enumerate(methods)
        for task in scales
        for seed in range(3)
    ]
    return compare_methods(runs, scales)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_standings_fit_eighty_columns_and_no_figure_is_cut(count: int) -> None:
    address = "model:http://127.0.0.1:8000/v1#a-model-of-a-rather-long-name-"
    ranking = make_standings([f"{address}{k}" for k in range(count)])
    out = StringIO()
    console = Console(width=80, file=out, emoji=False, markup=False)
    for table in standings_tables(ranking, 80):
        console.print(table)
    text = out.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for profile in ranking.profiles:
        for area in profile.areas:
            assert f"{area.area:.3f} [{area.low:.3f}, {area.high:.3f}]" in text
    for cell in ranking.profiles[1].cells:
        assert f"{cell.score:.5g}" in text.replace("*", " ").split()
    # Names are folded, not cut: put together again they are whole.
    first = "".join(line[:28].strip() for line in text.split("area under")[1].splitlines()[2:])
    assert f"{address}0" in first


def test_a_reader_that_closes_the_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        result = subprocess.run(
            [sys.executable, "-m", "palaestra", "list"], stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "sys.exit" not in result.stderr
