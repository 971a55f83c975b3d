"""Run the examples on published data at a tiny size, with files in the published format."""

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import SandboxError
from palaestra.sandbox import make_sandbox

FOLDER = Path(__file__).parents[2] / "examples" / "published"
TINY = [
    "--rounds",
    "1",
    "--lesson-size",
    "4",
    "--validation",
    "1",
    "--test",
    "1",
    "--epochs",
    "1",
    "--answer-tokens",
    "4",
]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an example in this process, and give what it printed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))

    def run(name: str, kind: str, *arguments: str) -> str:
        given = [name, kind, *TINY, "--data", str(tmp_path), "--out", str(tmp_path / "run"), *arguments]
        monkeypatch.setattr(sys, "argv", given)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("kind", ["open_ended", "skill_list", "skill_tree"])
def test_live_code_bench_is_taught_in_every_kind(kind: str, play: Callable[..., str], tmp_path: Path) -> None:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    cases = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    rows = [
        {
            "question_id": day,
            "question_content": f"Read n. Print n + 1. ({day})",
            "platform": "atcoder",
            "difficulty": "easy",
            "contest_date": day,
            "public_test_cases": cases,
            "private_test_cases": cases,
        }
        for day in ("2023-10-01", "2024-03-01")
    ]
    write_lines(tmp_path / "test.jsonl", rows)
    assert "4 examples in 1 rounds" in play("livecodebench", kind, "--student", "nano", "--skills", "programs")


def test_plans_are_taught_and_measured(play: Callable[..., str], tmp_path: Path) -> None:
    plan = [{"id": 0, "name": "image captioning", "args": {"image": "a.jpg"}}]
    rows = [{"id": k, "user_request": f"What is on a.jpg? {k}", "plan_str": str(plan)} for k in range(6)]
    for name, count in (("test_human_verified_filtered", 2), ("test_human_verified", 4), ("test_raw", 6)):
        write_lines(tmp_path / f"{name}.json", rows[:count])
    student = tmp_path / "student"  # The tools do not fit the 256 tokens of the embedded student.
    shutil.copytree(str(files("palaestra") / "assets" / "nano"), student)
    for name in ("config.json", "tokenizer_config.json"):
        (student / name).write_text((student / name).read_text().replace(": 256", ": 4096"))
    printed = play(
        "mnms",
        "skill_list",
        "--student",
        str(student),
        "--skills",
        "one_call",
        "--prompt",
        "short",
        "--lesson-size",
        "1",
    )
    assert "1 examples in 1 rounds" in printed
    assert "tool F1 after: " in printed


def test_every_example_is_run_here() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {"livecodebench.py", "mnms.py"}
