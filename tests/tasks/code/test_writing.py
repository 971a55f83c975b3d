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


def make_example(name: str, skill: str, datum: dict[str, Any]) -> Any:
    task = get_task_name(name)
    return task.make_example(task.datum.model_validate(datum), skill, "")


@pytest.mark.parametrize(
    ("name", "skill"), [("code-skills", "programs"), ("code-contests", "competition"), ("livecodebench", "programs")]
)
def test_program_example_has_inputs_and_outputs(name: str, skill: str) -> None:
    example = make_example(name, skill, PROGRAM)
    assert example.messages[0].text == f"{STATEMENT}\n\nAnswer with Python code in a fenced code block."
    assert example.response == "```python\nprint(2 * int(input()))\n```"
    assert example.metadata["tests"] == {"inputs": ["2\n", "0\n"], "outputs": ["4", "0\n"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tests": [{"input": "2", "output": "4"}, {"input": "2", "output": "4"}]}, "same input"),
        ({"tests": [{"input": "2", "output": "4"}, {"input": "3", "output": " 4\n"}]}, "same output"),
        ({"tests": [{"input": "2", "output": "4"}, {"input": "3", "output": "\n"}]}, "no output"),
        ({"solution": "print(2 *"}, "valid Python"),
        ({"tests": FUNCTION["tests"]}, "tests call nothing"),
    ],
)
def test_tests_that_cannot_fail_are_rejected(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableError, match=why):
        make_example("livecodebench", "programs", PROGRAM | change)


def test_datum_of_another_form_is_rejected() -> None:
    with pytest.raises(UnusableError, match="class Solution"):
        make_example("livecodebench", "methods", FUNCTION)
    for skill in ("programs", "lists", "a skill that a model discovered"):
        for datum in (PROGRAM, FUNCTION):
            assert make_example("code-skills", skill, datum).skill == skill
    assert get_task_name("code-contests").datum.model_json_schema()["properties"]["tests"]["items"] == {
        "$ref": "#/$defs/ProgramTest"
    }


def test_brief_names_the_form_of_each_skill() -> None:
    brief = get_task_name("livecodebench").brief()
    assert "Problems of the skill programs ask for a program that reads its standard input and prints." in brief
    assert "Problems of the skill methods ask for a method of a class Solution." in brief
    assert "standard input" not in get_task_name("humaneval").brief()
    assert "assertions" not in get_task_name("code-contests").brief()


def test_prompts_match_the_data_set() -> None:
    example = make_example("humaneval", "functions", FUNCTION)
    begun = 'import math\n\ndef double(n: int) -> int:\n    """Write `double(n)` that returns twice n.\n    """\n'
    assert example.messages[0].text.endswith(f"```python\n{begun}```")
    assert example.metadata["tests"] == "assert double(2) == 4\nassert double(0) == 0"
    method = make_example("livecodebench", "methods", METHOD)
    starter = "Complete this class:\nclass Solution:\n    def double(self, n: int) -> int:\n\n"
    assert starter in method.messages[0].text
    odd = FUNCTION | {"statement": 'Return "\\n" or """x""".\nThat is all.'}
    compile(
        make_example("humaneval", "functions", odd).messages[0].text.split("```python\n")[1].removesuffix("```"),
        "x",
        "exec",
    )
