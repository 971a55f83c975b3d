"""The problems of `code-skills`: programs composed of parts, each with its own wording and its own Python code.

A draft is a question, a solution and inputs. The expected outputs are those of the solution, so question, solution and
tests always agree. A few parts have many combinations, so every skill has thousands of problems.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from palaestra.tasks.code.formats import Functions, Stdio

Rng = np.random.Generator


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
    inputs: tuple[Any, ...]
    key: tuple[int | str, ...]


Drawer = Callable[[Rng], CodeDraft]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a problem: its wording and its code; `{k}` stands for one of its numbers."""

    say: str
    write: str
    numbers: tuple[int | str, ...] = (0,)

    def with_number(self, rng: Rng) -> tuple[str, str]:
        k = _pick(rng, self.numbers)
        return self.say.replace("{k}", str(k)), self.write.replace("{k}", str(k))


# Conditions on a number `x`, changes of it, and functions of a list.
WHICH = (
    Part("that are even", "x % 2 == 0"),
    Part("that are odd", "x % 2 == 1"),
    Part("that are above {k}", "x > {k}", (-3, 0, 2, 5, 8, 10)),
    Part("that are below {k}", "x < {k}", (-2, 0, 3, 6, 9, 12)),
    Part("that can be divided by {k}", "x % {k} == 0", (3, 4, 5, 7)),
    Part("that are not {k}", "x != {k}", (0, 1, 2, 5)),
    Part("whose last digit is {k}", "abs(x) % 10 == {k}", (0, 1, 3, 5, 7)),
)
CHANGE = (
    Part("the square of", "x * x"),
    Part("{k} times", "{k} * x", (2, 3, 4, 10)),
    Part("{k} more than", "x + {k}", (1, 2, 5, 7)),
    Part("the negative of", "-x"),
    Part("the remainder by {k} of", "x % {k}", (3, 4, 5, 6)),
    Part("the absolute value of", "abs(x)"),
)
TOGETHER = (
    Part("the sum of", "sum({list})"),
    Part("the number of", "len({list})"),
    Part("the largest (0 if there are none) of", "max({list}, default=0)"),
    Part("the smallest (0 if there are none) of", "min({list}, default=0)"),
    Part("the number of different values among", "len(set({list}))"),
    Part(
        "the difference between the largest and the smallest (0 if there are none) of",
        "max({list}, default=0) - min({list}, default=0)",
    ),
)
ORDERS = (
    Part("in their order", "{list}"),
    Part("from the smallest to the largest", "sorted({list})"),
    Part("from the largest to the smallest", "sorted({list}, reverse=True)"),
    Part("backwards", "{list}[::-1]"),
    Part("without repetitions, from the smallest to the largest", "sorted(set({list}))"),
    Part(
        "by their distance from {k}, the nearest first", "sorted({list}, key=lambda x: (abs(x - {k}), x))", (0, 5, 10)
    ),
)
LETTERS = (
    Part("vowels", "c in 'aeiou'"),
    Part("letters that are no vowels", "c.isalpha() and c not in 'aeiou'"),
    Part("digits", "c.isdigit()"),
    Part("letters", "c.isalpha()"),
    Part("letters before '{k}' in the alphabet", "'a' <= c < '{k}'", tuple("dgkmpt")),
    Part("letters after '{k}' in the alphabet", "'{k}' < c <= 'z'", tuple("cfjlos")),
    Part("letters of the word '{k}'", "c in '{k}'", ("amber", "olive", "queen", "wolf", "jars", "kites", "roses")),
)
WORDS = (
    Part("with more than {k} letters", "len(w) > {k}", (2, 3, 4, 5)),
    Part("with fewer than {k} letters", "len(w) < {k}", (4, 5, 6)),
    Part("with an even number of letters", "len(w) % 2 == 0"),
    Part("with an odd number of letters", "len(w) % 2 == 1"),
    Part("that start with a vowel", "w[0] in 'aeiou'"),
    Part("that start with no vowel", "w[0] not in 'aeiou'"),
    Part("that end with '{k}'", "w.endswith('{k}')", tuple("set")),
    Part("that contain '{k}'", "'{k}' in w", tuple("aeiosl")),
    Part("that do not contain '{k}'", "'{k}' not in w", tuple("aeios")),
)
WORD_CHANGES = (
    Part("in capitals", "w.upper()"),
    Part("backwards", "w[::-1]"),
    Part("with their first letter doubled", "w[0] + w"),
    Part("without their last letter", "w[:-1]"),
    Part("followed by their number of letters", "w + str(len(w))"),
    Part("without any '{k}'", "w.replace('{k}', '')", tuple("aes")),
    Part("with their last letter put first", "w[-1] + w[:-1]"),
    Part("with '{k}' behind them", "w + '{k}'", ("!", "-", "?")),
)
TALLY_BY = (
    ("the length", "len(w)"), ("the first letter", "w[0]"), ("the last letter", "w[-1]"),
    ("the number of vowels", "sum(c in 'aeiou' for c in w)"), ("the first two letters", "w[:2]"),
)  # fmt: skip
VOCABULARY = (
    "amber", "apple", "basis", "birds", "cloud", "cats", "delta", "dusk", "eagle", "ember", "finch", "fox", "glass", "goats", "hills", "idea", "inks", "jars", "kites", "lamps", "maple", "nest", "oats", "olive", "paths", "queen", "roses", "seas", "table", "ants", "vines", "wolf", "yams", "zebras",
)  # fmt: skip


def _pick(rng: Rng, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _name(rng: Rng) -> str:
    return (
        f"{_pick(rng, ('find', 'compute', 'get', 'solve', 'make'))}_{_pick(rng, ('result', 'answer', 'value', 'it'))}"
    )


def _numbers(rng: Rng, low: int = -15, high: int = 25) -> list[int]:
    return [int(x) for x in rng.integers(low, high + 1, int(rng.integers(1, 9)))]


def _number_lists(rng: Rng) -> tuple[Any, ...]:
    """Arguments of tests: an empty list, one number, repetitions, and random lists."""
    once = int(rng.integers(-9, 10))
    return ([[]], [[once]], [[once, once, 3, 2]], *([_numbers(rng)] for _ in range(5)))


def _words(rng: Rng) -> list[str]:
    return [str(_pick(rng, VOCABULARY)) for _ in range(int(rng.integers(1, 7)))]


def _texts(rng: Rng) -> tuple[Any, ...]:
    return ([""], ["a1"], *([" ".join(_words(rng)) + str(int(rng.integers(0, 100)))] for _ in range(5)))


def _tie(order: str) -> str:
    """The wording for numbers that are equal under an order."""
    return ", and of two equally near the smaller first" if "abs(x - " in order else ""


def _function(name: str, argument: str, *lines: str) -> str:
    return "\n".join([f"def {name}({argument}):", *(f"    {line}" for line in lines)]) + "\n"


def select(rng: Rng) -> CodeDraft:
    """The numbers of a list that have a property."""
    (say, write), (order_say, order) = _pick(rng, WHICH).with_number(rng), _pick(rng, ORDERS).with_number(rng)
    name, chosen = _name(rng), f"[x for x in numbers if {write}]"
    solution = _function(name, "numbers", f"return {order.replace('{list}', chosen)}")
    question = f"returns a list of the whole numbers in the list `numbers` {say}, {order_say}{_tie(order)}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("select", say, order_say))


def change(rng: Rng) -> CodeDraft:
    """Each number of a list changed."""
    (say, write), (order_say, order) = _pick(rng, CHANGE).with_number(rng), _pick(rng, ORDERS).with_number(rng)
    name, changed = _name(rng), f"[{write} for x in numbers]"
    solution = _function(name, "numbers", f"changed = {changed}", f"return {order.replace('{list}', 'changed')}")
    question = f"returns a list with {say} each whole number in the list `numbers`, {order_say}{_tie(order)}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("change", say, order_say))


def reduce(rng: Rng) -> CodeDraft:
    """A statistic of the numbers of a list that have a property."""
    (say, write), whole = _pick(rng, WHICH).with_number(rng), _pick(rng, TOGETHER)
    name = _name(rng)
    chosen = f"[x for x in numbers if {write}]"
    solution = _function(name, "numbers", f"chosen = {chosen}", f"return {whole.write.replace('{list}', 'chosen')}")
    question = f"returns {whole.say} the whole numbers in the list `numbers` {say}"
    return CodeDraft(question, solution, name, _number_lists(rng), ("reduce", say, whole.say))


def combine(rng: Rng) -> CodeDraft:
    """A statistic of chosen and changed numbers."""
    (say, write), (by, become) = _pick(rng, WHICH).with_number(rng), _pick(rng, CHANGE).with_number(rng)
    whole, name = _pick(rng, TOGETHER), _name(rng)
    solution = _function(
        name, "numbers", f"found = [{become} for x in numbers if {write}]",
        f"return {whole.write.replace('{list}', 'found')}",
    )  # fmt: skip
    question = f"takes {by} each of the whole numbers in the list `numbers` {say}, and returns {whole.say} these"
    return CodeDraft(question, solution, name, _number_lists(rng), ("combine", say, by, whole.say))


def characters(rng: Rng) -> CodeDraft:
    """Counting and keeping characters."""
    (kind, write), name = _pick(rng, LETTERS).with_number(rng), _name(rng)
    way, say = _pick(rng, (("count", "how many {what} there are in `text`"), ("keep", "`text` with only its {what}"),
                           ("drop", "`text` without its {what}"), ("places", "the places (from 0) of the {what} in `text`, as a list"),
                           ("stars", "`text` with '*' in place of each of its {what}"),
                           ("last", "the place (from 0) of the last of the {what} in `text`, or -1 if there are none")))  # fmt: skip
    line = {
        "count": f"return sum(1 for c in text if {write})",
        "keep": f"return ''.join(c for c in text if {write})",
        "drop": f"return ''.join(c for c in text if not ({write}))",
        "places": f"return [i for i, c in enumerate(text) if {write}]",
        "stars": f"return ''.join('*' if {write} else c for c in text)",
        "last": f"return max((i for i, c in enumerate(text) if {write}), default=-1)",
    }[way]
    question = f"takes `text`, which has no capitals, and returns {say.replace('{what}', kind)}"
    return CodeDraft(question, _function(name, "text", line), name, _texts(rng), ("characters", kind, way))


def words(rng: Rng) -> CodeDraft:
    """Words of a text, chosen and changed."""
    (say, write), (by, become), name = (
        _pick(rng, WORDS).with_number(rng),
        _pick(rng, WORD_CHANGES).with_number(rng),
        _name(rng),
    )
    sort = bool(rng.integers(2))
    selection = f"[{become} for w in text.split() if {write}]"
    solution = _function(
        name, "text", f"found = {selection}", f"return ' '.join({'sorted(found)' if sort else 'found'})"
    )
    order = "in alphabetical order" if sort else "in their order"
    question = f"returns the words of `text` {say}, each {by}, then {order}, with one space between them"
    inputs = ([""], *([" ".join(_words(rng))] for _ in range(6)))
    return CodeDraft(question, solution, name, inputs, ("words", say, by, order))


def tallies(rng: Rng) -> CodeDraft:
    """Dictionaries: counting and grouping."""
    name, (say, write) = _name(rng), _pick(rng, WORDS).with_number(rng)
    by_say, by = _pick(rng, TALLY_BY)
    way = _pick(rng, ("count", "group", "longest", "letters"))
    step, what = {
        "count": (f"found[{by}] = found.get({by}, 0) + 1", "how many of these words have it"),
        "group": (f"found.setdefault({by}, []).append(w)", "the list of these words that have it, in their order"),
        "longest": (
            f"found[{by}] = max(found.get({by}, ''), w, key=len)",
            "the first of the longest of these words that have it",
        ),
        "letters": (f"found[{by}] = found.get({by}, 0) + len(w)", "the number of letters of these words that have it"),
    }[way]
    lines = ("found = {}", "for w in words:", f"    if {write}:", f"        {step}", "return found")
    question = f"takes the words in the list `words` {say}, and returns a dictionary from {by_say} of each to {what}"
    inputs = ([[]], *([_words(rng)] for _ in range(6)))
    return CodeDraft(question, _function(name, "words", *lines), name, inputs, ("tallies", by_say, way, say))


def integers(rng: Rng) -> CodeDraft:
    """Digits and divisors of one number."""
    name = _name(rng)
    over_say, over = _pick(rng, (
        ("its decimal digits", "[int(d) for d in str(n)]"),
        ("its divisors (1 and itself included)", "[d for d in range(1, n + 1) if n % d == 0]"),
        ("the whole numbers from 1 to it", "list(range(1, n + 1))"),
        ("its prime factors, each as often as it divides", "factors"),
    ))  # fmt: skip
    (say, write), whole = _pick(rng, WHICH).with_number(rng), _pick(rng, TOGETHER)
    lines = ["factors, rest, d = [], n, 2", "while rest > 1:", "    while rest % d == 0:", "        factors.append(d)", "        rest //= d", "    d += 1"]  # fmt: skip
    body = [*(lines if over == "factors" else []), f"chosen = [x for x in {over} if {write}]", f"return {whole.write.replace('{list}', 'chosen')}"]  # fmt: skip
    question = f"takes a whole number `n` of at least 1, and returns {whole.say} those of {over_say} {say}"
    inputs = ([1], [7], *([int(rng.integers(2, 400))] for _ in range(6)))
    return CodeDraft(question, _function(name, "n", *body), name, inputs, ("integers", over_say, say, whole.say))


def grids(rng: Rng) -> CodeDraft:
    """Lists of lists."""
    name, whole = _name(rng), _pick(rng, TOGETHER)
    (say, write) = _pick(rng, WHICH).with_number(rng)
    by = _pick(rng, ("row", "column"))
    lines_of = "grid" if by == "row" else "zip(*grid)"
    chosen = f"[x for x in line if {write}]"
    question = f"returns a list that has, for each {by} of `grid` (a list of rows of equal length), {whole.say} its whole numbers {say}"
    solution = _function(name, "grid", f"return [{whole.write.replace('{list}', chosen)} for line in {lines_of}]")
    inputs = []
    for _ in range(6):
        rows, columns = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        inputs.append([[[int(x) for x in row] for row in rng.integers(-15, 25, (rows, columns))]])
    return CodeDraft(question, solution, name, tuple(inputs), ("grids", by, say, whole.say))


def programs(rng: Rng) -> CodeDraft:
    """Programs that read numbers and print one, or many."""
    (say, write), (by, become) = _pick(rng, WHICH).with_number(rng), _pick(rng, CHANGE).with_number(rng)
    if rng.integers(2):
        whole = _pick(rng, TOGETHER)
        end, what = f"print({whole.write.replace('{list}', 'found')})", f"prints {whole.say} these"
    else:
        end, what = "print(*found)", "prints these on one line, with spaces between them, in their order"
    solution = f"n = int(input())\nnumbers = [int(x) for x in input().split()][:n]\nfound = [{become} for x in numbers if {write}]\n{end}\n"
    question = (
        f"reads a whole number n and, on the next line, n whole numbers; takes {by} each of them {say}; and {what}"
    )
    texts = []
    for _ in range(6):
        numbers = _numbers(rng)
        texts.append(f"{len(numbers)}\n{' '.join(map(str, numbers))}\n")
    return CodeDraft(question, solution, "", tuple(texts), ("programs", say, by, what))


def texts(rng: Rng) -> CodeDraft:
    """Programs that read lines of text."""
    (say, write), (by, become) = _pick(rng, WORDS).with_number(rng), _pick(rng, WORD_CHANGES).with_number(rng)
    solution = f"import sys\n\nfor line in sys.stdin:\n    print(*[{become} for w in line.split() if {write}])\n"
    question = f"reads lines of words until the end of its input, and prints for each line its words {say}, each {by}, with spaces between them"
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
