"""A research task served over MCP is an ordinary run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from number_task import number_task

from palaestra.core.errors import MissingExtraError, TaskError
from palaestra.core.records import Event
from palaestra.recipes.research.mcp_server import serve_research
from palaestra.recipes.research.recipe import ResearchResult
from palaestra.research.agents.mcp import EpisodeChannel
from palaestra.research.workspace.commands import CommandResult
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

pytest.importorskip("mcp")

WRITE = {"command": "echo 20 > answer.txt"}


@pytest.fixture(scope="module")
def number_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    created = number_task(tmp_path_factory.mktemp("task"))
    evaluator = created / "evaluator.py"
    # What a task's own code prints must not get into the protocol.
    evaluator.write_text(evaluator.read_text().replace("    text =", '    print("hear me")\n    text ='))
    return created


def read_steps(folder: Path) -> list[Step]:
    with Run.open(folder, read_only=True) as run:
        return run.store.steps(Step, 0)


def test_every_call_is_stored(number_folder: Path, tmp_path: Path) -> None:
    folder, heard, ended = tmp_path / "run", [], []

    def client(line: EpisodeChannel, instructions: str) -> None:
        assert "A large number" in instructions
        for name, arguments in (("bash", WRITE), ("validate", {}), ("submit", {})):
            heard.append(line.call(name, arguments))
            assert [step.action for step in read_steps(folder)][1:] == [
                "bash " + json.dumps(WRITE),
                "validate {}",
                "submit {}",
            ][: len(heard)]
            assert len(ended) == (name == "submit")
        assert json.loads((folder / "summary.json").read_text())["stop_reason"] == "submitted"
        assert line.call("bash", {"command": "ls"}) == CommandResult(
            "The episode is over; nothing was run.", False, "error"
        )

    result = serve_research(task=str(number_folder), out=folder, serving=client, ended=ended.append)
    assert ended == [result]
    assert all(outcome.ok for outcome in heard)
    assert "on the validation split: 20 " in heard[1].text
    assert heard[2].text.startswith("Submitted. value on the test split: 21")
    s = result.summary
    assert (s["agent"], s["best_submission"], s["attempts"], s["steps"], s["tools"]) == ("mcp", 21.0, [20.0], 3, True)
    assert (folder / "submissions" / "episode-0" / "answer.txt").read_text() == "20\n"
    output = json.loads((folder / "trajectory.json").read_text())["messages"]
    assert [message["role"] for message in output] == ["system", "user", *["assistant", "tool"] * 3]


@pytest.mark.parametrize(
    ("name", "arguments", "ok"),
    [
        ("bash", {"command": "true"}, True),
        ("create", {"path": "a.txt", "text": "b"}, True),
        ("validate", {}, True),
        ("edit", {"path": "x"}, False),
        ("nonsense", {"a": 1}, False),
        ("bash", {"command": 5}, False),
        ("bash", {"command": "exit 3"}, False),
        ("bash", {"command": "vim answer.txt"}, False),
        ("bash\ud800", "{", False),
    ],
)
def test_what_was_not_done_is_told_as_an_error(
    number_folder: Path, tmp_path: Path, name: str, arguments: dict[str, Any], ok: bool
) -> None:
    def client(line: EpisodeChannel, instructions: str) -> None:
        assert line.call(name, arguments).ok is ok
        assert line.call("bash", {"command": "cat answer.txt"}).ok

    assert serve_research(task=str(number_folder), out=tmp_path / "run", serving=client).summary["steps"] == 2


def test_missing_score_is_an_error_to_the_client(number_folder: Path, tmp_path: Path) -> None:
    def client(line: EpisodeChannel, instructions: str) -> None:
        line.call("bash", {"command": "echo word > answer.txt"})
        for name, expected in (("validate", "Nothing was validated"), ("submit", "Nothing was submitted")):
            outcome = line.call(name, {})
            assert not outcome.ok
            assert f"{expected}. It was not counted." in outcome.text
        line.call("bash", WRITE)
        assert [line.call("validate", {}).ok for _ in range(4)] == [True, True, True, False]
        line.call("bash", {"command": "echo break > answer.txt"})
        assert not line.call("submit", {}).ok

    s = serve_research(task=str(number_folder), out=tmp_path / "run", serving=client, steps=20).summary
    assert (s["validations"], s["stop_reason"]) == (3, "failed")


@pytest.mark.parametrize(
    ("command", "values", "reason", "score"),
    [
        ("echo 20 > answer.txt", {}, "interrupted", 21.0),
        ("rm answer.txt", {}, "interrupted", None),
        ("echo 20 > answer.txt; sleep 0.4", {"seconds": 0.3}, "time", 21.0),
        ("echo 20 > answer.txt", {"steps": 1}, "steps", 21.0),
        ("echo break > answer.txt", {"steps": 1}, "failed", None),
    ],
)
def test_leaving_client_submits_the_workspace(
    number_folder: Path, tmp_path: Path, command: str, values: dict[str, Any], reason: str, score: float | None
) -> None:
    def client(line: EpisodeChannel, instructions: str) -> None:
        outcome = line.call("bash", {"command": command})
        assert outcome.ok is (reason != "failed")
        assert ("Submitted" in outcome.text) is (reason in ("time", "steps"))
        assert ("something around you broke" in outcome.text) is (reason == "failed")

    s = serve_research(task=str(number_folder), out=tmp_path / "run", serving=client, **values).summary
    assert (s["stop_reason"], s["best_submission"]) == (reason, score)
    assert s["note"] == ("the client left" if reason == "interrupted" else "")


class Killed(BaseException):
    """What a kill leaves: every step that was stored, and no summary."""


def kill_after(steps: int) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.phase == "step" and event.done >= steps:
            raise Killed("killed")

    return listener


def test_resume_completes_a_killed_run(number_folder: Path, tmp_path: Path) -> None:
    def client(line: EpisodeChannel, instructions: str) -> None:
        assert line.call("bash", WRITE).ok
        outcome = line.call("bash", {"command": "ls"})
        assert (outcome.ok, outcome.text) == (False, "The episode ended: something around you broke. killed")
        assert not line.call("bash", {"command": "ls"}).ok

    with pytest.raises(Killed):
        serve_research(task=str(number_folder), out=tmp_path / "run", serving=client, listener=kill_after(2))
    command = [sys.executable, "-m", "palaestra.cli.main", "resume", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)  # A process that was never told of MCP.
    assert done.returncode == 130, done.stderr
    s = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (s["stop_reason"], s["best_submission"], s["steps"], s["replayed"]) == ("interrupted", 21.0, 2, 2)


def test_wrong_settings_raise_before_anything_is_written(
    number_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(line: EpisodeChannel, instructions: str) -> None:
        raise AssertionError("nobody is served")

    with pytest.raises(TaskError, match=r"task\.yaml"):
        serve_research(task=str(tmp_path / "none"), out=tmp_path / "run", serving=client)
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    with pytest.raises(MissingExtraError, match=r"palaestra\[mcp\]"):
        serve_research(task=str(number_folder), out=tmp_path / "run", serving=client)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", ["submits", "leaves"])
def test_the_command_serves_a_client_of_the_sdk(number_folder: Path, tmp_path: Path, how: str) -> None:
    from mcp_client import text_of, with_client

    folder = tmp_path / "run"

    async def work(client: Any) -> None:
        assert "8 messages and 50 seconds" in client.instructions
        assert {tool.name for tool in (await client.list_tools()).tools} == {"bash", "validate", "submit"}
        wrong = await client.call_tool("bash", {"command": 5})
        assert wrong.is_error
        assert "COMMAND is a text" in text_of(wrong)
        assert not (await client.call_tool("bash", WRITE)).is_error
        assert "split: 20 " in text_of(await client.call_tool("validate", {}))
        if how == "submits":
            assert "Submitted" in text_of(await client.call_tool("submit", {}))
            assert (folder / "report.html").exists()
            assert (await client.call_tool("bash", {"command": "ls"})).is_error

    options = ["--task", str(number_folder), "--out", str(folder), "--seconds", "50"]
    commands = [part for name in ("bash", "validate", "submit") for part in ("--command", name)]
    with_client(work, "-m", "palaestra.cli.main", "research", "mcp", *options, *commands)
    until = time.monotonic() + 20
    while not (folder / "report.html").exists() and time.monotonic() < until:
        time.sleep(0.05)
    s: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert s["stop_reason"] == ("submitted" if how == "submits" else "interrupted")
    assert (s["best_submission"], s["attempts"]) == (21.0, [20.0])


def test_prints_of_evaluators_are_not_sent(
    number_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    result = serve_research(task=str(number_folder), out=tmp_path / "run", serving=lambda line, instructions: None)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hear me\n" * 2)  # Of the baseline; when it has left, a client hears nothing any more.
    assert isinstance(result, ResearchResult)
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert (settings["agent"], settings["tools"], settings["plugins"]) == (
        "mcp",
        True,
        ["palaestra.research.agents.mcp"],
    )
