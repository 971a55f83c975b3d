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
from registries import isolate_registries

from palaestra.core.errors import SettingsError
from palaestra.core.records import FailureCause, Message
from palaestra.core.registry import load_plugins
from palaestra.recipes.research.recipe import run_research
from palaestra.research.agents import AGENTS
from palaestra.research.agents.history import HISTORIES
from palaestra.research.judge.evaluation import SubmissionJudge, sandbox_for
from palaestra.research.tasks.task import RESEARCH_TASKS, InvalidSubmission, load_task
from palaestra.research.workspace.commands import COMMANDS, Command, CommandError, load_commands
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.parsing import PARSERS
from palaestra.sandbox.base import SANDBOXES

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(autouse=True)
def _own_registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone behind it."""
    isolate_registries(monkeypatch, AGENTS, COMMANDS, PARSERS)
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / "cache"))


def page_task(folder: Path) -> Path:
    """The task of the page, each file as it stands below the heading of its name."""
    page = (DOCS / "write_a_research_task.md").read_text()
    files = re.findall(r"^## (\S+\.(?:yaml|py))\n```\w+\n(.*?)^```$", page, re.M | re.S)
    assert {name for name, _ in files} == {
        "task.yaml",
        "data.py",
        "evaluator.py",
        "starter/baseline.py",
        "reference/solution.py",
    }
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
    runs = {name: run_research(task=str(folder), agent=name, out=tmp_path / name) for name in ("baseline", "reference")}
    scores = {name: run.summary["best_submission"] for name, run in runs.items()}
    assert scores["reference"] < 0.2 < scores["baseline"] == runs["baseline"].summary["baseline"]
    assert all(run.summary["stop_reason"] == "submitted" for run in runs.values())
    judge = SubmissionJudge(task, sandbox_for(task))
    for text in (b"inf", b"nan", b"about 3"):
        output = judge.judge({"answer.txt": text}, "validation")
        assert isinstance(output, InvalidSubmission)
        assert "one finite number" in output.reason


def test_examples_of_the_page_run_as_copied(tmp_path: Path) -> None:
    plugin = tmp_path / "my_research.py"
    plugin.write_text("\n\n".join(blocks("extend_research.md", "python")))
    load_plugins([str(plugin)])
    folder = page_task(tmp_path / "guess_the_mean")
    run = run_research(task=str(folder), agent="averager", parser="dollar", out=tmp_path / "run")
    s = run.summary
    assert (s["stop_reason"], s["steps"], s["parser"]) == ("submitted", 3, "dollar")
    assert s["best_submission"] < 0.2 < s["baseline"]
    output = [message["content"] for message in json.loads((run.folder / "trajectory.json").read_text())["messages"]]
    assert "timed PROGRAM" in output[0]
    assert "$ ls -la" in output[0]
    assert re.match(r"\(took \d\.\d\d s\)", output[3])


def test_entry_points_of_the_page_are_those_of_the_registries() -> None:
    page = (DOCS / "extend_research.md").read_text()
    groups = {item.group for item in (AGENTS, COMMANDS, PARSERS, HISTORIES, RESEARCH_TASKS, SANDBOXES)}
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
    with pytest.raises(SettingsError, match=r"agent 'mine' .*\(mine\.py, line 7\)$"):
        load_plugins([str(other)])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("none.py", None, "FileNotFoundError: .*"),
        ("broken.py", "1\n1 / 0\n", r"ZeroDivisionError: .*\(broken\.py, line 2\)"),
        ("leaving.py", "raise SystemExit(3)\n", r"SystemExit: 3 \(leaving\.py, line 1\)"),
        ("no_such_module", None, r"'no_such_module'; .*\.py"),
    ],
)  # fmt: skip
def test_a_plugin_that_cannot_be_imported_is_one_clear_line(
    tmp_path: Path, name: str, text: str | None, expected: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=f"^setting 'plugins': .*{expected}$") as caught:
        load_plugins([str(tmp_path / name) if name.endswith(".py") else name])
    assert "\n" not in str(caught.value)


# Commands that break


def divide_by_zero(session: Any, arguments: Any) -> str:
    return str(1 / 0)


def return_nothing(session: Any, arguments: Any) -> Any:
    return None


class Far:
    """A command need not be a function."""

    def __call__(self, session: Any, arguments: Any) -> str:
        raise KeyError("far")


def raise_usage_error(session: Any, arguments: Any) -> str:
    raise CommandError("boom: not like this")


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(
    ("perform", "expected"),
    [
        (divide_by_zero, r".*'boom' .*ZeroDivisionError: .*\(test_extending\.py, line \d+\)"),
        (return_nothing, ".*'boom' .*CommandResult; got NoneType"),
        (Far(), r".*'boom' .*KeyError: 'far' \(test_extending\.py, line \d+\)"),
        (raise_usage_error, ""),
    ],
)
def test_broken_command_fails_the_episode_but_misuse_does_not(
    tmp_path: Path, perform: Callable[[Any, Any], str], expected: str, tools: bool
) -> None:
    from palaestra.core.records import Message, ToolCall
    from palaestra.research.workspace.env import ResearchEnv

    COMMANDS.register("boom", Command("boom", perform, "Boom."))
    env = ResearchEnv(number_task(tmp_path), tools=tools)
    env.reset(seed=0)
    action = Message("assistant", "", (ToolCall("boom", "{}", "a"),)) if tools else "```\nboom\n```"
    observation, reward, terminated, truncated, info = env.step(action)
    env.close()
    if expected:
        assert (reward, terminated, truncated, info["stop_reason"], info["score"]) == (0.0, False, True, "failed", None)
        assert re.fullmatch(expected, info["failure"].message)
    else:
        assert "failure" not in info
        assert observation.state["ok"] is False
        assert "boom: not like this" in observation.messages[-1].text


def test_a_run_with_a_command_that_breaks_has_ended_and_says_so(tmp_path: Path) -> None:
    COMMANDS.register("boom", Command("boom", divide_by_zero, "Boom."))
    (tmp_path / "script.txt").write_text("boom\n%%\nsubmit")
    folder = number_task(tmp_path)
    s = run_research(task=str(folder), agent=f"script:{tmp_path / 'script.txt'}", out=tmp_path / "run").summary
    assert (s["stop_reason"], s["best_submission"], s["steps"]) == ("failed", None, 1)
    assert "ZeroDivisionError" in s["failure"]["message"]


@pytest.mark.parametrize("target", [divide_by_zero, Command("bang", divide_by_zero, "Bang.")])
def test_registered_command_must_have_its_name(target: Any) -> None:
    COMMANDS.register("boom", target)
    with pytest.raises(SettingsError, match=r"'boom' .*Command"):
        load_commands()


def test_plugin_files_are_found_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "my_research.py").write_text("\n\n".join(blocks("extend_research.md", "python")))
    page_task(tmp_path / "guess_the_mean")
    ((line,),) = (
        [item for item in text.splitlines() if "--plugin" in item] for text in blocks("extend_research.md", "")
    )
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


class BrokenParser:
    """Calls a function that breaks the rules of a parser."""

    instructions = ""

    def __init__(self, parse: Callable[[Message], Any]) -> None:
        self.parse = parse

    def __call__(self, message: Message) -> Any:
        return self.parse(message)


@pytest.mark.parametrize(
    ("parse", "expected"), [(lambda message: 1 / 0, "ZeroDivisionError"), (lambda message: None, "NoneType")]
)
def test_broken_user_parser_is_a_failure(number: Path, parse: Callable[[Message], Any], expected: str) -> None:
    PARSERS.register("broken", lambda: BrokenParser(parse))
    env = ResearchEnv(number, parser="broken")
    try:
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step("anything")
        assert (reward, terminated or truncated, info["failure"].cause) == (0.0, True, FailureCause.ENVIRONMENT)
        assert expected in info["failure"].message
    finally:
        env.close()
