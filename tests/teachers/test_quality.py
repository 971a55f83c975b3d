"""The pipeline of quality checks, and the checks that execute, score, render and query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.core.errors import LessonError, SandboxError, UnknownNameError
from palaestra.core.records import (
    Attempt,
    Example,
    Failure,
    FailureCause,
    ImagePart,
    Lesson,
    Message,
    Problem,
    Score,
    Split,
    TextPart,
)
from palaestra.engines.mock import MockEngine
from palaestra.runs.files import from_json, to_data, to_json
from palaestra.sandbox import make_sandbox
from palaestra.tasks.base import make_task
from palaestra.tasks.code.judge import ProgramJudge
from palaestra.tasks.code.task import CodeSkills
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.tools.task import ToolsSkills
from palaestra.teachers.quality.answers import SOLVED, Equations, Scorer, Solved, holds, pose
from palaestra.teachers.quality.base import (
    CHECKS,
    KEPT,
    Check,
    CheckResult,
    Context,
    Inspection,
    drop,
    inspect,
    make_checks,
)
from palaestra.teachers.quality.execution import Executes, Picture
from palaestra.teachers.quality.texts import Readable
from palaestra.teachers.skills.records import Category, SkillMap
from palaestra.teachers.skills.task import Discovered

TASK = MathSkills()
DETERMINISTIC = ["readable", "overlap", "scorer", "equations", "picture", "duplicates"]


def make_example(question: str, response: str = "3+4=7. Answer: 7", skill: str = "addition") -> Example:
    return Example((Message("user", question),), response, skill)


def run_check(check: Check, *examples: Example, context: Context | None = None) -> Inspection:
    return inspect(Lesson(examples), [check], context or Context(TASK))


def list_drops(inspection: Inspection) -> list[tuple[int, str]]:
    return [(drop.position, drop.reason) for drop in inspection.dropped]


class Scripted:
    """A check with a scripted outcome: an error, a result, or a function of the example. It records its examples."""

    def __init__(self, name: str, rank: int, outcome: Any = KEPT, needed: bool = True) -> None:
        self.name, self.rank, self.outcome, self.needed = name, rank, outcome, needed
        self.given: list[Example] = []

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult | Failure]:
        self.given += examples
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return [self.outcome(example) if callable(self.outcome) else self.outcome for example in examples]


def test_checks_run_by_rank_on_the_examples_that_are_left() -> None:
    late = Scripted("late", 2, lambda e: drop("odd", "last", 0) if e.response == "3" else KEPT)
    early = Scripted("early", 1, lambda e: drop("even") if int(e.response) % 2 == 0 else KEPT)
    lesson = Lesson(tuple(make_example("?", str(k)) for k in range(6)))
    result = inspect(lesson, [late, early], Context(TASK))
    assert [report.name for report in result.checks] == ["early", "late"]
    assert [example.response for example in late.given] == ["1", "3", "5"]
    assert [example.response for example in result.kept] == ["1", "5"]
    assert result.positions == (1, 5)
    assert list_drops(result) == [(0, "even"), (2, "even"), (3, "odd"), (4, "even")]
    assert result.dropped[2].other == 1  # A place in the lesson, not among those that the check was given.
    assert (result.check("early").given, result.check("early").dropped, result.count) == (6, 3, 6)
    assert str(result) == "kept 2 of 6 examples; early dropped 3 (even 3); late dropped 1 (odd 1)"


@pytest.mark.parametrize("outcome", [ZeroDivisionError("no"), lambda e: drop("?", "", 99)])
def test_failing_check_is_reported_and_drops_its_examples(outcome: object) -> None:
    after = Scripted("after", 9)
    result = inspect(
        Lesson((make_example("a"), make_example("b"))), [Scripted("bad", 0, outcome), after], Context(TASK)
    )
    assert (result.kept, result.dropped, after.given) == ((), (), [])
    (broken,) = result.failures
    assert (broken.check, broken.positions, broken.withheld, len(broken.examples)) == ("bad", (0, 1), True, 2)
    assert "check 'bad' raised an error" in broken.failure.message
    assert "bad failed, withheld 2" in str(result)
    assert (result.withheld, result.count, result.check("bad").failed) == (2, 2, 2)


def test_a_check_that_gives_too_few_verdicts_has_broken() -> None:
    check = Scripted("short", 0)
    check.judge = lambda examples, context: [KEPT]  # type: ignore[method-assign]
    assert (
        "1 results for 2 examples"
        in inspect(Lesson((make_example("a"), make_example("b"))), [check], Context(TASK)).failures[0].failure.message
    )


def test_failing_optional_check_keeps_examples_and_is_reported() -> None:
    failure = Failure(FailureCause.ENGINE, "gone")
    check = Scripted("extra", 0, lambda e: failure if e.response == "x" else KEPT, needed=False)
    result = inspect(Lesson((make_example("a", "x"), make_example("b", "y"))), [check], Context(TASK))
    assert len(result.kept) == 2
    assert [(b.failure, b.positions, b.withheld) for b in result.failures] == [(failure, (0,), False)]
    assert result.withheld == 0


def test_report_of_a_lesson_without_passing_examples() -> None:
    lesson = Lesson(
        (make_example("3+4?", "Answer: seven"), make_example("", "7"), make_example("1+1?", "1+1=3. Answer: 3"))
    )
    result = inspect(lesson, make_checks(DETERMINISTIC), Context(TASK))
    assert result.kept == ()
    assert str(result).startswith("kept 0 of 3 examples; readable dropped 1 (empty 1); scorer dropped 2 (no answer")


def test_an_inspection_goes_through_the_store_and_back() -> None:
    lesson = Lesson(
        (
            make_example("3+4?"),
            make_example("3 + 4"),
            Example((Message("user", "5+5?"),), "Answer: 9", "addition", "", "10"),
        )
    )
    checks = [*make_checks(DETERMINISTIC), Scripted("bad", 99, ValueError("no"))]
    result = inspect(lesson, checks, Context(TASK))
    back = from_json(Inspection, to_json(result))
    assert (back.checks, back.kept, back.positions) == (result.checks, result.kept, result.positions)
    assert [drop.reason for drop in back.dropped] == [drop.reason for drop in result.dropped]
    assert back.failures == result.failures
    assert back.checks[0].seconds == result.checks[0].seconds


def test_registered_checks_are_ranked_by_cost() -> None:
    checks = make_checks()
    assert {check.name for check in checks} == set(CHECKS.names())
    order = [check.name for check in sorted(checks, key=lambda check: check.rank)]
    assert order == [
        "readable",
        "overlap",
        "skill",
        "scorer",
        "equations",
        "picture",
        "executes",
        "duplicates",
        "agreement",
        "solved",
    ]
    with pytest.raises(UnknownNameError, match="'scorer'"):
        make_checks(["scorers"])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 2)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_what_was_kept_would_be_kept_again_in_the_same_order(drawn: list[tuple[int, int, bool, int]]) -> None:
    wordings = ("What is {a}+{b}?", "{a} + {b} = ?", "Tom has {a} nuts and finds {b} more in the old wood. How many?")
    lesson = Lesson(
        tuple(
            make_example(wordings[how].format(a=a, b=b), f"{a}+{b}={a + b}. Answer: {a + b if right else ''}")
            for a, b, right, how in drawn
        )
    )
    context = Context(TASK, {Split.TEST: TASK.problems(Split.TEST, 2, 0)})
    checks = make_checks(DETERMINISTIC)
    first = inspect(lesson, checks, context)
    assert list(first.positions) == sorted(first.positions)
    assert [lesson.examples[k] for k in first.positions] == list(first.kept)
    assert len(first.kept) + len(first.dropped) == len(drawn)
    again = inspect(Lesson(first.kept), checks, context)
    assert (again.kept, again.dropped, again.failures) == (first.kept, (), ())
    assert inspect(lesson, checks, context) == first


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (make_example("3+4?", "  \n"), "empty"),
        (make_example("   "), "empty"),
        (Example((), "7"), "empty"),
        (make_example("a\ud800b"), "broken text"),
        (make_example("3+4?", "a\ufffdb"), "broken text"),
        (make_example("a\x00b"), "broken text"),
        (make_example("Le cafÃ© est froid"), "broken text"),
        (make_example("Le café – c'est “bon”\tou\nnon ½ 三"), ""),
    ],
)
def test_readable(example: Example, reason: str) -> None:
    assert list_drops(run_check(Readable(), example)) == ([(0, reason)] if reason else [])


def test_what_the_student_cannot_be_taught_is_dropped_alone() -> None:
    class Student:
        def check(self, examples: Sequence[Example]) -> None:
            if any(len(example.messages[-1].text) > 10 for example in examples):
                raise LessonError("an example has 11 tokens")

    context = Context(TASK, student=Student())  # type: ignore[arg-type]
    result = run_check(
        Readable(), make_example("short"), make_example("much too long"), make_example("short"), context=context
    )
    assert list_drops(result) == [(1, "the student cannot be taught it")]
    assert "11 tokens" in result.dropped[0].detail


def test_every_example_of_the_procedural_families_passes() -> None:
    for name in ("math-skills", "vision-skills"):
        task = make_task(name)
        examples = [
            e
            for s in task.skills()
            for e in task.write_examples(s, "", 4, np.random.default_rng(0))  # type: ignore[attr-defined]
        ]
        result = inspect(Lesson(tuple(examples)), make_checks(["readable", "scorer", "equations"]), Context(task))
        assert (result.dropped, result.failures) == ((), ())
        assert result.check("scorer").remarks == {}  # Each brings the answer that its draft was made with.
        # Where nothing but their own responses says what is right, the report does not hide it.
        bare = Lesson(tuple(replace(example, reference="", metadata={}) for example in examples))
        result = inspect(bare, make_checks(["scorer"]), Context(task))
        claimed = {"math-skills": {}, "vision-skills": {"scored by only the answer of its own response": len(examples)}}
        assert result.check("scorer").remarks == claimed[name]
        assert set(result.verified) == ({"solved by the task"} if name == "math-skills" else {""})


def test_scorer_compares_response_with_the_given_answer() -> None:
    question = (Message("user", "3+4?"),)
    right, wrong = (Example(question, f"Answer: {n}", "addition", "", "7") for n in (7, 8))
    result = run_check(Scorer(), right, wrong)
    assert list_drops(result) == [(1, "wrong answer")]
    assert result.dropped[0].detail == "expected '7'; got '8'"
    assert not result.check("scorer").remarks
    nonsense = run_check(Scorer(), Example((Message("user", "Who is it?"),), "Answer: 7", "addition", "", "some"))
    assert (nonsense.kept, nonsense.withheld, list_drops(nonsense)) == ((), 0, [(0, "no answer in the response")])


def test_a_task_may_say_itself_what_problem_an_example_poses() -> None:
    class Own(MathSkills):
        def to_problem(self, example: Example) -> Problem | None:
            asked = example.messages[-1].text
            return Problem("p", example.messages, str(len(asked)), "addition") if asked != "?" else None

    result = run_check(
        Scorer(),
        make_example("four", "Answer: 4"),
        make_example("four", "Answer: 5"),
        make_example("?"),
        context=Context(Own()),
    )
    assert list_drops(result) == [(1, "wrong answer")]
    assert result.check("scorer").not_judged == 1


def test_examples_of_published_data_are_scored_by_its_answers() -> None:
    class Published(MathSkills):
        is_procedural = False

        def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
            return [Problem("p", (Message("user", "Two and five?"),), "7", "addition")]

    context = Context(Published())
    result = run_check(
        Scorer(),
        make_example("Two and five?", "Answer: 7"),
        make_example("Two and five?", "Answer: 8"),
        context=context,
    )
    assert list_drops(result) == [(1, "wrong answer")]
    assert not result.check("scorer").remarks


@pytest.mark.parametrize(("reference", "other"), [("7", "8"), ("4:05", "4:06"), ("3, 1, 2", "3, 2, 1"), ("1/2", "2")])
def test_discovered_skills_are_scored_by_form_of_answer(reference: str, other: str) -> None:
    result = SkillMap({"p": "n"}, (Category("numbers", "", ("n",)),), {"p": "numbers"})
    right, wrong, unclear = (
        Example((Message("user", "?"),), f"Answer: {text}", "numbers", "n", known)
        for text, known in ((reference, reference), (other, reference), (reference, ""))
    )
    for task in (Discovered(TASK, result), Discovered(make_task("math-skills", shots=1), result), TASK):
        inspection = run_check(Scorer(), right, wrong, unclear, context=Context(task))
        assert list_drops(inspection) == [(1, "wrong answer")]
        assert (inspection.check("scorer").kept, inspection.check("scorer").not_judged) == (1, 1)


def test_worked_problems_that_are_shown_first_change_nothing() -> None:
    task = make_task("math-skills", shots=2)
    examples = task.write_examples("addition", "", 20, np.random.default_rng(0))  # type: ignore[attr-defined]
    context = Context(task, {Split.TEST: task.problems(Split.TEST, 5, 0, ["addition", "clock"])})
    result = inspect(Lesson(tuple(examples)), make_checks(DETERMINISTIC), context)
    assert {drop.check for drop in result.dropped} <= {"duplicates"}
    assert not result.failures


@pytest.mark.parametrize("kind", [CodeSkills, ToolsSkills])
def test_text_of_a_model_is_never_executed_on_the_host(kind: type[CodeSkills | ToolsSkills]) -> None:
    metadata = {"solution": "raise SystemExit", "name": "f", "inputs": [[1]], "plan": [], "offered": []}
    example = Example((Message("user", "?"),), "```python\nx\n```", "lists", "", "1", metadata)
    assert pose(example, Context(kind()))[0] is None


@pytest.mark.parametrize(
    ("response", "wrong"),
    [
        ("3*4=12. 12+5=17. Answer: 17", ""),
        ("3*4=12. 12+5=18. Answer: 18", "12+5=18"),
        ("So Tom pays 3 x $2.50 = $7.50 in all.", ""),
        ("So Tom pays 3 x $2.50 = $8.50 in all.", "3 x $2.50 = $8.50"),
        ("That makes 1,200 - 300 = 800 nuts.", "1,200 - 300 = 800"),
        ("10/3=3.33 and 10/3=3.4", ""),
        ("Half of it: 18kg x 1/6 = 3kg, and 20% of 50 = 10.", ""),
        ("x + 3 = 5, f(3) = 4, 2^3 = 8, 8/3 = 24/y", ""),
        ("-3 + 5 = 2", ""),
        ("2 + 3 * 4 = 14", ""),
        ("7 / 0 = 3", "7 / 0 = 3"),
    ],
)
def test_equations(response: str, wrong: str) -> None:
    result = run_check(Equations(), make_example("?", response))
    assert [drop.detail for drop in result.dropped] == ([wrong] if wrong else [])


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.sampled_from("+-*/"))
def test_equations_hold_just_where_python_says_so(a: int, b: int, sign: str) -> None:
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
    assert holds(f"{a}{sign}{b}", f"{value:.3f}" if sign == "/" else str(value))
    assert not holds(f"{a}{sign}{b}", f"{value + 2:.3f}" if sign == "/" else str(value + 1))


def test_an_image_must_show_its_scene() -> None:
    pytest.importorskip("PIL")
    from palaestra.tasks.vision.render import png_url, render_scene
    from palaestra.tasks.vision.scene import Item, Scene

    scene = Scene((Item("circle", "red", "large", 8, 40),))
    url = png_url(render_scene(scene))

    def make_image_example(shown: str, described: object = None) -> Example:
        message = Message("user", (ImagePart(shown), TextPart("Which colour?")))
        return Example((message,), "Answer: red", "colour", "", "red", {"scene": described} if described else {})

    good = to_data(scene)
    moved, outside = (to_data(replace(scene, items=(replace(scene.items[0], x=x),))) for x in (24, 900))
    examples = (
        make_image_example(url, good), make_image_example(url, moved), make_image_example(url, outside), make_image_example(url, {"items": 3}), make_image_example(url),
        make_image_example("data:image/png;base64,AAAA"), make_image_example("https://example.org/a.png", good), Example((Message("user", "?"),), "red", metadata={"scene": good}),
        make_example("no image"),
    )  # fmt: skip
    result = run_check(Picture(), *examples, context=Context(make_task("vision-skills")))
    assert list_drops(result) == [
        (1, "the image is not the scene"),
        (2, "the scene cannot be drawn"),
        (3, "the scene cannot be drawn"),
        (5, "an image cannot be read"),
        (7, "the image is not the scene"),
    ]
    assert result.check("picture").remarks == {
        "no scene to compare with": 1,
        "an image is on the web": 1,
        "no image": 1,
    }


@pytest.fixture(scope="module")
def program_judge() -> ProgramJudge:
    try:
        sandbox = make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    return ProgramJudge(sandbox, seconds=2.0)


def make_program_example(code: str, tests: object = None, name: str = "") -> Example:
    brought = {"tests": tests, "name": name} if tests else {}
    return Example((Message("user", "Write it."),), f"Here.\n\n```python\n{code}\n```", "lists", "", "", brought)


def test_programs_run_against_the_tests_that_they_come_with(program_judge: ProgramJudge) -> None:
    add, tests = "def add(a, b):\n    return a + b", "assert add(1, 2) == 3\nassert add(2, 2) == 4"
    echo = {"inputs": ["a\n"], "outputs": ["a\n"]}
    result = run_check(
        Executes(program_judge),
        make_program_example(add, tests),
        make_program_example(add.replace("+", "-"), tests),
        make_program_example(add, "assert add(1, 2 ==", "add"),
        make_program_example(add, "assert 1 + 1 == 2"),
        make_program_example(add, "add(1, 2)"),
        make_program_example("print(input())", echo),
        make_program_example("print('b')", echo),
        make_program_example("print(input())", {"inputs": ["a"], "outputs": []}),
        make_program_example(add),
        make_example("Write it.", "I cannot."),
        context=Context(make_task("code-skills")),
    )
    assert list_drops(result) == [
        (1, "fails its tests"),
        (2, "invalid tests"),
        (3, "invalid tests"),
        (4, "invalid tests"),
        (6, "fails its tests"),
        (7, "invalid tests"),
        (9, "no program"),
    ]
    assert "wrong_answer" in result.dropped[0].detail
    assert result.check("executes").remarks == {"no tests: parsed only": 1}


def test_a_sandbox_that_breaks_drops_no_program() -> None:
    class Dead:
        name = "dead"

        def run(self, *args: object, **kwargs: object) -> object:
            raise SandboxError("no room left")

    example = make_program_example("print(input())", {"inputs": ["a\n"], "outputs": ["a\n"]})
    result = run_check(Executes(ProgramJudge(Dead())), example, context=Context(make_task("code-skills")))  # type: ignore[arg-type]
    assert (result.dropped, result.withheld) == ((), 1)
    assert result.failures[0].failure.cause is FailureCause.SANDBOX


def test_plans_of_tools_must_run(program_judge: ProgramJudge) -> None:
    task = ToolsSkills()
    examples = [e for s in list(task.skills())[:3] for e in task.write_examples(s, "", 1, np.random.default_rng(0))]
    bad = [
        make_example("?", "```python\nanswer(no_such_tool(1))\n```", "calendar"),
        make_example("?", "```python\nanswer(3)\n```", "calendar"),
        make_example("?", "I cannot.", "calendar"),
    ]
    try:
        result = run_check(Executes(), *examples, *bad, context=Context(task))
    finally:
        task.close()
    assert list_drops(result) == [(3, "does not run"), (4, "no plan"), (5, "no plan")]
    assert not result.failures


def test_a_task_may_run_an_example_itself() -> None:
    class Own(MathSkills):
        def execute_example(self, example: Example) -> Score | Failure | None:
            if example.response == "broken":
                raise OSError("no disk")
            return None if example.response == "?" else Score(float(example.response == "good"), {"why": "because"})

    examples = [make_example("a", response) for response in ("good", "bad", "?", "broken", "bad")]
    result = run_check(Executes(), *examples, context=Context(Own()))
    assert list_drops(result) == [(1, "does not run"), (4, "does not run")]
    assert (result.positions, result.withheld) == ((0, 2), 1)
    assert "no disk" in result.failures[0].failure.message


def test_there_is_nothing_to_run_in_mathematics() -> None:
    assert run_check(Executes(), make_example("3+4?")).check("executes").not_judged == 1


def test_examples_that_the_student_solves_are_dropped() -> None:
    text: dict[str, str | Failure] = {
        "1+1?": "Answer: 2", "1+2?": "Answer: 4", "1+3?": Failure(FailureCause.ENGINE, "gone"),
    }  # fmt: skip
    engine, kept = MockEngine(text), list[Attempt]()
    context = Context(TASK, engine=lambda: engine, keep=lambda attempts, cost: kept.extend(attempts))
    examples = [make_example(question, f"Answer: {n}") for n, question in enumerate(text, start=2)]
    result = run_check(Solved(), *examples, examples[0], make_example("?", "4", "no skill"), context=context)
    assert list_drops(result) == [(0, SOLVED), (3, SOLVED)]
    assert result.check("solved").reasons == {SOLVED: 2}
    assert [(b.failure.message, b.positions, b.withheld) for b in result.failures] == [("gone", (2,), False)]
    assert result.positions == (1, 2, 4)
    assert len(kept) == len(engine.requests) == 3  # The same question is asked once.


def test_without_a_student_nothing_is_solved() -> None:
    assert run_check(Solved(), make_example("3+4?")).check("solved").remarks == {"no student to ask": 1}
