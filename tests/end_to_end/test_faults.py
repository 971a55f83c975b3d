"""Every fault in `docs/faults.md` has a test, and every test that the page names exists."""

import ast
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", PAGE)


def list_tests(path: Path) -> set[str]:
    """The tests of a file that run: those that a mark skips in every case are none."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
            if not marks & {"pytest.mark.skip", "pytest.mark.xfail", "pytest.mark.backends"}:
                names.add(node.name)
    return names


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(NAMED) > 40
    known = {file: list_tests(ROOT / file) if (ROOT / file).exists() else set() for file, _ in NAMED}
    assert not [f"{file}::{name}" for file, name in NAMED if name not in known[file]]


def test_every_fault_of_the_page_has_a_test() -> None:
    first, *sections = re.split(r"^## (.*)$", PAGE, flags=re.M)
    assert "|" not in first
    numbers: list[int] = []
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("|")]
        assert [cell.strip() for cell in rows[0]] == ["", "fault", "test"], name
        assert len(rows) > 10, name
        numbers += [int(number) for number, _, _ in rows if number.strip().isdigit()]
        for _, fault, tests in rows[2:]:
            assert "::test_" in tests, fault
            assert re.sub(r"`tests/\S+\.py::test_\w+`", "", tests).strip(" ,") == "", tests
    assert sections[::2] == ["DataEnvGym", "MLGym", "TorchRL's `make_mlgym`"]
    assert numbers == list(range(1, 20))


def test_one_command_runs_all_that_a_change_must_pass() -> None:
    command = ROOT / ".ci" / "run"
    assert os.access(command, os.X_OK)
    assert {"make check", "make test"} <= set(command.read_text().splitlines())
    targets = (ROOT / "Makefile").read_text()
    for target, tool in (("check: lint types", ""), ("lint:", "ruff check"), ("types:", "mypy"), ("test:", "pytest")):
        assert re.search(rf"^{re.escape(target)}.*(\n\t.*)*{re.escape(tool)}", targets, re.M), target
