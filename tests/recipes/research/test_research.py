"""Research runs: summary, limits, interrupts, and resuming after a kill."""

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
from chat_server import Call, Reply, Server, calling, error
from number_task import number_task

from palaestra.cli.research import finish
from palaestra.core.errors import RunError, SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Event
from palaestra.engines.openai_endpoint import RETRY
from palaestra.recipes.research.episode_player import EpisodeStopped, read_submission
from palaestra.recipes.research.recipe import ResearchResult, resume, run_research
from palaestra.recipes.resume import resume as resume_folder
from palaestra.report import write_report
from palaestra.report.research import FOLDERS
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

FIELDS = {
    "task", "agent", "metric", "direction", "baseline", "best_attempt", "best_submission", "steps", "validations",
    "stop_reason", "failures", "cost", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def number_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_task(tmp_path_factory.mktemp("task"))


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(*actions: str) -> str:
        (tmp_path / "script.txt").write_text("\n%%\n".join(actions))
        return f"script:{tmp_path / 'script.txt'}"

    return write


def test_the_summary_holds_what_is_promised(number_folder: Path, tmp_path: Path) -> None:
    reply: list[Event] = []
    result = run_research(
        task=str(number_folder), agent="reference", seed=3, out=tmp_path / "run", listener=reply.append
    )
    assert set(result.summary) >= FIELDS
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["started"]["models"] == {}
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    assert {name: result.summary[name] for name in FIELDS - {"seconds"}} == {
        "task": "number",
        "agent": "reference",
        "metric": "value",
        "direction": "higher",
        "baseline": 6.0,
        "best_attempt": 50.0,
        "best_submission": 51.0,
        "steps": 3,
        "validations": 1,
        "stop_reason": "submitted",
        "failures": {},
        "cost": 0.0,
    }
    assert [(event.phase, event.done) for event in reply[1:]] == [
        ("baseline", 0),
        ("step", 1),
        ("step", 2),
        ("step", 3),
    ]


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
def test_every_end_has_its_reason(
    number_folder: Path,
    tmp_path: Path,
    script: Callable[..., str],
    actions: list[str],
    values: dict[str, Any],
    reason: str,
    score: float | None,
) -> None:
    s = run_research(task=str(number_folder), agent=script(*actions), out=tmp_path / "run", **values).summary
    assert (s["stop_reason"], s["best_submission"]) == (reason, score)
    assert s["failures"] == ({"scorer": 1} if any("break" in action for action in actions) else {})
    assert "has not ended" not in write_report(tmp_path / "run").read_text()
    if score is not None:
        with Run.open(tmp_path / "run", read_only=True) as run:
            assert read_submission(run, 0) == {"answer.txt": b"20\n"}


class Killed(BaseException):
    """What a kill leaves: every step that was stored, and no summary."""


def kill_after(steps: int) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.phase == "step" and event.done >= steps:
            raise Killed

    return listener


def test_killed_run_resumes_without_paying_twice(number_folder: Path, tmp_path: Path) -> None:
    commands = ["echo 20 > answer.txt", "date +%s%N", "validate", "cat answer.txt", "submit"]

    def answer(call: Call, before: int) -> Reply:
        turn = sum(message["role"] == "assistant" for message in call.body["messages"])
        return Reply(f"```\n{commands[turn]}\n```")

    with Server(answer) as server:
        values = {
            "task": str(number_folder),
            "agent": "model",
            "model": server.model,
            "cache": str(tmp_path / "calls.sqlite"),
        }
        with pytest.raises(Killed):
            run_research(**values, out=tmp_path / "run", listener=kill_after(3))
        page = write_report(tmp_path / "run").read_text()
        assert "The run failed" in page
        assert "3 steps so far" in page
        with Run.open(tmp_path / "run") as run:
            s = resume(run).summary
        assert len(server.calls) == 5
    assert (s["stop_reason"], s["best_submission"], s["steps"], s["validations"]) == ("submitted", 21.0, 5, 1)
    assert (s["calls"], s["completion_tokens"]) == (5, server.completion_tokens)
    assert (s["replayed"], s["different"]) == (3, 1)  # The time is another one; the opening is no step.
    with Run.open(tmp_path / "run", read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert [step.replayed for step in steps] == ["same", "same", "different", "same", "", ""]
    assert "20" in steps[4].observation[0].text  # The workspace was made anew, and is as it was.
    # Each step has its own call, also those that were played again, and the files that it changed.
    assert [step.calls for step in steps] == [0, 1, 1, 1, 1, 1]
    assert sum(step.usage.completion_tokens for step in steps) == server.completion_tokens
    assert [[(file.path, file.kind, file.diff) for file in step.files] for step in steps] == [
        [],
        [("answer.txt", "changed", "@@ -1 +1 @@\n-5\n+20")],
        [],
        [],
        [],
        [],
    ]
    # The agent sees the conversation that it had before the kill.
    output = [[message["content"] for message in call.body["messages"]] for call in server.calls]
    assert output[-1][: len(output[2])] == output[2]
    assert steps[2].observation[0].text in output[2]


@pytest.mark.parametrize("values", [{}, {"history": ("summary:4000",)}, {"tools": True}], ids=str)
def test_answered_call_is_not_paid_again_after_a_kill(
    number_folder: Path,
    tmp_path: Path,
    values: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = ["echo 20 > answer.txt", "date +%s%N; seq 1 200", "cat answer.txt; date +%N", "submit"]
    turn = 0

    def answer(call: Call, before: int) -> Reply:
        nonlocal turn
        if len(call.body["messages"]) == 1:
            return Reply("A summary.")
        turn += 1
        if values.get("tools"):
            bash, arguments = ("submit", "{}") if turn == 4 else ("bash", json.dumps({"command": commands[turn - 1]}))
            return calling(bash, arguments, f"call_{turn}")
        return Reply(f"```\n{commands[turn - 1]}\n```")

    steps, step = [], ResearchEnv.step

    def step_or_kill(env: ResearchEnv, action: Any) -> Any:
        steps.append(action)
        if len(steps) == 3:
            raise Killed  # The third answer has arrived, and its command has not ended.
        return step(env, action)

    with Server(answer) as server:
        service: dict[str, Any] = {"agent": "model", "model": server.model, "cache": str(tmp_path / "calls.sqlite")}
        monkeypatch.setattr(ResearchEnv, "step", step_or_kill)
        with pytest.raises(Killed):
            run_research(task=str(number_folder), **service, **values, out=tmp_path / "run")
        asked = len(server.calls)
        with Run.open(tmp_path / "run") as run:
            s = resume(run).summary
        assert turn == 4  # A paid answer that is asked for again would be the fifth.
        summaries = [call for call in server.calls if len(call.body["messages"]) == 1]
        assert bool(summaries) == ("history" in values)
        assert len({json.dumps(call.body) for call in server.calls}) == len(server.calls) > asked
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("submitted", 21.0, 4)
    assert (s["replayed"], s["different"], s["calls"], s["calls_again"]) == (2, 1, len(server.calls), 0)
    finish(ResearchResult(tmp_path / "run", s))
    assert "2 steps were replayed after an interruption; 1 of them printed different output" in capsys.readouterr().out


def test_run_killed_after_its_last_step_needs_no_workspace(number_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run_research(task=str(number_folder), agent="reference", out=tmp_path / "run", listener=kill_after(3))
    again: list[str] = []
    with Run.open(tmp_path / "run") as run:
        s = resume(run, listener=lambda event: again.append(event.phase)).summary
    assert (s["best_submission"], s["replayed"], again) == (51.0, 0, ["notice", "baseline"])
    with Run.open(tmp_path / "run") as run:
        assert resume(run).summary == s


def test_the_best_of_several_goes_on_after_a_kill(
    number_folder: Path, tmp_path: Path, script: Callable[..., str]
) -> None:
    agent = script("echo 20 > answer.txt", "submit")
    episodes = 0

    def listener(event: Event) -> None:
        nonlocal episodes
        episodes += event.phase == "step" and event.data["stop_reason"] == "submitted"
        if episodes == 2:
            raise Killed

    with pytest.raises(Killed):
        run_research(task=str(number_folder), agent=f"best_of:3:{agent}", out=tmp_path / "run", listener=listener)
    with Run.open(tmp_path / "run") as run:
        s = resume(run).summary
    assert (s["episodes"], s["best_submission"], s["best_attempt"], s["replayed"]) == (3, 21.0, 20.0, 0)
    assert ": the result</h2>" in write_report(tmp_path / "run").read_text()


def test_whoever_stops_a_run_between_steps_can_go_on(number_folder: Path, tmp_path: Path) -> None:
    asked = iter([False, True])
    with pytest.raises(EpisodeStopped):
        run_research(task=str(number_folder), agent="reference", out=tmp_path / "run", stop=lambda: next(asked))
    with Run.open(tmp_path / "run") as run:
        assert resume(run).summary["replayed"] == 1


def test_ctrl_c_during_a_command_submits_the_workspace(
    number_folder: Path, tmp_path: Path, script: Callable[..., str]
) -> None:
    agent = script("echo 20 > answer.txt", "touch started; sleep 60", "submit")
    command = [
        sys.executable,
        "-m",
        "palaestra.cli.main",
        "research",
        "--task",
        number_folder,
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
    start_line, line = process.stdout.readline(), process.stdout.readline()
    assert "research: task number" in start_line
    assert "1/8 echo 20" in line, line
    time.sleep(1.0)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert time.monotonic() - start < 10  # The command would have gone on for 20 s.
    s = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("interrupted", 21.0, 2)
    assert out.strip().splitlines()[-1] == f"run: {tmp_path / 'run'}"
    # What was under way is kept, and what ended it is said.
    reply = [
        message["content"] for message in json.loads((tmp_path / "run" / "trajectory.json").read_text())["messages"]
    ]
    assert "touch started; sleep 60" in reply
    assert "2/8 touch started; sleep 60; ended: interrupted: interrupted at the keyboard, during a command" in out
    assert "touch started; sleep 60" in (tmp_path / "run" / "report.html").read_text()


def test_a_demonstration_a_strategy_and_own_prompts_are_told(number_folder: Path, tmp_path: Path) -> None:
    run_research(task=str(number_folder), agent="reference", out=tmp_path / "first")
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "strategy.md.j2").write_text("Take {{ steps }} deep breaths.")
    values: dict[str, Any] = {"demonstration": str(tmp_path / "first"), "prompts": str(prompts)}
    run_research(task=str(number_folder), agent="baseline", out=tmp_path / "second", **values)
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
    ("values", "expected"),
    [
        ({"task": "prisoners"}, "'prisoners_dilemma'"),
        ({"parser": "xlm"}, "'xml'"),
        ({"sandbox": "bubble"}, "'bubblewrap'"),
        ({"commands": ("opn",)}, "'open'"),
        ({"prompts": "/nowhere"}, "prompt folder"),
        ({"demonstration": "/nowhere"}, "/nowhere"),
        ({"steps": -1}, "at least 0"),
        ({"seconds": float("inf")}, "'seconds': .*finite number; got inf"),
        ({"history": ("nope",)}, "history processor 'nope'"),
        ({"history": ("last",)}, "last:N with N >= 1; got 'last'"),
        ({"history": ("last:x",)}, "got 'last:x'"),
        ({"history": ("last:-1",)}, "got 'last:-1'"),
        ({"history": ("last:0",)}, "got 'last:0'"),
        ({"cache": "/tmp"}, "'cache': .*/tmp is a folder"),
        ({"cache": f"{__file__}/calls"}, r"test_research\.py is not a folder"),
        ({"cache": __file__}, "not a cache"),
        ({"memory": "/tmp"}, "memory .*/tmp is a folder"),
        ({"memory": f"{__file__}/notes"}, r"test_research\.py is not a folder"),
        ({"memory": __file__}, r"no line of .* is a note"),
        ({"task_kwargs": {"a": 1}}, "checkout"),
    ],
)
def test_wrong_settings_are_said_before_anything_is_written(
    tmp_path: Path, values: dict[str, Any], expected: str
) -> None:
    with pytest.raises((SettingsError, UnknownNameError, RunError), match=expected):
        run_research(**({"agent": "baseline"} | values), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_another_folder_than_it_was_begun_in(
    number_folder: Path, tmp_path: Path, script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("echo 20 > answer.txt", "submit")
    (tmp_path / "notes.txt").write_text("Begin at the beginning.")
    monkeypatch.chdir(tmp_path)
    task = os.path.relpath(number_folder)
    with pytest.raises(Killed):
        run_research(task=task, agent="script:script.txt", demonstration="notes.txt", out="run", listener=kill_after(1))
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]
    assert (Path(settings["task"]).resolve(), settings["agent"]) == (number_folder, f"script:{tmp_path / 'script.txt'}")
    monkeypatch.chdir(tmp_path.parent)
    with Run.open(tmp_path / "run") as run:
        assert resume(run).summary["best_submission"] == 21.0


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("evaluator.py", "def evaluate(evaluation):\n    return {'other': 1}\n", "cannot be judged"),
        ("evaluator.py", "import no_such_module\n", "no_such_module"),
        ("task.yaml", "baseline: python nothing.py\n", "nothing.py"),
        ("task.yaml", "data: data.py\n", "no data today"),
    ],
)
def test_a_broken_task_is_said_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, expected: str
) -> None:
    task = number_task(tmp_path)
    (task / "data.py").write_text("def make(public, hidden, rng):\n    raise ValueError('no data today')\n")
    (task / file).write_text((task / file).read_text() + text if file == "task.yaml" else text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match=expected):
        run_research(task="number/", agent="reference")
    assert not (tmp_path / "runs").exists()


def test_baseline_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.research.workspace import workspace as baseline

    task, measured = number_task(tmp_path), 0
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    original = baseline.measure

    def measure(*arguments: Any) -> Any:
        nonlocal measured
        measured += 1
        return original(*arguments)

    monkeypatch.setattr(baseline, "measure", measure)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    with pytest.raises(RunError, match="not empty"):
        run_research(task=str(task), agent="baseline", out=tmp_path / "taken")
    assert measured == 0
    run_research(task=str(task), agent="baseline", out=tmp_path / "run")
    assert measured == 1


def test_an_agent_that_never_spoke_is_marked(
    number_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = {"agent": "model:http://127.0.0.1:9/v1#nobody", "context": 20, "cache": str(tmp_path / "c.sqlite")}
    result = run_research(task=str(number_folder), **nobody, out=tmp_path / "run")
    assert result.summary["stop_reason"] == "context"
    assert (result.summary["silent"], result.summary["best_submission"]) == (True, 6.0)
    finish(result)
    output = capsys.readouterr().out
    assert "0 messages: the agent wrote nothing" in output
    assert "0 messages." in (tmp_path / "run" / "report.html").read_text()
    spoken = run_research(task=str(number_folder), agent="baseline", out=tmp_path / "other")
    assert spoken.summary["silent"] is False
    finish(spoken)
    assert "wrote nothing" not in capsys.readouterr().out
    assert "0 messages." not in (tmp_path / "other" / "report.html").read_text()


def test_calls_that_were_made_again_are_told_and_counted(
    number_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply: list[Event] = []

    def answer(call: Call, before: int) -> Reply:
        spoken = len(call.body["messages"]) > 2
        if not spoken and before == 0:
            return error(500, "out of order")
        return Reply("```\nsubmit\n```" if spoken else "```\necho 20 > answer.txt\n```")

    with Server(answer) as server:
        result = run_research(
            task=str(number_folder),
            agent="model",
            model=server.model,
            out=tmp_path / "run",
            cache=str(tmp_path / "c.sqlite"),
            listener=reply.append,
        )
    s = result.summary
    assert (s["steps"], s["calls"], s["calls_again"], s["failures"]) == (2, 3, 1, {})
    (again,) = [event for event in reply if event.phase == RETRY]
    assert (again.done, again.total) == (1, 10)
    assert "out of order" in again.data["reason"]
    assert again.data["seconds"] > 0
    finish(result)
    assert "3 calls (1 repeated)" in " ".join(capsys.readouterr().out.split())
    assert "1 call repeated" in (tmp_path / "run" / "report.html").read_text()


def test_submission_on_validation_data_is_an_attempt(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for name, text in {
        "configs/tasks/game.yaml": (
            "id: game\nname: A game\ndescription: Play.\ntask_entrypoint: PythonSubmissionTasks\ntraining_timeout: 60\n"
            "evaluation_paths:\n  - evaluate.py\nstarter_code:\n  - data/evaluate.py\n  - data/target.py\n"
            "baseline_scores:\n  - Score: 0.5\n"
        ),
        "data/evaluate.py": "import json\nfrom target import play\nprint(json.dumps({'Score': play()}))\n",
        "data/target.py": "def play():\n    return 0.25\n",
    }.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    (tmp_path / "script.txt").write_text("submit")
    s = run_research(
        task="game", mlgym=str(checkout), agent=f"script:{tmp_path / 'script.txt'}", out=tmp_path / "run"
    ).summary
    assert (s["best_submission"], s["best_attempt"], s["attempts"], s["validations"]) == (0.25, 0.25, [0.25], 0)


def test_what_was_handed_in_for_the_choice_is_no_validation(
    number_folder: Path, tmp_path: Path, script: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = script("echo 20 > answer.txt", "validate", "submit")
    finish(run_research(task=str(number_folder), agent=f"best_of:2:{agent}", out=tmp_path / "run"))
    output = " ".join(capsys.readouterr().out.split())
    assert "best validation 20 of 2, and 2 submitted; baseline 5" in output
    assert "2 validations" in output
    assert "of 2 validations and 2 submissions" in (tmp_path / "run" / "report.html").read_text()


def test_the_page_calls_task_and_agent_by_their_names(
    number_folder: Path, tmp_path: Path, script: Callable[..., str]
) -> None:
    with pytest.raises(Killed):
        run_research(
            task=str(number_folder), agent=script("true", "submit"), out=tmp_path / "run", listener=kill_after(1)
        )
    assert "<h1>script:script.txt on number</h1>" in write_report(tmp_path / "run").read_text()
    for agent, title in (
        ("model:http://a/v1#m", "model:http://a/v1#m"),
        ("best_of:2:replay:/x/y/z", "best_of:2:replay:z"),
    ):
        assert FOLDERS.sub(":", agent) == title


def test_the_page_shows_scores_conversation_and_end(
    number_folder: Path, tmp_path: Path, script: Callable[..., str]
) -> None:
    run_research(
        task=str(number_folder),
        agent=script("echo 3 > answer.txt", "validate", "echo '<b>9</b>'", "submit"),
        out=tmp_path / "run",
    )
    page = write_report(tmp_path / "run").read_text()
    for words in (
        "worse than the baseline",
        "validation 3.00",
        "the agent submitted its work",
        "&lt;b&gt;9&lt;/b&gt;",
        "baseline 5.00",
        "<svg",
    ):
        assert words in page, words
    assert "<b>9</b>" not in page


def test_python_calls_show_their_progress(
    number_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALAESTRA_PROGRESS", raising=False)
    values: dict[str, Any] = {"task": str(number_folder), "agent": "reference"}
    with pytest.raises(Killed):
        run_research(**values, out=tmp_path / "run", listener=kill_after(2))
    assert capsys.readouterr().err == ""
    resume_folder(tmp_path / "run")
    shown = capsys.readouterr().err
    assert f"research: task number, agent reference, folder {tmp_path / 'run'}" in shown
    assert "(again)" in shown
    run_research(**values, out=tmp_path / "other")
    assert "validate: 50" in capsys.readouterr().err
    run_research(**values, out=tmp_path / "third", progress=False)
    assert capsys.readouterr().err == ""


def test_the_package_is_called_like_the_recipe(tmp_path: Path) -> None:
    import palaestra

    result = palaestra.run_research(task="prisoners_dilemma", agent="baseline", out=tmp_path / "run")
    summary = result.summary
    assert palaestra.research.tasks.task.load_task("prisoners_dilemma").name == summary["task"]  # type: ignore[attr-defined]
    assert (summary["before"], summary["after"], summary["gain"]) == (
        summary["baseline"],
        summary["best_submission"],
        0,
    )
    assert (summary["gain_low"], summary["gain_high"], summary["unit"]) == (None, None, summary["metric"])
