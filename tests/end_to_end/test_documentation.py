"""The code of the documentation runs as printed, and the files that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]  # fmt: skip


def code(page: str, containing: str) -> str:
    """The Python block of a page that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    return next(block for block in blocks if containing in block)


def test_the_lesson_of_the_readme_runs_as_printed(tmp_path: Path) -> None:
    (tmp_path / "lesson.py").write_text(code("README.md", "env.step(lesson)") + "\nprint(terminated, reward)\n")
    result = processes.run_script(tmp_path / "lesson.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(("True ", "False "))


def test_the_colors_of_the_token_page_run_as_printed(tmp_path: Path) -> None:
    (tmp_path / "colours.py").write_text(code("docs/token.md", "class Colours"))
    small = ("--iterations", "1", "--num-envs", "8", "--episodes", "8", "--max-tokens", "4", "--evaluation", "0")
    for env in (("--env", "colours.py:Colours"), ("--plugin", "colours.py", "--env", "Colours-v0")):
        result = processes.run_command("train", *env, *small, "--threads", "1", cwd=tmp_path)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?<![\w/.-])((?:tests|benchmarks|examples|docs|src)/[\w/-]+\.(?:py|md|png|toml))", text)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    for arguments in re.findall(r"`(?:\w+=\w+ )?pytest ([^`]+)`", text):
        for path in re.findall(r"tests/[\w/.]+", arguments):
            assert (ROOT / path).exists(), path
