"""Mistakes in user code are reported in one line with file and line. They never damage a run or score 0."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest

PLUGIN = Path(__file__).parents[1] / "helpers" / "user_plugin.py"


def palaestra(*arguments: str | Path, cwd: Path) -> processes.Completed:
    return processes.run_command(*arguments, cwd=cwd, env={"COLUMNS": "100"})


def find_line(mark: str) -> int:
    lines = PLUGIN.read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if line.endswith(f"# mark: {mark}"))


@pytest.mark.parametrize(
    ("task", "mark", "code", "message"),
    [
        ("ScoresAreNumbers", "number", 2, "ScoresAreNumbers.score returned 1.0 (user_plugin.py, line {})"),
        ("ScorerRaises", "raises", 2, "3 x scorer: ZeroDivisionError: division by zero (user_plugin.py, line {})"),
        ("ScorerExits", "exits", 2, "sys.exit(0) (user_plugin.py, line {})"),
        ("EvidenceIsANumber", "evidence", 2, "3 x scorer: TypeError: the evidence of a score must map texts to texts; got {{'extracted': 2}} (user_plugin.py, line {})"),
        ("ProblemsAreTexts", "texts", 2, "ProblemsAreTexts.problems returned '1 + 1 = ?' in a list (user_plugin.py, line {})"),
        ("ProblemsAreNone", "none", 2, "ProblemsAreNone.problems returned None (user_plugin.py, line {})"),
        ("SameIds", "same", 2, "'test-0' as the id of two problems (user_plugin.py, line {})"),
        ("ProblemsRaise", "missing", 1, "KeyError: 'missing' (user_plugin.py, line {})"),
    ],
)  # fmt: skip
def test_what_a_task_returns_is_checked_at_once(task: str, mark: str, code: int, message: str, tmp_path: Path) -> None:
    result = palaestra("evaluate", "--plugin", PLUGIN, "--task", task, cwd=tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
    assert message.format(find_line(mark)) in result.stderr
    assert code != 1 or "--traceback" in result.stderr
    for kept in tmp_path.glob("runs/*/traceback.txt"):
        assert "user_plugin.py" in kept.read_text() or task == "ScorerRaises"


def test_a_traceback_is_stored_and_printed_on_request(tmp_path: Path) -> None:
    arguments = ["evaluate", "--plugin", PLUGIN, "--task", "ScoresAreNumbers"]
    result = palaestra(*arguments, "--out", "run", "--traceback", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.splitlines()[-1].startswith("error: ScoresAreNumbers.score returned 1.0")
    kept = (tmp_path / "run" / "traceback.txt").read_text()
    assert kept.startswith("Traceback (most recent call last):")
    assert "TaskError: ScoresAreNumbers.score returned 1.0" in kept


def test_a_run_that_fails_and_then_ends_well_has_no_traceback(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.read_text().replace("return 1.0", "return Score(1.0)[0]"))
    first = palaestra("evaluate", "--plugin", plugin, "--task", "ScoresAreNumbers", "--out", "run", cwd=tmp_path)
    assert first.returncode == 2  # Every attempt failed: the run has ended, and says so.
    assert "3 x scorer: TypeError" in first.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["report"]["accuracy"] is None
    assert summary["failures"] == {"scorer": 3}
    assert not (tmp_path / "run" / "traceback.txt").exists()


def test_a_plugin_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_at_all\n")
    for command in ("evaluate", "teach", "train"):
        result = palaestra(command, "--plugin", "broken.py", cwd=tmp_path)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "broken.py cannot be imported: ModuleNotFoundError" in result.stderr
        assert "(broken.py, line 1)" in result.stderr
