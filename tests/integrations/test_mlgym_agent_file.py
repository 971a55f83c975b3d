"""Agent files, requirements and trajectories in MLGym's formats, with files of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palaestra.core.errors import RunError, SettingsError, TaskError
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.integrations.mlgym.agent_file import agent_settings
from palaestra.integrations.mlgym.files import find_answers, find_submission, install_requirements
from palaestra.recipes.research.recipe import resolve_paths, run_research
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.research.agents.base import AgentContext, Halt, make_agent
from palaestra.research.tasks.task import load_task

AGENT = """
system_template: "Work on it. {WINDOW} lines at a time.\\n{command_docs}\\nSay {{% raw }} as it is."
task_template: "Your task: {description} ({remaining_steps} steps, {gpus} GPUs)"
next_step_template: "{observation}\\n{working_dir} $"
output_parser: XMLThoughtActionParser
history_processor: Last2Observations
tools:
  env_variables: {WINDOW: 50}
  state_command: {name: state, code: 'state() { echo gpus; }'}
  command_files: [tools/defaults.sh, tools/edit_linting.sh, tools/submit.sh, tools/literature_search.py]
"""


def test_agent_file_sets_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT)
    result = resolve_paths(ResearchSettings(agent="baseline", agent_config=str(path), history=("last:7",)))
    assert (result.parser, result.history, result.strategy) == ("xml", ("last:7",), False)
    assert result.commands == ("bash", "open", "goto", "scroll_up", "scroll_down", "create", "edit", "submit")
    script = tmp_path / "script"
    script.write_text("ls\n%%\nsubmit\n")
    run = run_research(task="prisoners_dilemma", agent=f"script:{script}", agent_config=str(path), out=tmp_path / "run")
    shown = json.loads((run.folder / "trajectory.json").read_text())["messages"]
    assert shown[0]["content"].startswith("Work on it. 50 lines at a time.\n")
    assert shown[0]["content"].endswith("Say {% raw } as it is.")
    assert shown[1]["content"].startswith("Your task: ")
    assert "n/a GPUs" in shown[1]["content"]
    assert shown[3]["content"].endswith("/workspace $")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("XMLThoughtActionParser", "Nothing", "output_parser 'Nothing'"),
        ("Last2Observations", "Nothing", "history_processor 'Nothing'"),
        ("{description}", "{nothing}", "task_template: .*'nothing'"),
        ("{description}", "{", "task_template: "),
        ("task_template", "other", "task_template"),
    ],
)
def test_what_an_agent_file_has_wrong_is_said(tmp_path: Path, old: str, new: str, expected: str) -> None:
    (tmp_path / "agent.yaml").write_text(AGENT.replace(old, new))
    with pytest.raises(SettingsError, match=expected):
        agent_settings(tmp_path / "agent.yaml")


def trajectory(path: Path, status: str) -> str:
    steps = [{"response": f"DISCUSSION\nNext.\n```\necho {k}\n```", "action": f"echo {k}"} for k in range(2)]
    path.write_text(json.dumps({"trajectory": steps, "history": [], "info": {"exit_status": status}}))
    return f"replay:{path}"


@pytest.mark.parametrize(
    ("status", "reason"),
    [("submitted", "gave_up"), ("autosubmission (exit_context)", "context"), ("autosubmission (max_steps)", "steps")],
)
def test_mlgym_trajectory_is_replayed_to_its_end(tmp_path: Path, status: str, reason: str) -> None:
    agent = make_agent(trajectory(tmp_path / "a.traj", status), AgentContext(load_task("prisoners_dilemma")))
    conversation = Conversation((), {})
    for k in range(2):
        message = agent.act(conversation)
        assert not isinstance(message, Halt)
        assert f"echo {k}" in message.text
        conversation = Conversation((*conversation.messages, message), {})
    end = agent.act(conversation)
    assert isinstance(end, Halt)
    assert end.reason is TurnStopReason(reason)
    assert agent.environment()["parser"] == "last_block"


def test_an_action_in_a_block_that_is_not_closed_is_replayed(tmp_path: Path) -> None:
    step = {"response": "Look.\n```\nls\n```\nRather:\n```\npwd\n", "action": "pwd\n", "observation": "/workspace"}
    (tmp_path / "a.traj").write_text(json.dumps({"trajectory": [step], "info": {"exit_status": "submitted"}}))
    agent = make_agent(f"replay:{tmp_path / 'a.traj'}", AgentContext(load_task("prisoners_dilemma")))
    message = agent.act(Conversation((), {}))
    assert not isinstance(message, Halt)
    assert message.text == "```\npwd\n```"


def test_an_action_that_mlgym_did_not_run_is_left_out(tmp_path: Path) -> None:
    steps = [
        {"response": f"```\necho {k}\n```", "action": f"echo {k}", "observation": text}
        for k, text in enumerate(("0", "Exited (max_steps)"))
    ]
    info = {"exit_status": "autosubmission (max_steps)"}
    (tmp_path / "a.traj").write_text(json.dumps({"trajectory": steps, "info": info}))
    agent = make_agent(f"replay:{tmp_path / 'a.traj'}", AgentContext(load_task("prisoners_dilemma")))
    first = agent.act(Conversation((), {}))
    assert not isinstance(first, Halt)
    end = agent.act(Conversation((first,), {}))
    assert isinstance(end, Halt)
    assert end.reason is TurnStopReason.STEPS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trajectory": [{}], "info": {}}', '{"trajectory": [], "info": 5}'])
def test_a_file_that_is_no_trajectory_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.traj").write_text(text)
    with pytest.raises(RunError, match=r"a\.traj "):
        make_agent(f"replay:{tmp_path / 'a.traj'}", AgentContext(load_task("prisoners_dilemma")))


@pytest.mark.backends  # Makes two virtual environments: a quarter of a minute.
def test_requirements_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "none.txt").write_text("# nothing\n")
    home = install_requirements(tmp_path / "none.txt")
    assert (home / "bin/python").exists()
    (home / "mark").touch()
    assert (install_requirements(tmp_path / "none.txt") / "mark").exists()
    (tmp_path / "wrong.txt").write_text("./no-such-folder-here\n")
    with pytest.raises(TaskError, match=r"wrong\.txt"):
        install_requirements(tmp_path / "wrong.txt")


FILES = dict.fromkeys(("evaluate.py", "strategy.py", "target.py", "game/rules.py", "game/player.py", "notes.py"), b"")


@pytest.mark.parametrize(
    ("evaluator", "description", "result"),
    [
        ("from strategy import play", "Play well.", "strategy.py"),
        ("import strategy, target", "Edit `strategy.py`, please.", "strategy.py"),
        ("import strategy, target", "The player is in ./strategy.py.", "strategy.py"),
        ("from game import rules, player", "Edit player.py", "game/player.py"),
        ("import game.player", "", "game/player.py"),
        ("import importlib; importlib.import_module('strategy')", "", "strategy.py"),
        ("exec(open('strategy.py').read()); import target", "See strategy.py", "strategy.py"),
        ("import answer, target", "Write answer.py", "answer.py"),
    ],
)
def test_submission_is_imported_and_named(evaluator: str, description: str, result: str) -> None:
    assert find_submission("evaluate.py", {**FILES, "evaluate.py": evaluator.encode()}, description) == result


def test_indirect_import_counts_if_named() -> None:
    files = {**FILES, "evaluate.py": b"import game.rules", "game/rules.py": b"from player import move"}
    assert find_submission("evaluate.py", files, "Edit player.py.") == "game/player.py"


@pytest.mark.parametrize(
    ("evaluator", "description", "expected"),
    [
        ("import strategy, target", "", "strategy.py or target.py"),
        ("import strategy, target", "Edit strategy.py to beat target.py", "strategy.py or target.py"),
        ("import json", "Edit strategy.py", "evaluate.py imports none"),
        ("import (", "Edit strategy.py", "evaluate.py imports none"),
    ],
)
def test_where_it_cannot_be_told_the_option_is_named(evaluator: str, description: str, expected: str) -> None:
    with pytest.raises(TaskError, match=f"{expected}.*submission="):
        find_submission("evaluate.py", {**FILES, "evaluate.py": evaluator.encode()}, description)


def test_answer_files_are_found_by_name_or_content(tmp_path: Path) -> None:
    names = ("labels.csv", "test.csv", "rows.csv", "old_answers.csv")
    for name in names:
        (tmp_path / name).write_text(f"id,{name}\n")
    data, evaluator = (
        [tmp_path / name for name in names],
        b"open('/home/agent/workspace/data/labels.csv'); open('rows.csv')",
    )
    sample = tmp_path / "sample.csv"
    sample.write_text("id,nothing\n")
    assert find_answers(evaluator, data, sample) == [tmp_path / "labels.csv"]
    sample.write_text("id,rows.csv\r\n")
    assert find_answers(evaluator, data, sample) == [tmp_path / "labels.csv", tmp_path / "rows.csv", sample]
    assert find_answers(b"import (", data, sample) == []
