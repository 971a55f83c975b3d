from itertools import islice
from typing import Any

import pytest

from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.tasks.code.corpus import IN_FULL, corpus
from palaestra.tasks.code.extraction import find_fenced
from palaestra.tasks.code.family import FAMILY

EXAMPLES = list(islice(corpus(Seeds(0).generator()), 600))


def of_kind(kind: str) -> list[Example]:
    examples = [example for example in EXAMPLES if example.skill == kind]
    assert len(examples) > 5
    return examples


def run(*programs: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for program in programs:
        exec(program, scope)
    return scope


def test_written_tests_pass() -> None:
    for example in of_kind("tests"):
        (code,), (tests,) = find_fenced(example.messages[-1].text), find_fenced(example.response)
        run(code, tests)


def test_a_repaired_function_passes_the_test_that_failed() -> None:
    for example in of_kind("repair"):
        question = example.messages[-1].text
        test = next(line for line in question.split("\n") if line.startswith("assert"))
        (broken,), (repaired,) = find_fenced(question), find_fenced(example.response)
        run(repaired, test)
        with pytest.raises(Exception):  # noqa: B017, PT011
            run(broken, test)


@pytest.mark.parametrize("kind", ["value", "trace"])
def test_answers_are_the_results_of_the_calls(kind: str) -> None:
    checked = 0
    for example in of_kind(kind):
        question, answer = example.messages[-1].text, example.response.rpartition("Answer: ")[2]
        if codes := find_fenced(question):
            name = codes[0].partition("def ")[2].partition("(")[0]
            call = next(part for part in question.split("`") if part.startswith(f"{name}("))
            assert repr(eval(call, run(codes[0]))) == answer
            checked += 1
    assert checked > 5


def test_every_kind_of_a_skill_occurs() -> None:
    drawn = {(example.skill, example.subskill) for example in EXAMPLES}
    assert drawn >= {(skill, subskill) for skill in IN_FULL for subskill in FAMILY[skill]}
