"""The log of a run and its failure: what is written, that it is bounded, and that no secret is in it."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from palaestra.core.records import Event, notice
from palaestra.core.records import ignore as ignore_event
from palaestra.recipes.progress import log_events
from palaestra.runs import log as module
from palaestra.runs.log import LOG, TRACEBACK, find_cause, read_failure, read_log
from palaestra.runs.run import Run

KEY = "sk-abcdefghijklmnop1234"


def fail(folder: Path, error: Exception) -> None:
    with pytest.raises(type(error)), Run.open(folder):
        raise error


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Run.create(tmp_path / "run", "train", {"seed": 0}).close()
    return tmp_path / "run"


def test_events_and_warnings_are_lines_with_the_time(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    received: list[Event] = []
    with Run.open(folder) as run:
        listener = log_events(run, received.append)
        listener(notice(f"the key is {KEY}"))
        listener(Event("iteration", 1, 10, 1, {"entropy": 0.5}))
        warnings.warn("an old\noption", DeprecationWarning, stacklevel=1)
        logging.getLogger("some.library").warning("it is %s", "slow")
    logging.getLogger("some.library").warning("after the run")
    lines = [line.split(" ", 2) for line in read_log(folder)]
    assert all(len(day) == 10 and time.endswith("Z") for day, time, _ in lines)
    texts = [text for *_, text in lines]
    assert texts[0].startswith("train starts in process ")
    assert texts[1:3] == ["the key is ***", "iteration 1/10: entropy 0.500 nats"]
    assert texts[3].startswith("warning: DeprecationWarning: an old option (test_log.py, line ")
    assert texts[4:] == ["warning: it is slow"]
    assert [event.phase for event in received] == ["notice", "iteration"]
    assert len(recwarn) == 1, "the warning is shown as well"


def test_in_a_notebook_events_go_to_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with Run.open(folder) as run:
        log_events(run, ignore_event)(notice("half of it is done"))
    assert read_log(folder)[-1].endswith("half of it is done")


def test_a_long_log_keeps_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOG", 4000)
    with Run.open(folder) as run:
        for number in range(500):
            run.log.add(f"line {number} {'x' * 9000 if number == 400 else ''}")
    assert (folder / LOG).stat().st_size <= 4000
    assert read_log(folder)[-1].endswith("line 499")


def test_a_log_that_cannot_be_written_does_not_end_the_run(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    with Run.open(folder) as run:
        (folder / LOG).symlink_to(outside)
        run.log.add("into a link")
    assert outside.read_text() == "mine"


def test_a_failure_has_its_cause_and_no_secret(folder: Path) -> None:
    fail(folder, ValueError(f"{KEY} is wrong\nsecond line"))
    failure = read_failure(folder)
    assert failure is not None
    assert failure.cause == "ValueError: *** is wrong"
    assert "second line" in failure.traceback
    assert KEY not in failure.traceback + (folder / LOG).read_text()
    assert read_log(folder)[-1].endswith("failed: ValueError: *** is wrong")


def test_a_resumed_run_has_not_failed_yet(folder: Path) -> None:
    fail(folder, ValueError("broken"))
    with Run.open(folder) as run:
        assert not (folder / TRACEBACK).exists()
        log_events(run, ignore_event)
    assert read_failure(folder) is None
    with pytest.raises(KeyboardInterrupt), Run.open(folder):
        raise KeyboardInterrupt
    assert read_failure(folder) is None
    assert read_log(folder)[-1].endswith("stopped by the user")


def test_the_cause_is_that_of_the_last_error() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise RuntimeError("outer") from None
    except RuntimeError:
        import traceback

        assert find_cause(traceback.format_exc()) == "RuntimeError: outer"
    assert find_cause("") == "unknown error"
