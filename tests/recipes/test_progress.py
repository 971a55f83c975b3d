"""Progress of Python calls: shown by default on stderr, one unwrapped line at a time, and easily turned off."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from palaestra import train
from palaestra.core.records import Event
from palaestra.recipes import progress
from palaestra.recipes.progress import RunProgress, TrainProgress, plain_console

SMALL = {"env": "CartPole-v1", "iterations": 2, "num_envs": 2, "n_steps": 8, "evaluation": 2, "threads": 1}


@pytest.fixture(autouse=True)
def show_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PALAESTRA_PROGRESS", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_call_shows_its_progress_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ("a_folder_of_a_rather_long_name_" * 3)
    train(**SMALL, out=folder)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert printed.out == ""
    assert lines[0].endswith(f"train: model mlp, algorithm ppo, environment CartPole-v1, folder {folder}")
    assert sum("iteration 2/2: " in line for line in lines) == 1
    assert all(line.startswith("[") for line in lines)


def test_progress_can_be_turned_off_in_three_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(**SMALL, out=tmp_path / "a", progress=False)
    events: list[Event] = []
    train(**SMALL, out=tmp_path / "b", listener=events.append)
    monkeypatch.setenv("PALAESTRA_PROGRESS", "0")
    train(**SMALL, out=tmp_path / "c")
    assert capsys.readouterr() == ("", "")
    assert events


def test_a_long_phase_prints_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    out = StringIO()
    display = RunProgress(Console(file=out))
    for done in range(12):
        display(Event("0/test", done, 12))
    assert 1 <= out.getvalue().count("\n") <= 6
    assert "0/test: " in out.getvalue()


def test_quick_iterations_do_not_print_a_line_each() -> None:
    out = StringIO()
    display = TrainProgress(Console(file=out))
    for done in range(1, 501):
        display(Event("iteration", done, 500, data={"kl": 0.1}))
    lines = out.getvalue().splitlines()
    assert len(lines) < 50
    assert "iteration 1/500" in lines[0]
    assert "iteration 500/500" in lines[-1]


def test_a_pipe_is_not_wrapped_at_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    plain_console().print("word " * 60)
    assert capsys.readouterr().out.count("\n") == 1
