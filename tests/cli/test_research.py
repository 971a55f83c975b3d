"""`palaestra research` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import processes
import pytest
from number_task import number_task
from typer.testing import CliRunner

from palaestra.cli.main import app
from palaestra.cli.research import _tasks
from palaestra.core.errors import SettingsError
from palaestra.research.tasks.task import task_names


def palaestra(*arguments: str | Path) -> processes.Completed:
    return processes.run_command(*arguments, env={"COLUMNS": "100", "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_task(tmp_path_factory.mktemp("task"))


def test_a_run_prints_its_steps_its_scores_and_its_folder(number: Path, tmp_path: Path) -> None:
    result = palaestra("research", "--task", number, "--agent", "reference", "--no-strategy", "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.strip().splitlines()
    assert lines[0].endswith(f"research: task number, agent reference, folder {tmp_path / 'run'}")
    assert "2/8 validate: 50" in lines[2]
    assert "51 (value, higher is better)" in result.stdout
    assert lines[-1] == f"run: {tmp_path / 'run'}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_submission"] == 51.0
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert settings["strategy"] is False
    assert (tmp_path / "run" / "report.html").exists()


def test_a_bench_prints_its_standings_and_is_resumed(number: Path, tmp_path: Path) -> None:
    arguments = [
        "--tasks",
        number,
        "--agents",
        "baseline,reference",
        "--seeds",
        "2",
        "--workers",
        "2",
        "--out",
        tmp_path / "bench",
    ]
    result = palaestra("research", "bench", *arguments)
    assert result.returncode == 0, result.stderr
    start = f"bench: tasks number, agents baseline, reference, runs 4, folder {tmp_path / 'bench'}"
    assert result.stdout.splitlines()[0].endswith(start)
    assert "area under the performance profile" in result.stdout
    assert "4/4" in result.stdout
    assert result.stdout.strip().splitlines()[-1] == f"bench: {tmp_path / 'bench'}"
    (tmp_path / "bench" / "summary.json").unlink()
    again = palaestra("resume", tmp_path / "bench")
    assert again.returncode == 0, again.stderr
    assert "51*" in again.stdout
    assert (tmp_path / "bench" / "summary.json").exists()


PLUGIN = """
import os
from pathlib import Path
from palaestra.core.records import Message
from palaestra.research.agents import AGENTS, Agent

class Fragile(Agent):
    parser = "identity"

    def act(self, conversation):
        if not any(message.role == "assistant" for message in conversation.messages):
            return Message("assistant", "echo 20 > answer.txt")
        if not (mark := Path(__file__).with_suffix(".mark")).exists():
            mark.touch()
            os._exit(9)
        return Message("assistant", "submit")

AGENTS.register("fragile", Fragile, "dies once")
"""


def test_a_plugin_agent_resumes_from_another_folder(
    number: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    result = palaestra("research", "--plugin", "mine.py", "--task", number, "--agent", "fragile", "--out", "run")
    assert result.returncode == 9, result.stderr
    monkeypatch.chdir(tmp_path.parent)
    again = palaestra("resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best_submission"] == 21.0


def test_the_tasks_are_listed_with_what_is_measured() -> None:
    result = palaestra("research", "tasks")
    assert result.returncode == 0, result.stderr
    row = next(line for line in result.stdout.splitlines() if line.startswith("prisoners_dilemma"))
    assert row.split()[1:3] == ["points", "higher"]


def test_the_task_list_checks_its_options(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["research", "tasks", "--only", "grid_maze,colonel_blotto"])
    named = [name for name in task_names() if f"\n{name} " in listed.output]
    assert named == ["colonel_blotto", "grid_maze"]
    for arguments, message in (
        (["--only", "grid_mace"], "'grid_maze'"),
        (["--mlgym", str(tmp_path)], "MLGym checkout"),
        (["--mlgym", str(tmp_path), "--measure"], "leave out --mlgym"),
        (["--write", "tasks.md"], "--measure"),
    ):
        assert message in str(CliRunner().invoke(app, ["research", "tasks", *arguments]).exception)
    with pytest.raises(SettingsError, match="MLGym checkout"):
        _tasks("all", str(tmp_path))


def test_all_means_every_task(tmp_path: Path) -> None:
    assert _tasks("all", "") == task_names()
    (tmp_path / "configs" / "tasks").mkdir(parents=True)
    (tmp_path / "configs" / "tasks" / "theirs.yaml").write_text("")
    assert _tasks("all", str(tmp_path)) == ["theirs"]
    assert _tasks("one, all", "") == ["one", "all"]


def test_options_come_after_their_subcommand(tmp_path: Path) -> None:
    for arguments, message in (
        (["research", "--task", "x", "tasks"], "--task before"),
        (["research", "--agent", "modle"], "'model'"),
        (["research"], "--model"),
        (
            ["research", "bench", "--tasks", "prisoners_dilemma", "--agents", "human"],
            "interactive",
        ),
        (["research", "bench", "--tasks", "prisoners_dilemma"], "--agents"),
    ):
        result = palaestra(*arguments)
        assert result.returncode == 2, result
        assert message in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
