"""`palaestra list runs`: what each run does, how far it is, and why it failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import write_train_run

from palaestra.cli.listing import list_entries
from palaestra.runs.run import Run


def test_runs_are_listed_with_their_result_or_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_entries("runs") == {}
    write_train_run(tmp_path / "runs" / "good")
    write_train_run(tmp_path / "runs" / "bad", ended=False)
    with pytest.raises(ValueError, match="broke"), Run.open(tmp_path / "runs" / "bad"):
        raise ValueError("it broke")
    rows = list_entries("runs")
    assert rows["good"].startswith(
        "train ended; palaestra/CoT-v0; nano; accuracy gain (points) 12.50 (10.00 to 15.00); 20"
    )
    assert rows["bad"].startswith("train failed 3 of 40; palaestra/CoT-v0; nano; training reward 0.300; 20")
    assert rows["bad"].endswith("; ValueError: it broke")
