"""QuixBugs with its own tests: linked lists, graphs of nodes, generators, and plain functions.

`PALAESTRA_QUIXBUGS` names a checkout of https://github.com/jkoppel/QuixBugs; without it this test is skipped. The verdicts on
all correct and broken programs are compared with the results of its own pytest files.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.tasks.code.formats import Functions
from palaestra.tasks.code.judge import ProgramJudge, ProgramVerdict

CHECKOUT = Path(os.environ.get("PALAESTRA_QUIXBUGS", ""))
PROGRAMS = sorted(path.stem.removeprefix("test_") for path in CHECKOUT.glob("python_testcases/test_*.py"))
SECONDS = {"correct_python_programs": 100.0, "python_programs": 3.0}
"""One that is right may take its time (`levenshtein`); one that is broken may never end."""
needs_checkout = pytest.mark.skipif(
    not os.environ.get("PALAESTRA_QUIXBUGS"), reason="PALAESTRA_QUIXBUGS names no checkout of QuixBugs"
)

# What the tests use of pytest.
SHIM = """
class Skipped(Exception):
    pass

class Approximately:
    def __init__(self, value, abs):
        self.value, self.abs = value, abs
    def __eq__(self, other):
        return -self.abs <= other - self.value <= self.abs

class pytest:
    run_slow = False
    def skip(reason):
        raise Skipped(reason)
    def approx(value, abs):
        return Approximately(value, abs)
    class mark:
        def parametrize(names, rows):
            def mark(function):
                def run():
                    for row in rows:
                        try:
                            function(*row)
                        except Skipped:
                            pass
                return run
            return mark
"""


def read_tests(name: str) -> Functions:
    """A pytest file of QuixBugs, with its test data, as statements that call its test functions one after another."""
    tree = ast.parse((CHECKOUT / f"python_testcases/test_{name}.py").read_text())
    rows = CHECKOUT / f"json_testcases/{name}.json"
    data = f"[{','.join(rows.read_text().splitlines())}]" if rows.is_file() else "[]"
    literals = {"true": True, "false": False, "null": None}
    given = f"{SHIM}\n{(CHECKOUT / 'python_testcases/node.py').read_text()}\n"
    given += "".join(f"{word} = {value}\n" for word, value in literals.items())
    given += f"def load_json_testcases(name):\n    return {data}\n"
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.If)]
    calls = [f"{node.name}()" for node in body if isinstance(node, ast.FunctionDef)]
    # The data is the tests' own: asking the program for its name would be a call too many.
    code = "\n".join(ast.unparse(node) for node in body).replace(f"{name}.__name__", repr(name))
    return Functions(f"{code}\n" + "\n".join(calls), name, given=given)


def passes_upstream(name: str, folder: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"python_testcases/test_{name}.py"]
    if folder.startswith("correct"):
        command.append("--correct")
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, timeout=2 * SECONDS[folder], check=False)
    except subprocess.TimeoutExpired:
        return False
    assert done.returncode in (0, 1, 2), done.stdout
    return done.returncode == 0


@needs_checkout
@pytest.mark.parametrize("folder", ["correct_python_programs", "python_programs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_verdicts_agree_with_quixbugs(name: str, folder: str) -> None:
    judge = ProgramJudge(seconds=SECONDS[folder])
    verdict = judge.judge(read_tests(name), (CHECKOUT / folder / f"{name}.py").read_text())
    assert isinstance(verdict, ProgramVerdict), verdict
    assert verdict.passed == passes_upstream(name, folder), (verdict.outcome, verdict.detail)
    assert verdict.passed == folder.startswith("correct")
