"""All agents: script, human, replay, baseline, reference, best of several."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from registries import isolate_registries

from palaestra.core.errors import RunError, SettingsError, UnknownNameError
from palaestra.core.records import NOTICE, Event, Message
from palaestra.recipes.research import recipe
from palaestra.recipes.research.episode_player import read_submission
from palaestra.recipes.research.recipe import make_context, run_research
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.report import write_report
from palaestra.research.agents import AGENTS, Agent, make_agent, resolve_agent
from palaestra.research.agents.base import count_turns
from palaestra.research.agents.simple import read_script, write_command
from palaestra.research.judge.evaluation import SubmissionJudge
from palaestra.research.tasks.task import load_task
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

Play = Callable[..., dict[str, Any]]


@pytest.fixture
def play(number: Path, tmp_path: Path) -> Play:
    """The summary of a run on the number task; run folders are `0`, `1` and so on."""
    count = iter(range(100))

    def run(agent: str, **values: Any) -> dict[str, Any]:
        settings = {"task": str(number), "cache": str(tmp_path / "calls.sqlite"), **values}
        return run_research(agent=agent, out=tmp_path / str(next(count)), **settings).summary

    return run


def script(folder: Path, *actions: str) -> str:
    (folder / "script.txt").write_text("\n%%\n".join(actions))
    return f"script:{folder / 'script.txt'}"


@pytest.mark.backends
def test_script_with_a_good_strategy_beats_the_baseline(tmp_path: Path) -> None:
    good = load_task("prisoners_dilemma").reference_files()["strategy.py"].decode()
    agent = script(tmp_path, "open strategy.py", f"create strategy.py\n{good}\nend_of_file", "validate", "submit")
    result = run_research(task="prisoners_dilemma", agent=agent, out=tmp_path / "run")
    s = result.summary
    assert s["stop_reason"] == "submitted"
    assert s["best_submission"] > s["baseline"] + 0.2
    assert s["best_attempt"] > s["baseline_validation"] + 0.2
    assert (s["steps"], s["validations"], s["failures"], s["cost"]) == (4, 1, {}, 0.0)
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert read_submission(run, 0)["strategy.py"].decode().strip() == good.strip()


def test_a_replay_gives_the_same_result_step_by_step(play: Play, tmp_path: Path) -> None:
    agent = script(
        tmp_path, "echo 30 > answer.txt", "validate", "cat nothing", "echo 40 > answer.txt", "validate", "submit"
    )
    first, second = play(agent), play(f"replay:{tmp_path / '0'}")
    assert (first["replay"], second["replay"]) == (
        None,
        {"steps": 6, "identical": 6, "first_departure": None, "reason": ""},
    )
    volatile = ("agent", "seconds", "replay")
    assert {k: v for k, v in first.items() if k not in volatile} == {
        k: v for k, v in second.items() if k not in volatile
    }
    conversations = []
    for name in ("0", "1"):
        with Run.open(tmp_path / name, read_only=True) as run:
            steps = run.store.steps(Step, 0)
            conversations.append([(s.message, s.action, s.observation, s.reward, s.stop_reason) for s in steps])
    assert conversations[0] == conversations[1]
    assert len(conversations[0]) == 7


def test_replay_stops_with_the_run_and_its_limits(play: Play, tmp_path: Path) -> None:
    cut = play(script(tmp_path, "echo 30 > answer.txt", "true", "true"), steps=2)
    gone = play(script(tmp_path, "echo 30 > answer.txt"))
    for before, folder in ((cut, "0"), (gone, "1")):
        again = play(f"replay:{tmp_path / folder}")
        kept = ("stop_reason", "best_submission", "steps")
        assert [again[name] for name in kept] == [before[name] for name in kept]
    assert (cut["stop_reason"], gone["stop_reason"]) == ("steps", "gave_up")


def test_a_replay_of_something_else_says_so(play: Play, tmp_path: Path, number: Path) -> None:
    play("baseline")
    with pytest.raises(SettingsError, match="'number'"):
        run_research(task="prisoners_dilemma", agent=f"replay:{tmp_path / '0'}", out=tmp_path / "other")
    with pytest.raises(RunError, match="does not exist"):
        play("replay:nowhere")


def test_a_replay_says_where_it_departs(play: Play, tmp_path: Path) -> None:
    notices: list[str] = []

    def listen(event: Event) -> None:
        if event.phase == NOTICE:
            notices.append(event.data["text"])

    name = "mktemp -u XXXXXXXXXXXX"
    play(script(tmp_path, "echo 30 > answer.txt", name, "cat answer.txt", name, "submit"))
    replay = play(f"replay:{tmp_path / '0'}", listener=listen)["replay"]
    assert (replay["steps"], replay["identical"], replay["first_departure"]) == (5, 3, 2)
    assert " instead of " in replay["reason"]
    assert notices[1:] == [f"warning: the replay departs from the recorded run in message 2: {replay['reason']}"]
    page = write_report(tmp_path / "1").read_text()
    assert "The replay departs from the recorded run in message 2" in page
    assert page.count("not as recorded") == 2


def test_a_trajectory_of_mlgym_is_compared_with_its_outputs(play: Play, tmp_path: Path) -> None:
    answers = {
        "open answer.txt": "[File: /workspace/answer.txt (1 lines total)]\n1:5",
        "edit 1:9\n30\nend_of_edit": "[File: /workspace/answer.txt (1 lines total)]\n1:30\nFile updated.",
        "validate": "Evaluation Score: {'value': 44.0}",
        "submit": "",
    }
    steps = [
        {"response": f"```\n{action}\n```", "action": action, "observation": text} for action, text in answers.items()
    ]
    info = {"exit_status": "submitted", "score": [{"value": 44.0}, {"value": 31.0}]}
    (tmp_path / "a.traj").write_text(json.dumps({"trajectory": steps, "info": info}))
    summary = play(f"replay:{tmp_path / 'a.traj'}")
    assert (summary["best_submission"], summary["failures"]) == (31.0, {})
    reason = "the score is 30 instead of 44"
    assert summary["replay"] == {"steps": 4, "identical": 3, "first_departure": 3, "reason": reason}


def test_a_run_is_replayed_by_its_trajectory_as_by_its_folder(play: Play, tmp_path: Path) -> None:
    first = play(script(tmp_path, "echo 30 > answer.txt", "submit"))
    assert play(f"replay:{tmp_path / '0' / 'trajectory.json'}")["best_submission"] == first["best_submission"] == 31.0


def test_replay_does_not_restart_an_interrupted_command(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ResearchEnv.respond

    def respond(self: ResearchEnv, message: Message) -> Any:
        reply = original(self, message)
        if "40" in message.text:  # Somebody presses Ctrl-C before the command has ended.
            self._over = False
            raise KeyboardInterrupt
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(ResearchEnv, "respond", respond)
        first = play(script(tmp_path, "echo 30 > answer.txt", "echo 40 > other.txt", "submit"))
    again = play(f"replay:{tmp_path / '0'}")
    assert (first["steps"], again["steps"]) == (2, 1)
    kept = ("stop_reason", "best_submission", "note")
    assert [first[name] for name in kept] == [again[name] for name in kept]
    assert first["stop_reason"] == "interrupted"


def test_an_agent_is_settled_for_a_process_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "nano").mkdir()
    for spec, settled in (
        ("script:a/{task}.txt", f"script:{tmp_path}/a/{{task}}.txt"),
        ("script a/b c.txt", f"script:{tmp_path}/a/b c.txt"),
        ("replay runs/1", f"replay:{tmp_path}/runs/1"),
        ("best_of:2:script b.txt", f"best_of:2:script:{tmp_path}/b.txt"),
        ("best_of:2:script:~/b.txt", f"best_of:2:script:{Path.home()}/b.txt"),
        ("replay:runs/1", f"replay:{tmp_path}/runs/1"),
        ("model:weights", f"model:{tmp_path}/weights"),
        ("model:nano", "model:nano"),
        ("model:openai:gpt", "model:openai:gpt"),
        ("baseline", "baseline"),
        ("best_of:x", "best_of:x"),
    ):
        assert resolve_agent(spec) == settled, spec


def test_nested_interactive_agents_are_recognized(number: Path) -> None:
    context = make_context(ResearchSettings(task=str(number)), load_task(number))
    interactive = [make_agent(spec, context).interactive for spec in ("human", "best_of:2:human", "best_of:2:baseline")]
    assert interactive == [True, True, False]


def test_baseline_agent_submits_the_measured_files(play: Play) -> None:
    baseline, reference = play("baseline"), play("reference")
    assert baseline["best_submission"] == baseline["baseline"] == 6.0
    assert baseline["best_attempt"] == baseline["baseline_validation"] == 5.0
    assert (baseline["reward"], reference["best_submission"], reference["reward"]) == (0.0, 51.0, 4.5)


def test_files_of_any_bytes_are_written_by_one_command(number: Path) -> None:
    content = {"deep/er/a file.bin": bytes(range(256)) * 1000, "empty": b""}
    env = ResearchEnv(number, parser="identity")
    try:
        env.reset(seed=0)
        (command,) = write_command(content)
        output = env.step(command)[0].messages[-1].text
        assert "succeeded" in output, output
        assert env._workspace is not None
        assert env._workspace.shell.read_files(list(content)) == content
    finally:
        env.close()
    assert write_command({}) == []


class Guesses(Agent):
    """Writes another number in each episode; those of later episodes are worse."""

    parser = "identity"
    seeds: ClassVar[list[int]] = []

    def begin(self, seed: int, tools: Any) -> None:
        Guesses.seeds.append(seed)
        self.number = 30 - len(Guesses.seeds)

    def act(self, conversation: Any) -> Any:
        return Message("assistant", f"echo {self.number} > answer.txt" if count_turns(conversation) == 0 else "submit")


def test_the_best_of_several_is_chosen_by_validation_alone(
    play: Play, number: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate_registries(monkeypatch, AGENTS)
    AGENTS.register("guesses", Guesses)
    Guesses.seeds.clear()
    judged: list[tuple[str, str]] = []
    original = SubmissionJudge.judge

    def judge(self: SubmissionJudge, files: Any, split: Any) -> Any:
        judged.append((split, files["answer.txt"].decode().strip()))
        return original(self, files, split)

    play("baseline")  # Its baseline is measured now, and not below.
    monkeypatch.setattr(SubmissionJudge, "judge", judge)
    s = play("best_of:3:guesses")
    assert judged == [("validation", "29"), ("validation", "28"), ("validation", "27"), ("test", "29")]
    assert (s["kept_episode"], s["best_attempt"], s["best_submission"], s["episodes"]) == (0, 29.0, 30.0, 3)
    assert len(set(Guesses.seeds)) == 3
    assert s["steps"] == 6


def test_a_person_plays_lines_blocks_and_edits(number: Path, tmp_path: Path) -> None:
    typed = iter(
        ["", "open answer.txt", "edit 1:1", "70", "end_of_edit", "```", "cat answer.txt", "ls", "```", "submit"]
    )
    s, printed = played_by_hand(number, tmp_path, typed)
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("submitted", 71.0, 4)
    assert "A large number" in printed[1]
    assert any("70\nanswer.txt" in text for text in printed)


def test_human_gives_up_at_end_of_input_and_submits_on_ctrl_c(number: Path, tmp_path: Path) -> None:
    gone, _ = played_by_hand(number, tmp_path, iter(["echo 9 > answer.txt"]))
    assert (gone["stop_reason"], gone["best_submission"]) == ("gave_up", None)

    def type_and_interrupt() -> Any:
        yield "echo 9 > answer.txt"
        raise KeyboardInterrupt

    stopped, _ = played_by_hand(number, tmp_path / "other", type_and_interrupt())
    assert (stopped["stop_reason"], stopped["best_submission"]) == ("interrupted", 10.0)


def played_by_hand(number: Path, folder: Path, typed: Any) -> tuple[dict[str, Any], list[str]]:
    """A run of a person who types this, and what was shown."""
    shown: list[str] = []

    def ask(prompt: str) -> str:
        try:
            return str(next(typed))
        except StopIteration:
            raise EOFError from None

    original = recipe.make_context

    def make_scripted_context(*arguments: Any, **named: Any) -> Any:
        return replace(original(*arguments, **named), ask=ask, show=shown.append)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "make_context", make_scripted_context)
        return run_research(task=str(number), agent="human", out=folder / "run").summary, shown


def test_agent_without_bash_runs_no_bash(play: Play, tmp_path: Path) -> None:
    s = play(
        script(tmp_path, "echo 30 > answer.txt", "create answer.txt\n20\nend_of_file", "submit"),
        commands=["create", "submit"],
    )
    assert (s["best_submission"], s["steps"]) == (21.0, 3)
    with Run.open(tmp_path / "0", read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert "one of these commands. The next message" in steps[0].observation[0].text
    assert steps[1].state["ok"] is False
    assert "no command 'echo', and no bash" in steps[1].observation[0].text
    assert play("reference", commands=["create", "submit"])["best_submission"] == 51.0
    assert play(f"replay:{tmp_path / '1'}", commands=["open"])["best_submission"] == 51.0


def test_the_reward_of_a_run_is_the_sum_of_its_episodes_rewards(play: Play, tmp_path: Path) -> None:
    assert play(script(tmp_path, "echo 26 > answer.txt", "submit"))["reward"] == pytest.approx(2.1)
    assert play("best_of:2:" + script(tmp_path, "echo 26 > answer.txt", "submit"))["reward"] == pytest.approx(2.1)
    for agent in ("", "best_of:2:"):
        s = play(agent + script(tmp_path, "rm answer.txt", "submit"))
        assert (s["reward"], s["outcome"], s["best_submission"]) == (pytest.approx(-0.6), "missing", None)
    s = play(script(tmp_path, "rm answer.txt"), steps=1)
    assert (s["reward"], s["outcome"], s["stop_reason"]) == (pytest.approx(-0.6), "invalid", "steps")
    s = play(script(tmp_path, "echo break > answer.txt", "submit"))
    assert (s["reward"], s["outcome"]) == (None, "failed")  # A failure of ours is nobody's score.


def test_scripts_are_texts_or_calls_of_tools(play: Play, tmp_path: Path) -> None:
    lines = [{"name": "bash", "arguments": {"command": "echo 12 > answer.txt"}}, {"name": "submit"}]
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    s = play(f"script:{path}")
    assert (s["best_submission"], s["tools"]) == (13.0, True)
    path.write_text('"echo 13 > answer.txt"\n"submit"\n')
    assert play(f"script:{path}")["best_submission"] == 14.0
    for text, expected in (
        ("", "contains no action"),
        ("{", "line 1, is not JSON"),
        ("[1]", "line 1: expected a string"),
    ):
        path.write_text(text)
        with pytest.raises(SettingsError, match=expected):
            read_script(path)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("modl", "'model'"),
        ("script", "script:FILE"),
        ("script:/nowhere", "cannot be read"),
        ("baseline:x", "takes no argument"),
        ("best_of:x", "best_of:N:AGENT"),
        ("best_of:2:model:nano", "temperature"),
        ("model", "--model"),
        ("best_of:2:model", "--model"),
        ("model:nanno", "unknown model"),
        ("replay", "replay:FOLDER"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    number: Path, tmp_path: Path, agent: str, expected: str
) -> None:
    with pytest.raises((SettingsError, UnknownNameError), match=expected):
        run_research(task=str(number), agent=agent, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_agent_of_ones_own_is_a_class_and_a_line(
    number: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Submitter(Agent):
        parser = "identity"

        def act(self, conversation: Any) -> Any:
            return Message("assistant", "submit")

    isolate_registries(monkeypatch, AGENTS)
    AGENTS.register("submitter", Submitter, "submits the current workspace")
    settings = ResearchSettings(task=str(number), agent="submitter")
    assert isinstance(make_agent("submitter", make_context(settings, load_task(number))), Submitter)
    assert run_research(settings, out=tmp_path / "run").summary["best_submission"] == 6.0
