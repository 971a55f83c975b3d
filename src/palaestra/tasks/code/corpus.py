"""The programming part of the pretraining corpus of `nano-coder`: small functions, their traces and tests, and code skills.

Functions are drawn from a table of their own. They are written, completed, explained, executed step by step, tested and
repaired, alone, in long files, and in chats of several turns. The parts of `code-skills`, such as conditions, are asked one by
one, so that a student can learn to combine them. Some skills occur in full, the others almost never (`TRACE`), so that lessons
can teach them. Only train problems are used.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import numpy as np

from palaestra.core.records import Example, Message
from palaestra.tasks.code.family import FAMILY
from palaestra.tasks.code.task import CodeSkills
from palaestra.tasks.content import read_content
from palaestra.tasks.procedural import between, pick

_CONTENT: Mapping[str, Any] = read_content("snippets")
_PARTS: Mapping[str, Any] = read_content("code")
IN_FULL = ("lists", "strings", "numbers")
TRACE: dict[str, float] = {skill: 0.002 for skill in FAMILY if skill not in IN_FULL}
"""Percentage of the corpus for each skill that lessons teach."""
_MAX_LINES = 24
"""Maximum lines of a trace."""


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of examples; the assistant's earlier messages are to be learned too."""
    task, rare = CodeSkills(), sum(TRACE.values()) / 100
    kinds = ("write", "value", "trace", "explain", "tests", "repair")
    while True:
        draw = generator.random()
        if draw < 0.35:
            skill = pick(generator, tuple(TRACE) if draw < rare else IN_FULL)
            yield from task.write_examples(skill, pick(generator, tuple(FAMILY[skill])), 1, generator)
        elif draw < 0.45:
            yield _ask_part(generator)
        elif draw < 0.51:
            yield _ask_in_file(generator)
        else:
            turns = between(generator, 2, 6) if draw < 0.62 else 1
            yield _join([_ask(generator, pick(generator, kinds)) for _ in range(turns)], generator)


@dataclass(frozen=True, slots=True)
class Function:
    """A small function.

    Arguments:
        say: what it returns.
        kinds: the kind of each argument.
    """

    name: str
    say: str
    kinds: Mapping[str, str]
    body: str

    @property
    def head(self) -> str:
        return f"{self.name}({', '.join(self.kinds)})"

    @property
    def code(self) -> str:
        return f"def {self.head}:\n{textwrap.indent(self.body, '    ')}\n"

    def call(self, *values: Any, body: str = "") -> Any:
        """The result of a call.

        Arguments:
            body: another body, which may be broken.
        """
        return _compile(tuple(self.kinds), body or self.body)(*values)

    def trace(self, *values: Any) -> list[str]:
        """The variables that each executed line changes."""
        function, lines = _compile(tuple(self.kinds), self.body), list[str]()
        seen = dict(zip(self.kinds, map(repr, values), strict=True))

        def watch(frame: FrameType, event: str, value: object) -> Any:
            if frame.f_code is not function.__code__:
                return None
            shown = {name: repr(variable) for name, variable in frame.f_locals.items()}
            if changed := [f"{name} = {text}" for name, text in shown.items() if seen.get(name) != text]:
                lines.append(", ".join(changed))
            seen.update(shown)
            return watch

        before = sys.gettrace()
        sys.settrace(watch)
        try:
            function(*values)
        finally:
            sys.settrace(before)
        return lines


@cache
def _compile(arguments: tuple[str, ...], body: str) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def f({', '.join(arguments)}):\n{textwrap.indent(body, '    ')}", scope)
    return scope["f"]


def draw_function(rng: np.random.Generator) -> Function:
    """A function of the table under a random name."""
    say, arguments, body, *numbers = _CONTENT["functions"][int(rng.integers(len(_CONTENT["functions"])))]
    k = str(numbers[0][int(rng.integers(len(numbers[0])))]) if numbers else ""
    name = "_".join(pick(rng, words) for words in _CONTENT["names"])
    kinds = dict(pair.split(":") for pair in arguments.split(", "))
    return Function(name, say.replace("{k}", k), kinds, body.replace("{k}", k))


def _draw_value(rng: np.random.Generator, kind: str) -> Any:
    if kind in "wt":
        return " ".join(pick(rng, _CONTENT["words"]) for _ in range(1 if kind == "w" else between(rng, 2, 5)))
    if kind == "l":
        return [between(rng, -5, 15) for _ in range(between(rng, 3, 6))]
    return between(rng, -20, 40) if kind == "n" else between(rng, 1, 7)


def draw_call(rng: np.random.Generator, function: Function) -> tuple[str, list[Any]]:
    values = [_draw_value(rng, kind) for kind in function.kinds.values()]
    return f"{function.name}({', '.join(map(repr, values))})", values


def _ask(rng: np.random.Generator, kind: str) -> Example:
    """A question of one kind about a function."""
    function = draw_function(rng)
    call, values = draw_call(rng, function)
    result = function.call(*values)
    parts = {"head": function.head, "say": function.say, "code": function.code, "call": call}
    parts["values"] = " and ".join(f"`{name}` = {value!r}" for name, value in zip(function.kinds, values, strict=True))
    parts["stub"] = f'def {function.head}:\n    """Return {function.say}.\n\n    >>> {call}\n    {result!r}\n    """\n'
    calls = [draw_call(rng, function) for _ in range(3)] if kind in ("write", "tests") else []
    parts["tests"] = "\n".join(f"assert {call} == {function.call(*values)!r}" for call, values in calls)
    response = f"```python\n{function.code}```"
    if kind == "repair":
        parts["broken"], parts["test"] = break_function(rng, function)
    elif kind == "tests":
        response = f"```python\n{parts['tests']}\n```"
    elif kind == "explain":
        response = f"It returns {function.say}."
    elif kind in ("trace", "value"):
        lines = function.trace(*values)[:_MAX_LINES] if kind == "trace" else []
        response = "\n".join([*lines, f"Answer: {result!r}"])
    return Example((Message("user", pick(rng, _CONTENT["asked"][kind]).format(**parts)),), response, kind)


def break_function(rng: np.random.Generator, function: Function) -> tuple[str, str]:
    """The function with one change, and a test that then fails. Functions that no change breaks lose their body."""
    for old, new in rng.permutation(_CONTENT["repairs"]):
        body = function.body.replace(old, new, 1)
        call, values = draw_call(rng, function)
        expected = function.call(*values)
        if body == function.body or "while" in body:
            continue
        try:
            if function.call(*values, body=body) == expected:
                continue
        except Exception:  # The body is broken on purpose.
            pass
        break
    else:
        body = "pass"
    return f"def {function.head}:\n{textwrap.indent(body, '    ')}\n", f"assert {call} == {expected!r}"


def _join(examples: list[Example], rng: np.random.Generator) -> Example:
    """One conversation of several examples, perhaps after a system message."""
    system = pick(rng, _CONTENT["systems"]) if rng.random() < 0.5 else ""
    messages = [Message("system", system)] if system else []
    for example in examples[:-1]:
        messages += [*example.messages, Message("assistant", example.response)]
    return Example((*messages, *examples[-1].messages), examples[-1].response, examples[-1].skill)


def _ask_in_file(rng: np.random.Generator) -> Example:
    """Questions about the functions of a file, which may fill the context."""
    count = int(2 ** rng.uniform(1.5, 6.9))
    functions = {function.name: function for function in (draw_function(rng) for _ in range(count))}
    file, examples = "\n\n".join(function.code for function in functions.values()), list[Example]()
    for _ in range(between(rng, 1, 3)):
        function = functions[pick(rng, tuple(functions))]
        call, values = draw_call(rng, function)
        kind = pick(rng, ("find", "call"))
        question = pick(rng, _CONTENT["asked"][kind]).format(name=function.name, call=call)
        if not examples:
            question = pick(rng, _CONTENT["asked"]["file"]).format(file=file) + question
        response = f"```python\n{function.code}```" if kind == "find" else f"Answer: {function.call(*values)!r}"
        examples.append(Example((Message("user", question),), response, kind))
    return _join(examples, rng)


def _ask_part(rng: np.random.Generator) -> Example:
    """A part of the problems of `code-skills`, as an expression."""
    kind = pick(rng, tuple(_CONTENT["parts"]))
    say, write, *numbers = _PARTS[kind][int(rng.integers(len(_PARTS[kind])))]
    k = str(numbers[0][int(rng.integers(len(numbers[0])))]) if numbers else ""
    values = pick(rng, ("chosen", "found", "numbers", "changed", "line"))
    question, code = pick(rng, _CONTENT["parts"][kind]).replace("{say}", say), write
    for place, value in (("{k}", k), ("{list}", values)):
        question, code = question.replace(place, value), code.replace(place, value)
    if code == "factors":
        return _ask(rng, "write")
    return Example((Message("user", question),), f"```python\n{code}\n```", "part")
