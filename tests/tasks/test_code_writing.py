"""Programming examples of a language model: functions, methods, and programs with inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest

from palaestra.tasks.base import UnusableError, make_task
from palaestra.tasks.code.task import CodeTask

STATEMENT = "The input is a line with a number n. Print the double of n."
PROGRAM: dict[str, Any] = {
    "statement": STATEMENT,
    "solution": "```python\nprint(2 * int(input()))\n```",
    "tests": [{"input": "2", "output": "4"}, {"input": "0\n", "output": "0\n"}],
}
FUNCTION: dict[str, Any] = {
    "statement": "Write `double(n)` that returns twice n.",
    "solution": "import math\n\ndef double(n: int) -> int:\n    return 2 * n",
    "tests": ["assert double(2) == 4", "assert double(0) == 0"],
}
METHOD: dict[str, Any] = {
    "statement": "Return twice n.",
    "solution": "class Solution:\n    def double(self, n: int) -> int:\n        return 2 * n\n\n    def _own(self):\n        pass",
    "tests": ["assert Solution().double(2) == 4", "assert Solution().double(0) == 0"],
}


def get_task_name(name: str) -> CodeTask:
    task = make_task(name)
    assert isinstance(task, CodeTask)
    return task


def taught(name: str, skill: str, datum: dict[str, Any]) -> Any:
    task = get_task_name(name)
    return task.make_example(task.datum.model_validate(datum), skill, "")


@pytest.mark.parametrize(
    ("name", "skill"), [("code-skills", "programs"), ("code-contests", "competition"), ("livecodebench", "programs")]
)
def test_a_program_is_taught_with_its_inputs_and_outputs(name: str, skill: str) -> None:
    example = taught(name, skill, PROGRAM)
    assert example.messages[0].text == f"{STATEMENT}\n\nAnswer with Python code in a fenced code block."
    assert example.response == "```python\nprint(2 * int(input()))\n```"
    assert example.metadata["tests"] == {"inputs": ["2\n", "0\n"], "outputs": ["4", "0\n"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tests": [{"input": "2", "output": "4"}, {"input": "2", "output": "4"}]}, "same input"),
        ({"tests": [{"input": "2", "output": "4"}, {"input": "3", "output": " 4\n"}]}, "same output"),
        ({"tests": [{"input": "2", "output": "4"}, {"input": "3", "output": "\n"}]}, "expects no output"),
        ({"solution": "print(2 *"}, "the solution is not valid Python"),
        ({"tests": FUNCTION["tests"]}, "the tests call nothing that the solution defines"),
    ],
)
def test_a_program_whose_tests_could_not_tell_a_wrong_one_is_not_taught(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        taught("livecodebench", "programs", PROGRAM | change)


def test_what_is_written_has_a_form_that_the_task_has() -> None:
    with pytest.raises(
        UnusableError, match=r"expected a program that reads .* or a method of a class Solution, so tests"
    ):
        taught("livecodebench", "methods", FUNCTION)
    for skill in ("programs", "lists", "a skill that a model discovered"):
        for datum in (PROGRAM, FUNCTION):
            assert taught("code-skills", skill, datum).skill == skill
    assert get_task_name("code-contests").datum.model_json_schema()["properties"]["tests"]["items"] == {
        "$ref": "#/$defs/ProgramTest"
    }


def test_the_brief_says_which_skill_asks_for_what() -> None:
    said = get_task_name("livecodebench").brief()
    assert "Problems of the skill programs ask for a program that reads its standard input and prints." in said
    assert "Problems of the skill methods ask for a method of a class Solution." in said
    assert "standard input" not in get_task_name("humaneval").brief()
    assert "assertions" not in get_task_name("code-contests").brief()


def test_a_function_for_human_eval_and_a_method_are_asked_as_their_sets_ask() -> None:
    example = taught("humaneval", "functions", FUNCTION)
    begun = 'import math\n\ndef double(n: int) -> int:\n    """Write `double(n)` that returns twice n.\n    """\n'
    assert example.messages[0].text.endswith(f"```python\n{begun}```")
    assert example.metadata["tests"] == "assert double(2) == 4\nassert double(0) == 0"
    method = taught("livecodebench", "methods", METHOD)
    starter = "Complete this class:\nclass Solution:\n    def double(self, n: int) -> int:\n\n"
    assert starter in method.messages[0].text
    odd = FUNCTION | {"statement": 'Return "\\n" or """x""".\nThat is all.'}
    compile(
        taught("humaneval", "functions", odd).messages[0].text.split("```python\n")[1].removesuffix("```"), "x", "exec"
    )
