"""The data that a language model writes for programming: a problem, its solution, and tests that the solution must pass.

A problem asks for a function, for a method of a class `Solution`, or for a program that reads its standard input and
prints. The tests of functions and methods are assertions; those of programs are inputs with their expected outputs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import BaseModel, Field

from palaestra.core.records import Example, Message
from palaestra.tasks.base import UnusableError
from palaestra.tasks.code.extraction import PARSE_ERRORS, find_defined_names
from palaestra.tasks.content import read_brief

_MAX_PROGRAM = 20_000
_MAX_TEXT = 10_000
"""Maximum characters of one input or output."""
_STARTER = "{statement}\n\nComplete this class:\n{starter}"


class Form(StrEnum):
    """What a problem asks for."""

    FUNCTION = "a function"
    METHOD = "a method of a class Solution"
    PROGRAM = "a program that reads its standard input and prints"


_TESTS = {
    Form.FUNCTION: "assertions that call the function",
    Form.METHOD: "assertions that call a method of Solution()",
    Form.PROGRAM: "an input and an output each",
}


_SOLUTION = Field(
    min_length=1, max_length=_MAX_PROGRAM, description="The whole solution in Python, without tests and prose."
)


class ProgramTest(BaseModel):
    """One run of a program."""

    input: str = Field(max_length=_MAX_TEXT, description="What the program reads from standard input.")
    output: str = Field(min_length=1, max_length=_MAX_TEXT, description="Exactly what it prints.")


class CodeDatum(BaseModel):
    """A programming problem with its solution and tests; a function, or a method of `Solution`."""

    statement: str = Field(min_length=1, description="What is asked, the name and the arguments included.")
    solution: str = _SOLUTION
    tests: list[str] = Field(min_length=2, max_length=12, description="Assertions, for example: assert f([1, 2]) == 3")


class ProgramDatum(BaseModel):
    """A programming problem with its solution and tests; a program that reads and prints."""

    statement: str = Field(
        min_length=1, description="What the program reads, what it prints, and the rule between them."
    )
    solution: str = Field(min_length=1, max_length=_MAX_PROGRAM, description="The whole program, without prose.")
    tests: list[ProgramTest] = Field(min_length=2, max_length=12, description="Inputs with their outputs.")


class AnyDatum(BaseModel):
    """A programming problem with its solution and tests; a function or a program."""

    statement: str = Field(min_length=1, description="What is asked, complete in itself.")
    solution: str = _SOLUTION
    tests: list[str] | list[ProgramTest] = Field(
        min_length=2,
        max_length=12,
        description="Of a function: assertions, for example: assert f([1, 2]) == 3. Of a program: inputs with outputs.",
    )


Datum = CodeDatum | ProgramDatum | AnyDatum


def datum_for(forms: Mapping[str, Form]) -> type[BaseModel]:
    """The schema of a datum for a task whose skills have these forms."""
    programs = {form is Form.PROGRAM for form in forms.values()}
    return AnyDatum if len(programs) != 1 else ProgramDatum if True in programs else CodeDatum


def brief_for(forms: Mapping[str, Form]) -> str:
    """The description of problems of these forms, and of the form of each skill if there are several."""
    by_form: dict[Form, list[str]] = {}
    for skill, form in forms.items():
        by_form.setdefault(form, []).append(skill)
    parts = [read_brief("code")]
    for form, skills in by_form.items() if len(by_form) > 1 else ():
        parts.append(f"Problems of the skill{'s'[: len(skills) - 1]} {', '.join(skills)} ask for {form}.")
    return " ".join([*parts, *(read_brief(f"code-{form.name.lower()}") for form in by_form)])


def read_datum(datum: Datum, allowed: Sequence[Form]) -> tuple[Form, str, ast.Module]:
    """The form of a datum, its solution without fences, and the syntax tree of the solution.

    Raises:
        UnusableError: the solution is not valid Python, or the tests have another form or cannot fail.
    """
    solution = datum.solution.strip().removeprefix("```python").removeprefix("```").removesuffix("```").strip()
    tree = _parse(solution, "the solution")
    tests = datum.tests
    if runs := [test for test in tests if isinstance(test, ProgramTest)]:
        form = Form.PROGRAM
        _check_runs(runs)
    else:
        called = {name for test in tests for name in _find_called(str(test).strip())}
        form = Form.METHOD if "Solution" in called and Form.METHOD in allowed else Form.FUNCTION
        if not called & find_defined_names(solution):
            raise UnusableError("the tests call nothing that the solution defines")
    if form not in allowed:
        wanted = " or ".join(allowed)
        raise UnusableError(f"expected {wanted}, so tests that are {' or '.join(_TESTS[kind] for kind in allowed)}")
    return form, solution, tree


def datum_to_example(datum: Datum, asked: str, skill: str, subskill: str, allowed: Sequence[Form]) -> Example:
    """The training example of a datum, with its tests as metadata.

    Arguments:
        asked: the prompt of the task, with a place for the `{question}`.
        allowed: the forms of the task's problems.

    Raises:
        UnusableError: see `read_datum`.
    """
    form, solution, tree = read_datum(datum, allowed)
    question = datum.statement.strip()
    if form is Form.METHOD:
        question = _STARTER.format(statement=question, starter=_format_starter(tree))
    return make_example(asked.format(question=question), solution, datum, skill, subskill)


def make_example(question: str, solution: str, datum: Datum, skill: str, subskill: str) -> Example:
    """A question with its solution. The tests are metadata in the form that the quality check `executes` reads."""
    tests = datum.tests
    runs = [test for test in tests if isinstance(test, ProgramTest)]
    inputs, outputs = [run.input.removesuffix("\n") + "\n" for run in runs], [run.output for run in runs]
    assertions = "\n".join(str(test).strip() for test in tests)
    metadata = {"tests": {"inputs": inputs, "outputs": outputs} if runs else assertions}
    return Example((Message("user", question),), f"```python\n{solution}\n```", skill, subskill, solution, metadata)


def _format_starter(tree: ast.Module) -> str:
    """The class `Solution` of a program with the signatures of its public methods, as in LiveCodeBench."""
    lines = ["class Solution:"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            lines += [f"    {_format_head(method)}" for method in methods if not method.name.startswith("_")]
    return "\n".join(lines)


def _format_head(function: ast.FunctionDef) -> str:
    """The first line of a function.

    >>> _format_head(ast.parse("def f(x: int, *, y=2) -> int:\\n    return x").body[0])
    'def f(x: int, *, y=2) -> int:'
    """
    returns = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
    return f"def {function.name}({ast.unparse(function.args)}){returns}:"


def begin_function(tree: ast.Module, tests: Sequence[str], statement: str) -> str:
    """The start of a program that a model completes, as in HumanEval: imports, signature, and the statement as docstring."""
    called = [name for test in tests for name in _find_called(test.strip())]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    wanted = next((functions[name] for name in called if name in functions), None)
    if wanted is None:
        raise UnusableError("the tests call no function that the solution defines")
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    head = "\n".join([*imports, "", ""]) if imports else ""
    text = statement.replace("\\", "\\\\").replace('"' * 3, "'" * 3).replace("\n", "\n    ")
    return f'{head}{_format_head(wanted)}\n    """{text}\n    """\n'


def _check_runs(tests: Sequence[ProgramTest]) -> None:
    if len({test.input.split() and test.input for test in tests}) < 2:
        raise UnusableError("all tests have the same input; give tests with different inputs")
    if len({tuple(test.output.split()) for test in tests}) < 2:
        raise UnusableError("all tests expect the same output; give tests with different outputs")
    if not all(test.output.strip() for test in tests):
        raise UnusableError("a test expects no output; give tests whose output is not empty")


def _find_called(test: str) -> list[str]:
    """The names that an assertion calls, in order."""
    tree = _parse(test, f"the test {test[:60]!r}")
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        raise UnusableError(f"the test {test[:60]!r} is not one assertion")
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [function.id for function in calls if isinstance(function, ast.Name)]


def _parse(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except PARSE_ERRORS as error:
        raise UnusableError(f"{what} is not valid Python: {getattr(error, 'msg', error)}") from error
