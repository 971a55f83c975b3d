"""The code blocks of CONTRIBUTING.md are complete: copied into a plugin, they run."""

import json
import re
import shlex
from pathlib import Path

import processes
import pytest

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## Add one of each") : PAGE.index("## Dependencies")]
BLOCKS = re.findall(r"^```(?:python|yaml)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"`palaestra ((?:evaluate|train|teach|research) --[^`]+)`", SECTION)
QUICK = {
    "evaluate": "",
    "train": "--num-envs 8 --evaluation 1",
    "teach": "--validation 4 --test 4",
    "research": "",
}
"""Further options that make a command fast."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin and the research task, written by the steps of the page alone."""
    folder = tmp_path_factory.mktemp("plugin")
    plugin = ""
    for block in BLOCKS:
        if named := re.match(r"# (\S+/\S+)\n", block):
            path = folder / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block, encoding="utf-8")
        else:
            plugin += block + "\n\n"
    (folder / "my_plugin.py").write_text(plugin, encoding="utf-8")
    return folder


def test_the_page_has_one_of_each() -> None:
    titles = re.findall(r"^### (.*):", SECTION, re.MULTILINE)
    assert titles == ["A task", "An engine", "An algorithm", "A teacher", "A token environment", "A research task"]
    assert len(BLOCKS) == 8
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_of_the_page_runs(command: str, folder: Path, tmp_path: Path) -> None:
    arguments = shlex.split(command)
    out = tmp_path / "run"
    result = processes.run_command(*arguments, *QUICK[arguments[0]].split(), "--out", out, cwd=folder)
    assert result.returncode == 0, result
    summary = json.loads((out / "summary.json").read_text())
    assert {"before", "after", "gain", "gain_low", "gain_high", "unit", "seconds"} <= summary.keys()
