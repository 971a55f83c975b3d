"""The problems of `code-skills`: programs composed of parts, each with its own wording and its own Python code.

A draft is a question, a solution and inputs. The expected outputs are those of the solution, so question, solution and
tests always agree. A few parts have many combinations, so every skill has thousands of problems.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.content import read_content
from palaestra.tasks.procedural import Family, pick
from palaestra.tasks.recipes import RecipeBook

Rng = np.random.Generator
Inputs = tuple[Any, ...]
_Wording = tuple[str, str]
"""The words for a part of a problem, and its code."""


@dataclass(frozen=True, slots=True)
class CodeDraft:
    """One drawn problem.

    Arguments:
        question: the question, without the form of the answer.
        solution: a correct program.
        name: the function to write; empty for a program that reads and prints.
        inputs: the arguments of each test, or the text on stdin.
        key: the identity of the problem, independent of names and inputs. Its hash decides the split.
    """

    question: str
    solution: str
    name: str
    inputs: Inputs
    key: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a problem: its wording and its code; `{k}` stands for one of its numbers."""

    say: str
    write: str
    numbers: Sequence[int | str] = (0,)


_CONTENT: Mapping[str, Any] = read_content("code")
_PARTS = {
    name.upper(): [Part(*row) for row in _CONTENT[name]]
    for name in ("which", "change", "together", "orders", "letters", "words", "word_changes")
}
"""Conditions on a number `x`, changes of it, functions of a list, ..."""


def _draw_part(rng: Rng, parts: Sequence[Part]) -> _Wording:
    """One of the parts, with one of its numbers."""
    part = parts[int(rng.integers(len(parts)))]
    k = str(part.numbers[int(rng.integers(len(part.numbers)))])
    return part.say.replace("{k}", k), part.write.replace("{k}", k)


def _draw_statistic(rng: Rng, values: str) -> _Wording:
    """A statistic, and its code for the list `values`."""
    part = _PARTS["TOGETHER"][int(rng.integers(len(_PARTS["TOGETHER"])))]
    return part.say, part.write.replace("{list}", values)


def _draw_order(rng: Rng, values: str) -> tuple[str, str, str]:
    """An order, the rule for ties, and its code for the list `values`."""
    say, write = _draw_part(rng, _PARTS["ORDERS"])
    tie = ", and of two equally near the smaller first" if "abs(x - " in write else ""
    return say, tie, write.replace("{list}", values)


def _draw_name(rng: Rng) -> str:
    verb = pick(rng, ("find", "compute", "get", "solve", "make"))
    return f"{verb}_{pick(rng, ('result', 'answer', 'value', 'it'))}"


def _draw_numbers(rng: Rng) -> list[int]:
    return [int(x) for x in rng.integers(-15, 26, int(rng.integers(1, 9)))]


def _draw_lists(rng: Rng) -> Inputs:
    """Arguments of tests: an empty list, one number, repetitions, and random lists."""
    once = int(rng.integers(-9, 10))
    return ([[]], [[once]], [[once, once, 3, 2]], *([_draw_numbers(rng)] for _ in range(5)))


def _draw_words(rng: Rng) -> list[str]:
    return [pick(rng, _CONTENT["vocabulary"]) for _ in range(int(rng.integers(1, 7)))]


def _draw_grid(rng: Rng) -> list[list[int]]:
    rows, columns = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    grid: list[list[int]] = rng.integers(-15, 25, (rows, columns)).tolist()
    return grid


_FACTORS = (
    "    factors, rest, d = [], n, 2\n    while rest > 1:\n        while rest % d == 0:\n"
    "            factors.append(d)\n            rest //= d\n        d += 1\n"
)
_NAMES = {**_PARTS, **{name.upper(): value for name, value in _CONTENT.items() if name.upper() not in _PARTS}}
_BOOK = RecipeBook(__file__, CodeDraft, {**globals(), **_NAMES}, {"name": "name", "inputs": "inputs"})
FAMILY: Family[CodeDraft] = _BOOK.read("skills")


_FUNCTION = "Write a Python function `{name}` that {what}. Answer with the function in a fenced code block."
_PROGRAM = "Write a Python program that {what}. Answer with the program in a fenced code block."
_METHOD = "Write a Python class `Solution` with a method `{name}` that {what}."


def ask_draft(draft: CodeDraft) -> str:
    """The prompt of a drawn problem."""
    if not draft.name:
        return _PROGRAM.format(what=draft.question)
    return _FUNCTION.format(name=f"{draft.name}({_arguments(draft)})", what=draft.question)


def ask_as_method(draft: CodeDraft) -> tuple[str, str]:
    """A drawn function as a method of a class `Solution`: the question and the class."""
    head = f"def {draft.name}("
    method = draft.solution.replace(head, f"{head}self, ", 1)
    lines = "\n".join(f"    {line}" for line in method.rstrip().split("\n"))
    question = _METHOD.format(name=f"{draft.name}({_arguments(draft)})", what=draft.question)
    return question, f"class Solution:\n{lines}\n"


def _arguments(draft: CodeDraft) -> str:
    return draft.solution[draft.solution.index("(") + 1 : draft.solution.index(")")]


def make_tests(solution: str, name: str, inputs: Sequence[Any]) -> Stdio | Functions:
    """Tests with the outputs of the solution."""
    if not name:
        return Stdio(tuple(inputs), tuple(_run(solution, text) for text in inputs))
    scope: dict[str, Any] = {}
    exec(solution, scope)
    lines = [f"assert {name}({', '.join(map(repr, given))}) == {scope[name](*given)!r}" for given in inputs]
    return Functions("\n".join(lines), name)


def _run(program: str, given: str) -> str:
    """The output of a generated solution, run with replaced `input` and `print`."""
    printed: list[str] = []
    lines = iter(given.splitlines())
    system = SimpleNamespace(stdin=given.splitlines(keepends=True))
    own = {
        "input": lambda: next(lines),
        "print": lambda *words: printed.append(" ".join(map(str, words)) + "\n"),
        "__import__": lambda name, *rest: system if name == "sys" else builtins.__import__(name, *rest),
    }
    exec(program, {"__name__": "__main__", "__builtins__": {**vars(builtins), **own}})
    return "".join(printed)
