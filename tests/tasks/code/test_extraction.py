"""Extracting the program from a response."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.tasks.code.extraction import extract_code, longest_start

ADD = "def add(a, b):\n    return a + b\n"
HELPED = "def helper(x):\n    return x + 1\n"
USES = "import math\n\ndef add(a, b):\n    return helper(a) + b - math.floor(1.5)\n"


def run(code: str, call: str) -> object:
    scope: dict[str, object] = {}
    exec(code, scope)
    return eval(call, scope)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (f"```python\n{ADD}```", "fenced"),
        (f"Sure! Here it is:\n\n```py\n{ADD}```\nIt adds `a` and `b`.", "fenced"),
        (f"```\n{ADD}```", "fenced"),
        (f"~~~python\n{ADD}~~~", "fenced"),
        (f"````python\n{ADD}````", "fenced"),
        (f"1. Like so:\n   ```python\n   {ADD.replace(chr(10), chr(10) + '   ').rstrip()}\n   ```", "fenced"),
        (f"```python title='x.py'\n{ADD}```", "fenced"),
        (
            f"First attempt:\n```python\ndef add(a, b):\n    return a - b\n```\nNo, wrong:\n```python\n{ADD}```",
            "fenced",
        ),
        (f"```python\n{ADD}```\nExample:\n```python\nprint(add(1, 2))\n```\n```\n3\n```", "fenced"),
        (f"```bash\npip install x\n```\n```python\n{ADD}```", "fenced"),
        (f"```python\n{ADD}", "fenced"),  # Never closed: the model was cut.
        (f"```python\n{ADD}\ndef other(", "fenced"),
        (ADD, "bare"),
        (f"The function is:\n\n{ADD}\nI hope that helps, it's simple.", "bare"),
    ],
)
def test_function_among_prose(text: str, how: str) -> None:
    program = extract_code(text, "add")
    assert program.how == how
    assert run(program.code, "add(2, 3)") == 5


def test_used_names_come_from_earlier_blocks() -> None:
    text = f"A helper:\n```python\n{HELPED}```\nand an unrelated one:\n```python\nraise SystemExit\n```\nthen\n```python\n{USES}```"
    code = extract_code(text, "add").code
    assert run(code, "add(1, 2)") == 3
    assert "SystemExit" not in code


def test_class() -> None:
    text = "```python\nclass Solution:\n    def twice(self, x):\n        return 2 * x\n```"
    assert run(extract_code(text, "Solution").code, "Solution().twice(4)") == 8


def test_last_block_that_reads_and_prints() -> None:
    program = "n = int(input())\nprint(n * 2)\n"
    text = (
        f"Idea:\n```python\nx = 1\n```\nProgram:\n```python\n{program}```\nInput and output:\n```\n4\n```\n```\n8\n```"
    )
    assert extract_code(text).code == program
    assert extract_code(program).how == "bare"


def test_continuation_of_a_given_function() -> None:
    begun = 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """Add them."""\n'
    for text in (
        "    return sum(numbers)\n",
        "    return sum(numbers)\n\nprint(total([1]))\nSo that",
        "return sum(numbers)",
    ):
        program = extract_code(text, "total", begun)
        assert program.how == "continued"
        assert run(program.code, "total([1, 2])") == 3
    again = extract_code(
        "```python\ndef total(numbers: List[int]) -> int:\n    return sum(numbers)\n```", "total", begun
    )
    assert again.how == "fenced"
    assert run(again.code, "total([1, 2])") == 3  # Its import stands before the function, in what was begun.


@pytest.mark.parametrize(
    "text", ["", "I cannot do that.", "```python\nthis is no code\n```", "```python\ndef sub(a): pass\n```"]
)
def test_response_without_a_program(text: str) -> None:
    assert extract_code(text, "add") == extract_code("", "add")


@pytest.mark.parametrize(
    "text",
    [
        "import a\n" * 200 + "(\n" + "x,\n" * 200, "import a\n" * 3_000 + "(\n" + "x,\n" * 3_000, "@a\n" * 3_000, "def add(a): return 1\n" * 3_000 + "(",
        "```python\nx = 1\n```\n" * 3_000, "```" + " " * 50_000 + "`", "`" * 100_000 + "x`", "from here on we say\n" * 3_000, "```python\n" + "@a\n" * 3_000,
        "if a:\n" * 3_000, "try:\n a\n" * 3_000, "x = 1 + \\\n" * 3_000, "import a\nfoo bar\n" * 3_000, "(" * 100_000, "-" * 100_000 + "1", "1" + "+1" * 50_000,
        "x " * 5_000_000, "\0" * 100_000, "\ud800" * 1000, "x = " + "9" * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("begun", ["", "def add(a):\n"])
def test_extraction_is_bounded_in_time(text: str, begun: str) -> None:
    start = time.process_time()
    extract_code(text, "add", begun)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("def add(a):\n    return (a\n\nAnd so on.", ""),
        ("def add(a):\n    return a\nx = [1,\n  2\nthen\n", "def add(a):\n    return a\n"),
        ('def add(a):\n    return a\nx = """\nno end\n', "def add(a):\n    return a\n"),
        ("def add(a):\n    return a\nif a:\n  for b in c:\n", "def add(a):\n    return a\n"),
        ("def add(a):\n    return a\n@x\n@y\n", "def add(a):\n    return a\n"),
        ("import os\ndef add(a):\n    return a\nreturn 5\n", "import os\ndef add(a):\n    return a\n"),
    ],
)
def test_program_ends_before_an_invalid_line(text: str, kept: str) -> None:
    assert longest_start(text) == kept


prose = st.text(st.characters(blacklist_characters="`~", blacklist_categories=["Cs", "Cc"]), max_size=60)


@given(prose, prose, prose)
def test_prose_around_fenced_code_is_ignored(before: str, between: str, after: str) -> None:
    text = f"{before}\n```python\n{HELPED}```\n{between}\n```python\n{USES}```\n{after}"
    assert run(extract_code(text, "add").code, "add(1, 2)") == 3


@given(st.text(max_size=300))
def test_result_is_valid_python_or_empty(text: str) -> None:
    program = extract_code(text, "add")
    ast.parse(program.code)
    assert (program.how == "none") == (program.code == "")
