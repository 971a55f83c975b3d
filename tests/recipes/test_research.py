"""A run of research: its summary, its limits, its end by a person, and its way back after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server
from number_task import number_task

from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.events import Event
from palaestra.recipes.playing import Stopped, read_submission
from palaestra.recipes.research import research, resume
from palaestra.report import write_report
from palaestra.research.steps import Step
from palaestra.runs.run import Run

FIELDS = {
    "task", "agent", "metric", "direction", "baseline", "best_attempt", "best_submission", "steps", "validations",
    "stop_reason", "failures", "cost", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_task(tmp_path_factory.mktemp("task"))


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*actions: str) -> str:
        (tmp_path / "script.txt").write_text("\n%%\n".join(actions))
        return f"script:{tmp_path / 'script.txt'}"

    return write


def test_the_summary_holds_what_is_promised(number: Path, tmp_path: Path) -> None:
    told: list[Event] = []
    result = research(task=str(number), agent="reference", seed=3, out=tmp_path / "run", listener=told.append)
    assert set(result.summary) >= FIELDS
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    assert {name: result.summary[name] for name in FIELDS - {"seconds"}} == {
        "task": "number", "agent": "reference", "metric": "value", "direction": "higher", "baseline": 6.0,
        "best_attempt": 50.0, "best_submission": 51.0, "steps": 3, "validations": 1, "stop_reason": "submitted",
        "failures": {}, "cost": 0.0,
    }  # fmt: skip
    assert [(event.phase, event.done) for event in told] == [("baseline", 0), ("step", 1), ("step", 2), ("step", 3)]


@pytest.mark.parametrize(
    ("actions", "values", "reason", "score"),
    [
        (["echo 20 > answer.txt", "true", "true"], {"steps": 2}, "steps", 21.0),
        (["echo 20 > answer.txt; sleep 0.4", "true"], {"seconds": 0.3}, "time", 21.0),
        (["echo 20 > answer.txt"], {}, "gave_up", None),
        (["rm answer.txt", "submit", "true"], {"steps": 3}, "steps", None),
        (["echo break > answer.txt", "submit"], {}, "failed", None),
        (["echo break > answer.txt", "validate", "echo 20 > answer.txt", "submit"], {}, "submitted", 21.0),
    ],
)
def test_every_end_has_its_reason_and_a_score_where_there_is_one(
    number: Path, tmp_path: Path, script: Callable[..., str], actions: list[str], values: dict[str, Any], reason: str,
    score: float | None,
) -> None:  # fmt: skip
    s = research(task=str(number), agent=script(*actions), out=tmp_path / "run", **values).summary
    assert (s["stop_reason"], s["best_submission"]) == (reason, score)
    assert s["failures"] == ({"scorer": 1} if any("break" in action for action in actions) else {})
    assert "has not ended" not in write_report(tmp_path / "run").read_text()
    if score is not None:
        with Run.open(tmp_path / "run", read_only=True) as run:
            assert read_submission(run, 0) == {"answer.txt": b"20\n"}


class Killed(BaseException):
    """What a kill leaves: every step that was stored, and no summary."""


def killed_after(steps: int) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.phase == "step" and event.done >= steps:
            raise Killed

    return listener


def test_a_killed_run_goes_on_in_a_fresh_workspace_and_pays_for_nothing_twice(number: Path, tmp_path: Path) -> None:
    commands = ["echo 20 > answer.txt", "date +%s%N", "validate", "cat answer.txt", "submit"]

    def answer(call: Call, before: int) -> Reply:
        turn = sum(message["role"] == "assistant" for message in call.body["messages"])
        return Reply(f"```\n{commands[turn]}\n```")

    with Server(answer) as server:
        values = {"task": str(number), "agent": "model", "model": server.model, "cache": str(tmp_path / "calls.sqlite")}
        with pytest.raises(Killed):
            research(**values, out=tmp_path / "run", listener=killed_after(3))
        page = write_report(tmp_path / "run").read_text()
        assert "The run has not ended" in page
        assert "3 steps so far" in page
        with Run.open(tmp_path / "run") as run:
            s = resume(run).summary
        assert len(server.calls) == 5
    assert (s["stop_reason"], s["best_submission"], s["steps"], s["validations"]) == ("submitted", 21.0, 5, 1)
    assert (s["calls"], s["completion_tokens"]) == (5, server.completion_tokens)
    assert (s["replayed"], s["different"]) == (4, 1)  # The opening and three steps; the time is another one.
    with Run.open(tmp_path / "run", read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert [step.replayed for step in steps] == ["same", "same", "different", "same", "", ""]
    assert "20" in steps[4].observation[0].text  # The workspace was made anew, and is as it was.
    # What the agent was shown after the break is what the new workspace said.
    assert steps[2].observation[0].text in [message["content"] for message in server.calls[-1].body["messages"]]


def test_a_run_that_was_killed_behind_its_last_step_needs_no_workspace(number: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        research(task=str(number), agent="reference", out=tmp_path / "run", listener=killed_after(3))
    again: list[str] = []
    with Run.open(tmp_path / "run") as run:
        s = resume(run, listener=lambda event: again.append(event.phase)).summary
    assert (s["best_submission"], s["replayed"], again) == (51.0, 0, ["baseline"])
    with Run.open(tmp_path / "run") as run:
        assert resume(run).summary == s


def test_the_best_of_several_goes_on_after_a_kill(number: Path, tmp_path: Path, script: Callable[..., str]) -> None:
    agent = script("echo 20 > answer.txt", "submit")
    episodes = 0

    def listener(event: Event) -> None:
        nonlocal episodes
        episodes += event.phase == "step" and event.figures["stop_reason"] == "submitted"
        if episodes == 2:
            raise Killed

    with pytest.raises(Killed):
        research(task=str(number), agent=f"best_of:3:{agent}", out=tmp_path / "run", listener=listener)
    with Run.open(tmp_path / "run") as run:
        s = resume(run).summary
    assert (s["episodes"], s["best_submission"], s["best_attempt"], s["replayed"]) == (3, 21.0, 20.0, 0)
    assert "the one that counts" in write_report(tmp_path / "run").read_text()


def test_whoever_stops_a_run_between_steps_can_go_on(number: Path, tmp_path: Path) -> None:
    asked = iter([False, True])
    with pytest.raises(Stopped):
        research(task=str(number), agent="reference", out=tmp_path / "run", stop=lambda: next(asked))
    with Run.open(tmp_path / "run") as run:
        assert resume(run).summary["replayed"] == 2


def test_ctrl_c_during_a_command_ends_the_run_with_what_is_there(
    number: Path, tmp_path: Path, script: Callable[..., str]
) -> None:
    agent = script("echo 20 > answer.txt", "touch started; sleep 60", "submit")
    command = [
        sys.executable,
        "-m",
        "palaestra.cli.main",
        "research",
        "--task",
        number,
        "--agent",
        agent,
        "--out",
        tmp_path / "run",
    ]
    process = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
        # Whatever runs the tests in the background may have it ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "1/8 echo 20" in line, line
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert time.monotonic() - start < 10  # The command would have gone on for 20 s.
    s = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (s["stop_reason"], s["best_submission"]) == ("interrupted", 21.0)
    assert out.strip().splitlines()[-1] == f"run: {tmp_path / 'run'}"


def test_a_demonstration_a_strategy_and_own_prompts_are_told(number: Path, tmp_path: Path) -> None:
    research(task=str(number), agent="reference", out=tmp_path / "first")
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "strategy.md.j2").write_text("Take {{ steps }} deep breaths.")
    values: dict[str, Any] = {"demonstration": str(tmp_path / "first"), "prompts": str(prompts)}
    research(task=str(number), agent="baseline", out=tmp_path / "second", **values)
    with Run.open(tmp_path / "second", read_only=True) as run:
        system, user = run.store.steps(Step, 0)[0].observation
    assert (system.role, user.role) == ("system", "user")
    assert (
        user.text.index("How others worked")
        < user.text.index("A large number")
        < user.text.index("Take 8 deep breaths")
    )
    assert "value on the validation split: 50" in user.text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task": "prisoners"}, "did you mean 'prisoners_dilemma'"),
        ({"parser": "xlm"}, "did you mean 'xml'"),
        ({"sandbox": "bubble"}, "did you mean 'bubblewrap'"),
        ({"commands": ("opn",)}, "did you mean 'open'"),
        ({"prompts": "/nowhere"}, "no folder of prompts"),
        ({"demonstration": "/nowhere"}, "no file and no run folder"),
        ({"steps": -1}, "at least 0"),
        ({"task_options": ("a=1",)}, "only tasks of a checkout"),
    ],
)
def test_wrong_settings_are_said_before_anything_is_written(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises((SettingsError, UnknownNameError), match=said):
        research(**({"agent": "baseline"} | values), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_page_shows_scores_conversation_and_end(number: Path, tmp_path: Path, script: Callable[..., str]) -> None:
    research(
        task=str(number),
        agent=script("echo 3 > answer.txt", "validate", "echo '<b>9</b>'", "submit"),
        out=tmp_path / "run",
    )
    page = write_report(tmp_path / "run").read_text()
    for words in (
        "worse than the baseline",
        "validation 3.00",
        "the agent handed its work in",
        "&lt;b&gt;9&lt;/b&gt;",
        "baseline 5.00",
        "<svg",
    ):
        assert words in page, words
    assert "<b>9</b>" not in page
