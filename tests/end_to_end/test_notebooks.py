"""The tutorials: valid, executed, without errors and paths of a machine; executed again with `make test-backends`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from notebooks import TUTORIALS, execute

NAMES = {
    "agent", "grpo", "learned_teacher", "own_data", "own_environment", "research_task", "teacher", "turns_and_tools"
}  # fmt: skip
MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr|opt)/|site-packages|[A-Z]:\\\\")


def read_code(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert all(cell.get("id") for cell in notebook["cells"])
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_every_tutorial_is_here() -> None:
    assert {path.stem for path in TUTORIALS} == NAMES


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_executed_without_errors(path: Path) -> None:
    code = read_code(path)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), (
        "run: python -m tests.helpers.notebooks"
    )
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(output["output_type"] in ("stream", "display_data", "execute_result") for output in outputs)
    assert not MACHINE.findall("".join(json.dumps(output) for output in outputs))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_picture_or_a_table(path: Path) -> None:
    data = [output.get("data", {}) for cell in read_code(path) for output in cell["outputs"]]
    assert any(data) or path.stem == "research_task"


@pytest.mark.backends
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    execute(path, tmp_path)
