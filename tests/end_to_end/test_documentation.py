"""The code of the documentation runs as printed, and the files that it names exist."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chat_server
import processes
import pytest
from doc_blocks import PAGES, list_blocks, name_page
from tests.helpers.check_table import DISEASE_PAGE, PAGE, write_tables
from tests.helpers.gallery import PAGE as GALLERY
from tests.helpers.gallery import write_page

from palaestra.envs import DESCRIPTIONS
from palaestra.runs.run import Run

ROOT = Path(__file__).parents[2]
DATA = (ROOT / "docs" / "data.md").read_text()


def code(page: str, containing: str) -> str:
    """The Python block of a page that contains a text."""
    return next(block for block in list_blocks(ROOT / page, "python") if containing in block)


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


def run_block(block: str, changes: Mapping[str, str]) -> dict[str, Any]:
    """Run code of a page with other models and data, and return its variables."""
    for old, new in changes.items():
        assert old in block
        block = block.replace(old, new)
    values: dict[str, Any] = {}
    exec(block, values)
    return values


def test_the_quick_start_of_trl_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify")
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}], "solution": f"${n + 1}$"} for n in range(40)]
    Path("deepmath.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    small = 'model="nano", iterations=1, episodes=8, num_envs=8, max_tokens=4, evaluation=4, threads=1'
    changes = {'model="Qwen/Qwen2-0.5B-Instruct"': small, "hf:trl-lib/DeepMath-103K": "deepmath.jsonl"}
    result = run_block(code("docs/data.md", "hf:trl-lib/DeepMath-103K"), changes)["result"]
    assert result.summary["iterations"] == 1
    assert result.summary["episodes"] == 8


@pytest.mark.parametrize(("block", "rows"), [("Just reply with Hello World", 1), ("judge:", 3)])
def test_the_tutorial_of_inspect_runs_as_printed(
    block: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    guide = [{"input": f"How do I store password {n}?", "target": "hashed"} for n in range(rows)]
    Path("security_guide.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in guide))
    ours = next(b for b in re.findall(r"```python\n(from palaestra import evaluate.*?)```", DATA, re.S) if block in b)

    def answer(call: chat_server.Call, count: int) -> chat_server.Reply:
        return chat_server.Reply("VERDICT: right" if "Response between" in call.asked else "Hello World")

    with chat_server.Server(answer) as server:
        run_block(ours, {"openai:gpt-4o-mini": server.model})
        [folder] = Path("runs").iterdir()
    with Run.open(folder, read_only=True) as run:
        assert run.summary is not None
        assert (run.summary["after"], run.summary["problems"]) == (100.0, rows)


@pytest.mark.parametrize("page", [PAGE, DISEASE_PAGE], ids=["checks", "diseases"])
def test_the_tables_are_those_of_the_registry(page: Path) -> None:
    assert write_tables(page) == page.read_text(), "run: python -m tests.helpers.check_table"


def test_the_first_of_the_checks_finds_what_is_printed(tmp_path: Path) -> None:
    table, output = re.findall(r"```\n((?:question,|warn |fail ).*?)```", PAGE.read_text(), re.S)
    (tmp_path / "capitals.csv").write_text(table)
    (tmp_path / "my_scorer.py").write_text(code("docs/check.md", "def matches"))
    arguments = ("--task", "capitals.csv", "--option", "scorer=my_scorer.py:matches")
    result = processes.run_command("check", *arguments, cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    faults = re.compile(r"^(?:fail|warn) [\w.]+(?=: )", re.MULTILINE)
    assert faults.findall(result.stdout) == faults.findall(output) != []


def test_the_gallery_has_every_environment() -> None:
    sections = re.findall(r"^### (\S+)", GALLERY.read_text(), re.MULTILINE)
    assert {name for name in DESCRIPTIONS if name.startswith("palaestra/")} <= set(sections)


@pytest.mark.backends
def test_the_gallery_is_that_of_the_registry() -> None:
    assert write_page() == GALLERY.read_text(), "run: python -m tests.helpers.gallery"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?<![\w/.-])((?:tests|benchmarks|examples|docs|src)/[\w/-]+\.(?:py|md|png|toml))", text)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    missing = [name for name in named if not (ROOT / name).exists()]
    # The pages of the reference exist in the site only, whose build checks the links to them.
    missing += [link for link in links if not link.startswith("reference/") and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"
    for arguments in re.findall(r"`(?:\w+=\w+ )?pytest ([^`]+)`", text):
        for path in re.findall(r"tests/[\w/.]+", arguments):
            assert (ROOT / path).exists(), path
