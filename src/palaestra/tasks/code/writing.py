"""What a language model writes for programming: a problem, a program, and tests that it must pass."""

from __future__ import annotations

import ast

from pydantic import BaseModel, Field

from palaestra.core.records import Example, Message
from palaestra.tasks.teaching import UnusableError

BRIEF = (
    "Programming problems in Python with a function to write. The statement says what the function is called, what its "
    "arguments are, what it returns, and what happens in the odd cases (an empty list, zero). The solution uses the "
    "standard library only. The tests are assertions that call the function with literal arguments."
)


class CodeDatum(BaseModel):
    """A programming problem with its solution and tests."""

    statement: str = Field(min_length=1, description="What the function must do, its name and arguments included.")
    solution: str = Field(min_length=1, description="The whole function in Python, without tests and without prose.")
    tests: list[str] = Field(min_length=2, max_length=12, description="Assertions, for example: assert f([1, 2]) == 3")


def example_of(datum: CodeDatum, asked: str, skill: str, subskill: str) -> Example:
    """The datum as it is taught; `asked` is how the task puts a `{question}`.

    Raises:
        UnusableError: the program is no Python, or a test is no assertion.
    """
    solution = datum.solution.strip().removeprefix("```python").removeprefix("```").removesuffix("```").strip()
    _check(solution, "the solution")
    for test in datum.tests:
        found = _check(test.strip(), f"the test {test.strip()[:60]!r}")
        if len(found.body) != 1 or not isinstance(found.body[0], ast.Assert):
            raise UnusableError(f"the test {test.strip()[:60]!r} is not one assertion")
    question = Message("user", asked.format(question=datum.statement.strip()))
    metadata = {"tests": "\n".join(test.strip() for test in datum.tests)}
    return Example((question,), f"```python\n{solution}\n```", skill, subskill, solution, metadata)


def _check(source: str, what: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnusableError(f"{what} is no Python: {getattr(error, 'msg', error)}") from error
