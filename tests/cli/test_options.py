"""The help of commands, and what a shell completes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

from palaestra.cli.options import _find_values

MAX_SECONDS = 3.0
"""CPU seconds until a command prints its first line."""


def list_options(*arguments: str) -> list[str]:
    """The options that a command's help lists, without those of help itself."""
    result = processes.run_command(*arguments, env={"COLUMNS": "120"})
    assert result.returncode == 0, result.stderr
    return [name for name in re.findall(r"^│ (--[\w-]+)", result.stdout, re.MULTILINE) if "--help" not in name]


@pytest.mark.parametrize("command", ["train", "teach", "evaluate", "research"])
def test_help_shows_twelve_options_and_three_examples(command: str) -> None:
    usual, every = list_options(command, "--help"), list_options(command, "--help-all")
    assert len(usual) == 12
    assert set(usual) < set(every)
    assert len(every) > 25
    assert {"--seed", "--out"} <= set(usual)
    printed = processes.run_command(command, "--help").stdout
    examples = re.findall(rf"palaestra {command} .+", printed.partition("Examples:")[2])
    assert len(examples) == 3
    for example in examples:
        options = re.findall(r"--[\w-]+", example)
        assert set(options) <= set(every) or " bench " in example


def test_help_without_algorithm_shows_no_hyperparameters_of_one() -> None:
    assert "--clip-range" not in list_options("train", "--help")
    assert "--clip-range" in list_options("train", "--help-all")
    assert {"--clip-range", "--env"} <= set(list_options("train", "--algorithm", "ppo", "--help"))


def test_groups_of_help_are_in_the_order_of_use() -> None:
    printed = processes.run_command("train", "--help-all").stdout
    groups = re.findall(r"─ (Task|Model|Agent|Sampling|Rollouts|Evaluation|Run|Cluster) ─", printed)
    assert groups == ["Task", "Model", "Agent", "Sampling", "Rollouts", "Evaluation", "Run", "Cluster"]


def test_values_are_read_from_an_unparsed_command_line() -> None:
    assert _find_values([], "--plugin") == []
    assert _find_values(["--plugin", "a.py", "--plugin=b.py", "--seed"], "--plugin") == ["a.py", "b.py"]


def complete(*words: str) -> tuple[list[str], bool]:
    """What bash completes after these words, and whether torch was imported for it."""
    code = (
        "import sys, json\nfrom palaestra.cli.main import main\ntry:\n    main()\n"
        "finally:\n    print(json.dumps('torch' in sys.modules), file=sys.__stderr__)"
    )
    line, place = " ".join(("palaestra", *words)), str(len(words))
    env = {**os.environ, "_PALAESTRA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": place}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    return result.stdout.split(), json.loads(result.stderr.splitlines()[-1])


@pytest.mark.backends
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("tea",), {"teach"}),
        (("train", "--env", "palaestra/G"), {"palaestra/Guess-v0", "palaestra/GEM-v0"}),
        (("train", "--env", "CartP"), {"CartPole-v0", "CartPole-v1"}),
        (("train", "--algorithm", ""), {"ppo", "grpo", "rloo", "reinforce", "rest_em", "cem", "distill"}),
        (("teach", "--teacher", "skill_"), {"skill_list", "skill_tree"}),
        (("evaluate", "--task", "math-s"), {"math-skills"}),
        (("evaluate", "--split", "v"), {"validation"}),
        (("evaluate", "--top"), {"--top-p"}),
        (("research", "--task", "grid"), {"grid_maze"}),
        (("models", "get", "smol"), {"smollm2"}),
        (("new", "tea"), {"teacher"}),
        (("list", "teach"), {"teachers"}),
    ],
)
def test_a_shell_completes_names_without_torch(words: tuple[str, ...], names: set[str]) -> None:
    completed, loaded = complete(*words)
    assert set(completed) == names
    assert not loaded


def test_completion_can_be_shown_and_installed() -> None:
    options = list_options("--help")
    assert {"--install-completion", "--show-completion"} <= set(options)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("train", "--help"), ("list", "tasks"), ("models",), ("research", "tasks"), ("doctor",), ("train",)],
)
def test_the_first_line_comes_soon(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "palaestra", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        process.kill()
    assert line
    assert sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") < MAX_SECONDS
