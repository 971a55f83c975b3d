"""The five-minute pages: their commands run as printed, and the models learn."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import processes
import pytest
from doc_blocks import ROOT, list_blocks

START = ROOT / "docs" / "start"


def list_steps(page: str) -> list[list[str]]:
    lines = "\n".join(list_blocks(START / page, "bash")).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("palaestra ")]


def test_the_game_of_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    new, *_ = list_steps("environment.md")
    assert processes.run_command(*new, cwd=tmp_path).returncode == 0
    written = (tmp_path / "my-game" / "my_game" / "__init__.py").read_text()
    [shown] = list_blocks(START / "environment.md", "python")
    assert shown in written


@pytest.mark.backends
@pytest.mark.parametrize(
    ("page", "run"), [("token.md", "token"), ("turn.md", "turn"), ("lesson.md", "lesson"), ("environment.md", "mine")]
)
def test_the_commands_of_a_page_lead_to_a_gain(page: str, run: str, tmp_path: Path) -> None:
    for step in list_steps(page):
        result = processes.run_command(*step, cwd=tmp_path)
        assert result.returncode == 0, (step, result.stderr[-2000:])
    summary = json.loads((tmp_path / run / "summary.json").read_text())
    assert summary["gain_low"] > 0
    assert list((tmp_path / run / "figures").glob("*.svg"))
