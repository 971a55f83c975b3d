"""Custom tasks, agents, commands and parsers: the code of the docs runs as printed, and errors are reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from number_task import number_task

from palaestra.core.errors import SettingsError
from palaestra.core.plugins import load_plugins
from palaestra.core.records import FailureCause, Message
from palaestra.recipes.research.recipe import research
from palaestra.research.agents import AGENTS
from palaestra.research.agents.history import HISTORIES
from palaestra.research.judge.evaluation import SubmissionJudge, sandbox_for
from palaestra.research.tasks.records import InvalidSubmission
from palaestra.research.tasks.task import RESEARCH_TASKS, load_task
from palaestra.research.workspace.commands import COMMANDS, Command, CommandError, load_commands
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.parsing import PARSERS
from palaestra.sandbox.base import SANDBOXES

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(autouse=True)
def _own_registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone behind it."""
    for registry in (AGENTS, COMMANDS, PARSERS):
        registry.names()
        for entries in ("_entries", "_descriptions"):
            monkeypatch.setattr(registry, entries, dict(getattr(registry, entries)))
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


def page_task(folder: Path) -> Path:
    """The task of the page, each file as it stands below the heading of its name."""
    page = (DOCS / "write_a_research_task.md").read_text()
    files = re.findall(r"^## (\S+\.(?:yaml|py))\n```\w+\n(.*?)^```$", page, re.M | re.S)
    assert {name for name, _ in files} == {
        "task.yaml", "data.py", "evaluator.py", "starter/baseline.py", "reference/solution.py",
    }  # fmt: skip
    for name, text in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def blocks(page: str, language: str) -> list[str]:
    """The code of a page, in one language."""
    return [text for named, text in BLOCK.findall((DOCS / page).read_text()) if named == language]


# The pages


def test_the_task_of_the_page_runs_as_it_is_copied(tmp_path: Path) -> None:
    folder = page_task(tmp_path / "guess_the_mean")
    task = load_task(folder)
    assert task.name == folder.name
    runs = {name: research(task=str(folder), agent=name, out=tmp_path / name) for name in ("baseline", "reference")}
    scores = {name: run.summary["best_submission"] for name, run in runs.items()}
    assert scores["reference"] < 0.2 < scores["baseline"] == runs["baseline"].summary["baseline"]
    assert all(run.summary["stop_reason"] == "submitted" for run in runs.values())
    judge = SubmissionJudge(task, sandbox_for(task))
    for text in (b"inf", b"nan", b"about 3"):
        said = judge.judge({"answer.txt": text}, "validation")
        assert isinstance(said, InvalidSubmission)
        assert "one finite number" in said.reason


def test_the_agent_the_command_and_the_parser_of_the_page_run_as_they_are_copied(tmp_path: Path) -> None:
    plugin = tmp_path / "my_research.py"
    plugin.write_text("\n\n".join(blocks("extend_research.md", "python")))
    load_plugins([str(plugin)])
    folder = page_task(tmp_path / "guess_the_mean")
    run = research(task=str(folder), agent="averager", parser="dollar", out=tmp_path / "run")
    s = run.summary
    assert (s["stop_reason"], s["steps"], s["parser"]) == ("submitted", 3, "dollar")
    assert s["best_submission"] < 0.2 < s["baseline"]
    said = [message["content"] for message in json.loads((run.folder / "trajectory.json").read_text())["messages"]]
    assert "timed PROGRAM" in said[0]
    assert "$ ls -la" in said[0]
    assert re.match(r"\(took \d\.\d\d s\)", said[3])


def test_the_entry_points_of_the_page_are_those_of_the_registries() -> None:
    page = (DOCS / "extend_research.md").read_text()
    groups = {one.group for one in (AGENTS, COMMANDS, PARSERS, HISTORIES, RESEARCH_TASKS, SANDBOXES)}
    assert set(re.findall(r"^\| `(palaestra\.\w+)` \|", page, re.M)) == groups
    (text,) = blocks("extend_research.md", "toml")
    shown = tomllib.loads(text)["project"]["entry-points"]
    assert set(shown) <= groups
    code = "\n".join(blocks("extend_research.md", "python"))
    for targets in shown.values():
        for target in targets.values():
            assert f"class {target.removeprefix('my_research:')}" in code


# Plugins


def test_a_plugin_is_a_file_or_a_module_and_is_imported_once(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from palaestra.research.agents import AGENTS, Agent\n\n\n"
        "class Mine(Agent): ...\n\n\nAGENTS.register('mine', Mine)\n"
    )
    load_plugins([str(plugin), "json.tool"])
    load_plugins([str(plugin)])  # A class that is made anew would be another one of that name.
    assert "mine" in AGENTS.names()
    assert "json.tool" in sys.modules
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(plugin.read_text())
    with pytest.raises(SettingsError, match=r"agent 'mine' is already registered .*\(mine\.py, line 7\)$"):
        load_plugins([str(other)])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.py", None, "cannot be imported: FileNotFoundError: the file does not exist"),
        ("broken.py", "1\n1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("leaving.py", "raise SystemExit(3)\n", "cannot be imported: SystemExit: 3 (leaving.py, line 1)"),
        ("no_such_module", None, "No module named 'no_such_module'; for a file, give its path, for example my_task.py"),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_imported_is_one_clear_line(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_plugins([str(tmp_path / name) if name.endswith(".py") else name])
    assert str(caught.value).startswith("setting 'plugins': ")
    assert str(caught.value).endswith(said)
    assert "\n" not in str(caught.value)


# Commands that break


def divides(session: Any, arguments: Any) -> str:
    return str(1 / 0)


def gives_nothing(session: Any, arguments: Any) -> Any:
    return None


class Far:
    """A command need not be a function."""

    def __call__(self, session: Any, arguments: Any) -> str:
        raise KeyError("far")


def misused(session: Any, arguments: Any) -> str:
    raise CommandError("boom: not like this")


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(
    ("perform", "said"),
    [
        (divides, r"the command 'boom' broke: ZeroDivisionError: division by zero \(test_extending\.py, line \d+\)"),
        (gives_nothing, "the command 'boom' broke: it must return a text or a CommandResult; got NoneType"),
        (Far(), r"the command 'boom' broke: KeyError: 'far' \(test_extending\.py, line \d+\)"),
        (misused, ""),
    ],
)
def test_a_command_that_breaks_ends_the_episode_as_a_failure_and_one_that_is_misused_does_not(
    tmp_path: Path, perform: Callable[[Any, Any], str], said: str, tools: bool
) -> None:
    from palaestra.core.records import Message, ToolCall
    from palaestra.research.workspace.env import ResearchEnv

    COMMANDS.register("boom", Command("boom", perform, "Boom."))
    env = ResearchEnv(number_task(tmp_path), tools=tools)
    env.reset(seed=0)
    action = Message("assistant", "", (ToolCall("boom", "{}", "a"),)) if tools else "```\nboom\n```"
    observation, reward, terminated, truncated, info = env.step(action)
    env.close()
    if said:
        assert (reward, terminated, truncated, info["stop_reason"], info["score"]) == (0.0, False, True, "failed", None)
        assert re.fullmatch(said, info["failure"].message)
    else:
        assert "failure" not in info
        assert observation.state["ok"] is False
        assert "boom: not like this" in observation.messages[-1].text


def test_a_run_with_a_command_that_breaks_has_ended_and_says_so(tmp_path: Path) -> None:
    COMMANDS.register("boom", Command("boom", divides, "Boom."))
    (tmp_path / "script.txt").write_text("boom\n%%\nsubmit")
    folder = number_task(tmp_path)
    s = research(task=str(folder), agent=f"script:{tmp_path / 'script.txt'}", out=tmp_path / "run").summary
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("failed", None, 1)
    assert "ZeroDivisionError" in s["failure"]["message"]


@pytest.mark.parametrize("target", [divides, Command("bang", divides, "Bang.")])
def test_what_is_registered_as_a_command_must_be_one_of_that_name(target: Any) -> None:
    COMMANDS.register("boom", target)
    with pytest.raises(SettingsError, match="'boom' must be a Command of that name; got"):
        load_commands()


def test_the_command_line_and_resume_find_a_loose_file_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "my_research.py").write_text("\n\n".join(blocks("extend_research.md", "python")))
    page_task(tmp_path / "guess_the_mean")
    ((line,),) = ([one for one in text.splitlines() if "--plugin" in one] for text in blocks("extend_research.md", ""))
    assert line.startswith("palaestra ")

    def palaestra(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "palaestra.cli.main", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)

    done = palaestra(tmp_path, *line.split()[1:], "--out", "run")
    assert done.returncode == 0, done.stderr
    summary = tmp_path / "run" / "summary.json"
    first = json.loads(summary.read_text())
    assert (first["agent"], first["stop_reason"]) == ("averager", "submitted")
    summary.unlink()
    again = palaestra(Path("/"), "resume", str(tmp_path / "run"))
    assert again.returncode == 0, again.stderr
    assert json.loads(summary.read_text())["best_submission"] == first["best_submission"]


@pytest.mark.parametrize(
    ("broken", "said"), [(lambda message: 1 / 0, "ZeroDivisionError"), (lambda message: None, "NoneType")]
)
def test_a_parser_of_ones_own_that_breaks_is_a_failure_and_no_traceback(
    number: Path, broken: Callable[[Message], Any], said: str
) -> None:
    env = ResearchEnv(number)
    try:
        env.reset(seed=0)
        env._parser = broken  # type: ignore[assignment]
        _, reward, terminated, truncated, info = env.step("anything")
        assert (reward, terminated or truncated, info["failure"].cause) == (0.0, True, FailureCause.ENVIRONMENT)
        assert said in info["failure"].message
    finally:
        env.close()
