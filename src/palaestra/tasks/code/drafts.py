"""The prompts and tests of drawn problems."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from palaestra.tasks.code.family import CodeDraft
from palaestra.tasks.code.formats import Functions, Stdio

FUNCTION = "Write a Python function `{name}` that {what}. Answer with the function in a fenced code block."
PROGRAM = "Write a Python program that {what}. Answer with the program in a fenced code block."
METHOD = "Write a Python class `Solution` with a method `{name}` that {what}."


def ask_draft(draft: CodeDraft) -> str:
    """The prompt of a drawn problem."""
    if not draft.name:
        return PROGRAM.format(what=draft.question)
    return FUNCTION.format(name=f"{draft.name}({_arguments(draft)})", what=draft.question)


def ask_as_method(draft: CodeDraft) -> tuple[str, str]:
    """A drawn function as a method of a class `Solution`: the question and the class."""
    head = f"def {draft.name}("
    method = draft.solution.replace(head, f"{head}self, ", 1)
    lines = "\n".join(f"    {line}" for line in method.rstrip().split("\n"))
    question = METHOD.format(name=f"{draft.name}({_arguments(draft)})", what=draft.question)
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
