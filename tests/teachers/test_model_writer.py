"""Lessons of a language model for every kind of task."""

import json
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import SettingsError
from palaestra.core.records import Attempt, Completion, Lesson, Report, Request, Score, Split
from palaestra.engines.mock import MockEngine
from palaestra.envs.lesson.state import StudentState, ValidationAttempt, to_validation_attempt
from palaestra.tasks.base import Task, WritableTask, make_task
from palaestra.teachers.base import TEACHERS, Order, make_teacher
from palaestra.teachers.model_writer import ModelWriter
from palaestra.teachers.prompts import TeacherPrompts

MATH = {"question": "What is 20+31?", "reasoning": "20+31=51", "answer": "51"}
CODE = {
    "statement": "Write `double(n)` that returns twice n.",
    "solution": "```python\ndef double(n):\n    return 2 * n\n```",
    "tests": ["assert double(2) == 4", "assert double(0) == 0"],
}
VISION = {
    "scene": {"items": [{"shape": "circle", "colour": "red", "size": "large", "x": 20, "y": 20}]},
    "question": "What colour is the circle?",
    "reasoning": "There is a red circle",
    "answer": "red",
}
TOOLS = {
    "request": "Which weekday is 5 days after 2024-03-01?",
    "plan": "day = add_days('2024-03-01', 5)\nweekday(day)",
}
NAMES = TEACHERS.names()
"""Teachers that need no trained policy."""
GOOD = {"math-skills": MATH, "code-skills": CODE, "vision-skills": VISION, "tools-skills": TOOLS}
BAD = {
    "math-skills": (MATH | {"answer": "5\n1"}, "several lines"),
    "code-skills": (CODE | {"tests": ["double(2) == 4", "assert double(0) == 0"]}, "is not one assertion"),
    "vision-skills": (
        VISION | {"scene": {"items": [VISION["scene"]["items"][0] | {"colour": "mauve"}]}},  # type: ignore[index]
        "unknown colour 'mauve'",
    ),
    "tools-skills": (TOOLS | {"plan": "summon(3)"}, "neither a tool nor a result"),
}


def make_writer(task: Task, content: Any, teacher: str = "no_state", **options: Any) -> tuple[ModelWriter, MockEngine]:
    """Make a writer whose model replies with `content`: data, a text, or a function of the request."""
    text = (
        content
        if callable(content)
        else lambda request, _: content if isinstance(content, str) else json.dumps({"data": content})
    )
    engine = MockEngine(text)
    return ModelWriter(task, engine, TeacherPrompts(), teacher, **options), engine


def make_state(task: Task, *wrong: ValidationAttempt) -> StudentState:
    return StudentState(0, Report("validation", 0.0, 0.0, 1.0, len(wrong), 0), wrong, 0, 100)


def make_attempt(skill: str, subskill: str, question: str = "Q?", reference: str = "") -> ValidationAttempt:
    return ValidationAttempt(question, "a wrong answer", "no", skill, subskill, reference)


@pytest.mark.parametrize("name", GOOD)
def test_datum_of_each_task_becomes_a_correct_example(name: str) -> None:
    task = make_task(name)
    assert isinstance(task, WritableTask)
    skill, parts = next(iter(task.skills().items()))
    built, _ = make_writer(task, [GOOD[name]])
    (written,) = built.write([Order(skill, parts[0], 1, "mend", "why")], np.random.default_rng(0))
    (example,) = written.examples
    assert (example.skill, example.subskill) == (skill, parts[0])
    assert not written.failures
    problem = task.problems(Split.TEST, 1, 0, [skill])[0]
    assert type(problem.messages[-1].content) is type(example.messages[-1].content)
    if name == "math-skills":
        assert example.response == "20+31=51. Answer: 51"
        assert example.reference == "51"
    if name == "code-skills":
        assert example.response.startswith("```python\ndef double")
        assert "assert double(0) == 0" in example.metadata["tests"]
    if name == "tools-skills":
        assert "add_days" in example.messages[-1].text
        assert "answer(" in example.response


@pytest.mark.parametrize("name", BAD)
def test_bad_reply_is_retried_with_a_reason_and_then_fails(name: str) -> None:
    task, (bad, reason) = make_task(name), BAD[name]
    skill = next(iter(task.skills()))
    built, engine = make_writer(task, [bad], tries=2)
    (written,) = built.write([Order(skill, "", 1, "mend", "why")], np.random.default_rng(0))
    assert not written.examples
    assert reason in written.failures[0].message
    assert len(engine.requests) == 2
    assert reason in engine.requests[1].messages[-1].text


def test_request_is_split_into_calls_and_keeps_its_order() -> None:
    task = make_task("math-skills")
    numbered = iter(range(1000))

    def reply_numbered(request: Request, index: int) -> str:
        first = next(numbered)
        return json.dumps({"data": [MATH | {"question": f"{first}.{k}?"} for k in range(20)]})

    built, engine = make_writer(task, reply_numbered, per_call=4)
    orders = [Order("addition", "", 10, "a", "r"), Order("clock", "", 3, "a", "r")]
    first, second = built.write(orders, np.random.default_rng(0))
    assert [len(first.examples), len(second.examples)] == [10, 3]
    assert [e.messages[0].text for e in first.examples] == [
        f"{c}.{k}?" for c, n in ((0, 4), (1, 4), (2, 2)) for k in range(n)
    ]
    assert len({request.seed for request in engine.requests}) == 4


def test_useless_data_among_good_ones_are_left_out_and_counted() -> None:
    task = make_task("math-skills")
    built, engine = make_writer(task, [MATH, MATH | {"answer": "5\n1"}, MATH])
    (written,) = built.write([Order("addition", "", 3, "a", "r")], np.random.default_rng(0))
    assert (len(written.examples), len(written.failures), len(engine.requests)) == (2, 1, 1)


@pytest.mark.parametrize("teacher", ["no_state", "open_ended", "skill_list", "skill_tree"])
def test_every_teacher_writes_with_a_model(teacher: str) -> None:
    task = make_task("math-skills")
    built, engine = make_writer(task, lambda request, _: json.dumps({"data": [MATH] * 10}), teacher)
    wrong = [make_attempt("clock", "past_hour", "It is 1:33 ...", "2:01")] * 3 + [make_attempt("percent", "tenths")]
    lesson = make_teacher(teacher, task, writer=built).write(make_state(task, *wrong), 12, np.random.default_rng(0))
    assert isinstance(lesson, Lesson)
    assert len(lesson.examples) == 12
    asked = "\n".join(m.text for request in engine.requests for m in request.messages)
    shows_errors = teacher in ("open_ended", "skill_list")
    assert ("It is 1:33 ..." in asked) is shows_errors
    assert ("a wrong answer" in asked) is shows_errors
    assert ("The right answer is 2:01" in asked) is shows_errors
    assert asked.count("{{") == 0
    if shows_errors:
        assert {example.metadata["ordered_skill"] for example in lesson.examples} <= {"clock", "percent"}
    assert {(example.skill, example.subskill) for example in lesson.examples} <= {
        ("addition", part) for part in task.skills()["addition"]
    }


@pytest.mark.parametrize("teacher", ["open_ended", "skill_list"])
@pytest.mark.parametrize("name", GOOD)
def test_student_answers_reach_the_writer_of_every_task(name: str, teacher: str) -> None:
    task = make_task(name)
    problem = task.problems(Split.VALIDATION, 1, 0, [next(iter(task.skills()))])[0]
    attempt = to_validation_attempt(Attempt(problem, Completion("a wrong answer"), Score(0.0)), True)
    built, engine = make_writer(task, [GOOD[name]], teacher)
    make_teacher(teacher, task, writer=built).write(make_state(task, attempt), 1, np.random.default_rng(0))
    asked = engine.requests[0].messages[-1].text
    assert f"The student was asked:\n{problem.messages[-1].text.strip()}" in asked
    assert "It answered:\na wrong answer" in asked
    assert f"The right answer is {problem.reference.strip()}" in asked


@pytest.mark.parametrize("teacher", NAMES)
@pytest.mark.parametrize("errors", [1, 2, 3])
def test_few_errors_are_enough_for_a_lesson_of_any_size(errors: int, teacher: str) -> None:
    task = make_task("math-skills")
    wrong = [make_attempt("clock", "past_hour", f"It is {k}:33 ...") for k in range(errors)]
    for size in (1, 2, 40):
        built, _ = make_writer(task, lambda request, _: json.dumps({"data": [MATH] * 10}), teacher)
        for taught in (
            make_teacher(teacher, task, writer=built).write(make_state(task, *wrong), size, np.random.default_rng(0)),
            make_teacher(teacher, task).write(make_state(task, *wrong), size, np.random.default_rng(0)),
        ):
            assert len(taught.examples) == size


def test_unusable_replies_make_a_lesson_of_failures() -> None:
    task = make_task("math-skills")
    built, _ = make_writer(task, "I would rather not.", tries=2)
    lesson = make_teacher("no_state", task, ("addition",), writer=built).write(
        make_state(task), 4, np.random.default_rng(0)
    )
    assert lesson.examples == ()
    assert any(d.action == "failed" and "no JSON" in d.reason for d in lesson.decisions)


def test_a_task_that_does_not_say_what_to_write_is_refused() -> None:
    class Bare:
        name = "bare"

        def skills(self) -> dict[str, tuple[str, ...]]:
            return {"a": ()}

        def problems(self, *_: Any) -> list[Any]:
            return []

        def score(self, problem: Any, completion: Completion) -> Any: ...

    with pytest.raises(SettingsError, match="no schema"):
        make_writer(Bare(), "")
    with pytest.raises(SettingsError, match=r"no generators .*'writer'"):
        make_teacher("no_state", Bare())
    with pytest.raises(SettingsError, match=r"'no_state' .*'cap'"):
        make_teacher("no_state", make_task("math-skills"), cap=0.5)


def test_without_errors_to_be_seen_state_free_shares_are_given() -> None:
    task = make_task("math-skills")
    for name in NAMES:
        lesson = make_teacher(name, task).write(make_state(task), 36, np.random.default_rng(0))
        assert {e.skill for e in lesson.examples} == set(task.skills()), name
