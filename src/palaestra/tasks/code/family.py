"""The problems of `code-skills`: programs composed of parts, each with its own wording and its own Python code.

A draft is a question, a solution and inputs. The expected outputs are those of the solution, so question, solution and
tests always agree. A few parts have many combinations, so every skill has thousands of problems.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.content import read_content

Rng = np.random.Generator
T = TypeVar("T")
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


Drawer = Callable[[Rng], CodeDraft]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a problem: its wording and its code; `{k}` stands for one of its numbers."""

    say: str
    write: str
    numbers: Sequence[int | str] = (0,)


# Conditions on a number `x`, changes of it, and functions of a list.
_CONTENT: Mapping[str, Any] = read_content("code")
_WHICH, _CHANGE, _TOGETHER, _ORDERS, _LETTERS, _WORDS, _WORD_CHANGES = (
    [Part(*row) for row in _CONTENT[name]]
    for name in ("which", "change", "together", "orders", "letters", "words", "word_changes")
)


def _pick(rng: Rng, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _draw(rng: Rng, parts: Sequence[Part]) -> _Wording:
    """One of the parts, with one of its numbers."""
    part = _pick(rng, parts)
    k = str(_pick(rng, part.numbers))
    return part.say.replace("{k}", k), part.write.replace("{k}", k)


def _draw_statistic(rng: Rng, values: str) -> _Wording:
    """A statistic, and its code for the list `values`."""
    part = _pick(rng, _TOGETHER)
    return part.say, part.write.replace("{list}", values)


def _draw_order(rng: Rng, values: str) -> tuple[str, str, str]:
    """An order, the rule for ties, and its code for the list `values`."""
    say, write = _draw(rng, _ORDERS)
    tie = ", and of two equally near the smaller first" if "abs(x - " in write else ""
    return say, tie, write.replace("{list}", values)


def _name(rng: Rng) -> str:
    verb, noun = (
        _pick(rng, ("find", "compute", "get", "solve", "make")),
        _pick(rng, ("result", "answer", "value", "it")),
    )
    return f"{verb}_{noun}"


def _numbers(rng: Rng) -> list[int]:
    return [int(x) for x in rng.integers(-15, 26, int(rng.integers(1, 9)))]


def _number_lists(rng: Rng) -> Inputs:
    """Arguments of tests: an empty list, one number, repetitions, and random lists."""
    once = int(rng.integers(-9, 10))
    return ([[]], [[once]], [[once, once, 3, 2]], *([_numbers(rng)] for _ in range(5)))


def _words(rng: Rng) -> list[str]:
    return [_pick(rng, _CONTENT["vocabulary"]) for _ in range(int(rng.integers(1, 7)))]


def _function(name: str, argument: str, *lines: str) -> str:
    return "\n".join([f"def {name}({argument}):", *(f"    {line}" for line in lines)]) + "\n"


def select(rng: Rng) -> CodeDraft:
    """The numbers of a list that have a property."""
    say, write = _draw(rng, _WHICH)
    order, tie, ordered = _draw_order(rng, f"[x for x in numbers if {write}]")
    name = _name(rng)
    solution = _function(name, "numbers", f"return {ordered}")
    question = f"returns a list of the whole numbers in the list `numbers` {say}, {order}{tie}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("select", say, order))


def change(rng: Rng) -> CodeDraft:
    """Each number of a list changed."""
    say, write = _draw(rng, _CHANGE)
    order, tie, ordered = _draw_order(rng, "changed")
    name = _name(rng)
    solution = _function(name, "numbers", f"changed = [{write} for x in numbers]", f"return {ordered}")
    question = f"returns a list with {say} each whole number in the list `numbers`, {order}{tie}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("change", say, order))


def reduce(rng: Rng) -> CodeDraft:
    """A statistic of the numbers of a list that have a property."""
    say, write = _draw(rng, _WHICH)
    whole, result = _draw_statistic(rng, "chosen")
    name = _name(rng)
    solution = _function(name, "numbers", f"chosen = [x for x in numbers if {write}]", f"return {result}")
    question = f"returns {whole} the whole numbers in the list `numbers` {say}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("reduce", say, whole))


def combine(rng: Rng) -> CodeDraft:
    """A statistic of chosen and changed numbers."""
    (say, write), (by, become) = _draw(rng, _WHICH), _draw(rng, _CHANGE)
    whole, result = _draw_statistic(rng, "found")
    name = _name(rng)
    solution = _function(name, "numbers", f"found = [{become} for x in numbers if {write}]", f"return {result}")
    question = f"takes {by} each of the whole numbers in the list `numbers` {say}, and returns {whole} these"
    return CodeDraft(question, solution, name, _number_lists(rng), ("combine", say, by, whole))


def characters(rng: Rng) -> CodeDraft:
    """Counting and keeping characters."""
    (kind, write), name = _draw(rng, _LETTERS), _name(rng)
    way = _pick(rng, tuple(_CONTENT["characters"]))
    say, result = _CONTENT["characters"][way]
    solution = _function(name, "text", f"return {result.replace('{write}', write)}")
    question = f"takes `text`, which has no capitals, and returns {say.replace('{what}', kind)}"
    inputs = ([""], ["a1"], *([" ".join(_words(rng)) + str(int(rng.integers(0, 100)))] for _ in range(5)))
    return CodeDraft(question, solution, name, inputs, ("characters", kind, way))


def words(rng: Rng) -> CodeDraft:
    """Words of a text, chosen and changed."""
    (say, write), (by, become), name = _draw(rng, _WORDS), _draw(rng, _WORD_CHANGES), _name(rng)
    order, result = _pick(rng, (("in their order", "found"), ("in alphabetical order", "sorted(found)")))
    choose = f"found = [{become} for w in text.split() if {write}]"
    solution = _function(name, "text", choose, f"return ' '.join({result})")
    question = f"returns the words of `text` {say}, each {by}, then {order}, with one space between them"
    inputs = ([""], *([" ".join(_words(rng))] for _ in range(6)))
    return CodeDraft(question, solution, name, inputs, ("words", say, by, order))


def tallies(rng: Rng) -> CodeDraft:
    """Dictionaries: counting and grouping."""
    name, (say, write) = _name(rng), _draw(rng, _WORDS)
    by_say, by = _pick(rng, _CONTENT["tally_by"])
    way = _pick(rng, tuple(_CONTENT["tallies"]))
    step, what = _CONTENT["tallies"][way]
    lines = ("found = {}", "for w in words:", f"    if {write}:", f"        {step.replace('{by}', by)}", "return found")
    question = f"takes the words in the list `words` {say}, and returns a dictionary from {by_say} of each to {what}"
    inputs = ([[]], *([_words(rng)] for _ in range(6)))
    return CodeDraft(question, _function(name, "words", *lines), name, inputs, ("tallies", by_say, way, say))


_FACTORS = (
    "factors, rest, d = [], n, 2\nwhile rest > 1:\n    while rest % d == 0:\n"
    "        factors.append(d)\n        rest //= d\n    d += 1"
)


def integers(rng: Rng) -> CodeDraft:
    """Digits and divisors of one number."""
    name = _name(rng)
    over_say, over = _pick(rng, _CONTENT["parts_of_number"])
    say, write = _draw(rng, _WHICH)
    whole, result = _draw_statistic(rng, "chosen")
    factors = _FACTORS.split("\n") if over == "factors" else []
    solution = _function(name, "n", *factors, f"chosen = [x for x in {over} if {write}]", f"return {result}")
    question = f"takes a whole number `n` of at least 1, and returns {whole} those of {over_say} {say}"
    inputs = ([1], [7], *([int(rng.integers(2, 400))] for _ in range(6)))
    return CodeDraft(question, solution, name, inputs, ("integers", over_say, say, whole))


def grids(rng: Rng) -> CodeDraft:
    """Lists of lists."""
    name, whole = _name(rng), _pick(rng, _TOGETHER)
    say, write = _draw(rng, _WHICH)
    by, lines = _pick(rng, (("row", "grid"), ("column", "zip(*grid)")))
    result = whole.write.replace("{list}", f"[x for x in line if {write}]")
    equal = f"each {by} of `grid` (a list of rows of equal length)"
    question = f"returns a list that has, for {equal}, {whole.say} its whole numbers {say}"
    solution = _function(name, "grid", f"return [{result} for line in {lines}]")
    inputs = []
    for _ in range(6):
        rows, columns = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        inputs.append([rng.integers(-15, 25, (rows, columns)).tolist()])
    return CodeDraft(question, solution, name, tuple(inputs), ("grids", by, say, whole.say))


def programs(rng: Rng) -> CodeDraft:
    """Programs that read numbers and print one, or many."""
    (say, write), (by, become) = _draw(rng, _WHICH), _draw(rng, _CHANGE)
    what, end = "prints these on one line, with spaces between them, in their order", "print(*found)"
    if rng.integers(2):
        whole, result = _draw_statistic(rng, "found")
        what, end = f"prints {whole} these", f"print({result})"
    read = "n = int(input())\nnumbers = [int(x) for x in input().split()][:n]\n"
    solution = f"{read}found = [{become} for x in numbers if {write}]\n{end}\n"
    reads = "reads a whole number n and, on the next line, n whole numbers"
    question = f"{reads}; takes {by} each of them {say}; and {what}"
    lists = [_numbers(rng) for _ in range(6)]
    inputs = tuple(f"{len(numbers)}\n{' '.join(map(str, numbers))}\n" for numbers in lists)
    return CodeDraft(question, solution, "", inputs, ("programs", say, by, what))


def texts(rng: Rng) -> CodeDraft:
    """Programs that read lines of text."""
    (say, write), (by, become) = _draw(rng, _WORDS), _draw(rng, _WORD_CHANGES)
    solution = f"import sys\n\nfor line in sys.stdin:\n    print(*[{become} for w in line.split() if {write}])\n"
    prints = f"prints for each line its words {say}, each {by}, with spaces between them"
    question = f"reads lines of words until the end of its input, and {prints}"
    inputs = tuple("".join(" ".join(_words(rng)) + "\n" for _ in range(int(rng.integers(1, 5)))) for _ in range(6))
    return CodeDraft(question, solution, "", inputs, ("texts", say, by))


FAMILY: Mapping[str, Mapping[str, Drawer]] = {
    "lists": {"select": select, "change": change},
    "numbers": {"reduce": reduce, "combine": combine},
    "strings": {"characters": characters, "words": words},
    "dictionaries": {"tallies": tallies},
    "integers": {"integers": integers},
    "grids": {"grids": grids},
    "programs": {"numbers": programs, "texts": texts},
}


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
