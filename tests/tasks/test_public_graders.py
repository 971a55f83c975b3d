r"""Our verdicts on the test suite of Math-Verify, read from a checkout that is not part of the project.

git clone https://github.com/huggingface/Math-Verify
PALAESTRA_MATH_VERIFY=Math-Verify pytest tests/tasks/test_public_graders.py
"""

import ast
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.tasks.math.equivalence.compare import AnswerVerdict, compare_answers
from palaestra.tasks.math.extraction import extract_worked

CHECKOUT = Path(os.environ.get("PALAESTRA_MATH_VERIFY") or "nowhere")

# Labels of Math-Verify 0.9 that we do not follow: gold, response, label, and why.
EXCEPTED = {
    ("1000.99", "1000,99", True): "a comma separates thousands or the parts of a list; it is no decimal point",
    ("1,22", "1.22", True): "a comma is no decimal point: 1,22 is the list of 1 and 22",
    ("2.74", "Soucis : 2,74 $ a..", True): "a comma is no decimal point",
    ("0,111", "0.111", True): "a comma is no decimal point: 0,111 is the list of 0 and 111",
    ("$9$", "Answer $ \n 9 \n $", False): "the answer is 9; where its line ends does not make it wrong",
    ("$9$", "Answer \\( \n 9 \n \\)", False): "the answer is 9; where its line ends does not make it wrong",
    (
        r"$(\begin{pmatrix}\frac{1}{3}\\ \frac{1}{5} \end{pmatrix})$",
        r"$\begin{pmatrix}0.33\\0.2 \end{pmatrix}$",
        True,
    ): "0.33 is not a third",
    (r"$(\frac{3}{5},\frac{8}{3}]$", "$(0.6,2.6667]$", True): "2.6667 has too few digits to stand for 8/3",
    ("$(1,3)$", "${1,3}$", True): "a set is no pair",
    (
        r"$x \in [-2,7]$",
        r"$-2 \\le x \\le 7$",
        False,
    ): "equality is symmetric: the same two are equal in the other order",
    (r"$1 - \frac{1}{\mathrm{e}}$", r"$1 + \frac{1}{\mathrm{e}}$", True): "the label is wrong: the signs differ",
}


def cases() -> Iterator[tuple[str, str, bool]]:
    """Gold, response and label of every parametrized test with a gold."""
    for file in sorted((CHECKOUT / "tests").glob("test_*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for decorator in function.decorator_list if isinstance(function, ast.FunctionDef) else []:
                if (
                    isinstance(decorator, ast.Call)
                    and len(decorator.args) == 2
                    and isinstance(decorator.args[1], ast.List)
                ):
                    names = [name.strip() for name in ast.literal_eval(decorator.args[0]).split(",")]
                    for row in decorator.args[1].elts if "gold" in names else []:
                        case = dict(zip(names, _value(row), strict=True))
                        if case.get("strict", True):
                            yield case["gold"], case["pred"], bool(case.get("expected", case.get("result")))


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:  # One case formats math.sqrt(17).
        return eval(compile(ast.Expression(node), "case", "eval"), {"math": math})


def _reference(gold: str) -> str:
    extracted = extract_worked(gold) if "\\boxed" in gold or len(gold) > 120 else None
    return extracted.text if extracted else gold


@pytest.mark.skipif(
    not (CHECKOUT / "tests").is_dir(), reason="PALAESTRA_MATH_VERIFY names no checkout of huggingface/Math-Verify"
)
def test_we_agree_with_math_verifys_own_tests() -> None:
    pytest.importorskip("math_verify", reason="algebra needs palaestra[math]")
    every = list(cases())
    kept = [case for case in every if case not in EXCEPTED]
    assert len(every) >= 260
    assert len(every) - len(kept) == len(EXCEPTED)
    wrong = []
    for gold, response, label in kept:
        extracted = extract_worked(response)
        verdict = compare_answers(extracted.text if extracted else None, _reference(gold))
        if (isinstance(verdict, AnswerVerdict) and verdict.equal) is not label:
            wrong.append((gold, response[-80:], verdict))
    assert not wrong
