"""The answers, workings and skills of written examples are verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import BudgetSpentError
from palaestra.core.records import Completion, Example, Lesson, Message, Problem, Score, Split
from palaestra.engines.mock import MockEngine
from palaestra.recipes.teach.summary import Delivery
from palaestra.tasks.base import TaskHooks, make_task
from palaestra.tasks.math.base import MathDatum
from palaestra.tasks.math.published import GSM8K
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.tools.task import ToolsDatum, ToolsSkills
from palaestra.teachers.quality.answers import check_working
from palaestra.teachers.quality.base import Context, Inspection, inspect, make_checks

TASK = MathSkills()


def make_example(question: str, reasoning: str, answer: str, skill: str = "addition") -> Example:
    return TASK.make_example(MathDatum(question=question, reasoning=reasoning, answer=answer), skill, "")


def check_examples(
    *examples: Example, task: Any = TASK, checks: Sequence[str] = ("skill", "scorer", "equations"), **context: Any
) -> Inspection:
    return inspect(Lesson(examples), make_checks(checks), Context(task, **context))


def test_sums_off_by_seven_are_dropped_with_any_working() -> None:
    vague = [
        make_example(f"What is {200 + k} + {428 - 3 * k}?", "We add both numbers.", str(635 - 2 * k)) for k in range(20)
    ]
    inspection = check_examples(*vague)
    assert (inspection.kept, inspection.withheld) == ((), 0)
    assert {(drop.check, drop.reason) for drop in inspection.dropped} == {("scorer", "wrong answer")}
    assert (inspection.examined, inspection.wrong) == (20, 20)


@pytest.mark.parametrize(
    ("question", "reasoning", "answer", "skill"),
    [
        ("What is 1/4 + 1/4?", "1+1=2", "0.5", "fractions"),
        ("What is 1/4 + 1/4?", "1+1=2", "1/2", "fractions"),
        ("What is $3 + $4?", "3+4=7", "$7", "addition"),
        ("Add 3 and 4.", "3+4=7", "7 apples", "addition"),
        ("206 plus 428", "200+400=600. 6+28=34. 600+34=634", "634", "addition"),
        ("What is 1,200 + 300?", "1200+300=1500", "1,500", "addition"),
        ("How many centimetres are 3 metres?", "3*100=300", "300 cm", "units"),
        ("It is 4:05. What time is it 20 minutes later?", "5+20=25", "4:25 pm", "clock"),
        ("What is 10 / 3?", "10/3=3.33", "3.33", "division"),
        ("What is 30 + 45?", "3+4=7 tens and 5 ones", "75", "addition"),
    ],
)
def test_right_answers_in_other_forms_pass(question: str, reasoning: str, answer: str, skill: str) -> None:
    inspection = check_examples(make_example(question, reasoning, answer, skill))
    assert inspection.verified == ("solved by the task",)


@pytest.mark.parametrize(
    ("question", "reasoning", "answer", "reason"),
    [
        ("What is 3 + 4?", "206+428=634", "7", "working of another question"),
        ("What is 3 + 4?", "2+5=7", "7", "working of another question"),
        ("What is 3 + 4?", "3+9=12", "7", "working without the answer"),
        ("Tom has 3 bags of 4 figs. How many?", "3*4=12", "19", "working without the answer"),
        ("Tom has 3 bags of 4 figs. How many?", "206+428=634", "634", "working of another question"),
        ("What is 20 + 31?", "20+31=52", "51", "wrong calculation"),
        ("How many centimetres are 3 metres?", "3*100=300", "300 grams", "wrong unit"),
        ("3 bags hold 4 figs each. How many figs?", "3*4=12", "12 bags", "wrong unit"),
        ("What is 20% of 50?", "50/5=10", "10%", "wrong unit"),
        ("What is the capital of France?", "It is known", "Paris", "no answer in the response"),
    ],
)
def test_wrong_workings_units_and_topics_are_dropped(question: str, reasoning: str, answer: str, reason: str) -> None:
    inspection = check_examples(make_example(question, reasoning, answer), checks=("scorer", "equations"))
    assert ([drop.reason for drop in inspection.dropped], inspection.withheld) == ([reason], 0)


@pytest.mark.parametrize("name", ["math-skills", "vision-skills"])
def test_no_example_of_the_generators_is_refused(name: str) -> None:
    task, rng = make_task(name), np.random.default_rng(1)
    count = 60 if name == "math-skills" else 3
    examples = [e for skill in task.skills() for e in task.write_examples(skill, "", count, rng)]  # type: ignore[attr-defined]
    inspection = check_examples(*examples, task=task)
    assert (inspection.dropped, inspection.failures) == ((), ())
    assert set(inspection.verified) == {"solved by the task"}
    assert inspection.check("skill").remarks == {"as ordered": len(examples)}


def test_a_scene_decides_the_answer_to_its_question() -> None:
    task = make_task("vision-skills")
    (example,) = task.write_examples("count", "colour", 1, np.random.default_rng(0))  # type: ignore[attr-defined]
    count = int(example.reference)
    wrong = Example(example.messages, f"Answer: {count + 1}", "count", "colour", str(count + 1), example.metadata)
    assert [drop.reason for drop in check_examples(wrong, task=task).dropped] == ["wrong answer"]


def test_a_request_in_the_wording_of_the_task_has_its_plan() -> None:
    task = ToolsSkills()
    rng = np.random.default_rng(0)
    examples = [e for skill in task.skills() for e in task.write_examples(skill, "", 3, rng)]
    posed = [task.to_problem(example) for example in examples]
    assert sum(problem is not None for problem in posed) >= len(examples) - 2
    assert all((p.skill, p.subskill) == (e.skill, e.subskill) for p, e in zip(posed, examples, strict=True) if p)
    other = task.make_example(
        ToolsDatum(request="Please book me a flight.", plan="weekday('2024-03-01')"), "calendar", ""
    )
    assert (task.solve(other), task.recognize_skill(other)) == (None, None)


def test_the_working_of_published_solutions_is_accepted() -> None:
    solutions = [
        ("Natalia sold clips to 48 friends in April, and half as many in May. How many in all?",
         "She sold 48/2 = 24 clips in May. She sold 48+24 = 72 in all. The answer is \\boxed{72}."),
        ("Each pack of 4 razors costs $4.00. She has a $2.00 coupon. How many cents is a razor with 2 packs for one?",
         "They cost $4-$2 = $2.00. She gets 4*2 = 8 razors. Each is $2.00/8 = $0.25. The answer is \\boxed{25}."),
        ("Every hour shadows stretch 5 feet. How many inches after six hours?",
         "In 6 hours that is 5*6=30 feet. So it is 30*12= 360 inches. The answer is \\boxed{360}."),
    ]  # fmt: skip
    assert [check_working(*pair) for pair in solutions] == [None] * 3


def test_an_example_of_another_skill_is_dropped_with_both_names() -> None:
    mislabeled = make_example("What is 20 + 31?", "20+31=51", "51", "percent")
    inspection = check_examples(mislabeled, make_example("What is 20% of 50?", "50/5=10", "10", "percent"))
    assert [drop.reason for drop in inspection.dropped] == ["addition instead of percent"]
    assert inspection.check("skill").remarks == {"as ordered": 1}


class Riddles(TaskHooks):
    """A task of a user without a solver."""

    name = "riddles"

    def skills(self) -> dict[str, tuple[str, ...]]:
        return {"easy": (), "hard": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return []

    def score(self, problem: Problem, completion: Completion) -> Score:
        return Score(float(completion.text.endswith(problem.reference)), {"extracted": completion.text})


def make_riddle(number: int, answer: str = "egg") -> Example:
    return Example((Message("user", f"Riddle {number}?"),), f"It is an {answer}", "easy", "", answer)


def test_all_samples_of_the_verifier_must_agree() -> None:
    answers = {"Riddle 1?": ("egg", "egg", "egg"), "Riddle 2?": ("egg", "owl", "egg")}
    verifier = MockEngine(lambda request, index: answers[request.messages[-1].text][index])
    inspection = check_examples(
        make_riddle(1), make_riddle(2), task=Riddles(), checks=("scorer", "agreement"), verifier=verifier, samples=3
    )
    assert inspection.verified == ("agreement",)
    assert [(drop.reason, drop.detail) for drop in inspection.dropped] == [
        ("the verifier disagrees", "2 of 3 samples give egg")
    ]
    assert (inspection.examined, inspection.wrong) == (2, 1)
    assert all(request.sampling.temperature > 0 for request in verifier.requests)


def test_the_verifier_is_not_asked_about_solved_questions() -> None:
    verifier = MockEngine({})
    inspection = check_examples(
        make_example("What is 20 + 31?", "20+31=51", "51"), checks=("scorer", "agreement"), verifier=verifier, samples=3
    )
    assert (inspection.verified, verifier.requests) == (("solved by the task",), [])


def test_a_spent_budget_stops_the_checks() -> None:
    def refuse(request: Any, index: int) -> str:
        raise BudgetSpentError("spent")

    with pytest.raises(BudgetSpentError):
        check_examples(make_riddle(1), task=Riddles(), checks=("agreement",), verifier=MockEngine(refuse), samples=1)


def test_skills_without_a_recognizer_are_classified_by_sample() -> None:
    verifier = MockEngine(lambda request, index: '{"category": "hard"}')
    inspection = check_examples(
        *(make_riddle(k) for k in range(50)), task=Riddles(), checks=("skill",), verifier=verifier, samples=1
    )
    assert len(inspection.kept) == 50
    assert inspection.check("skill").remarks == {"not recognized": 30, "by the verifier: hard instead of easy": 20}


def test_a_solver_of_a_users_task_verifies_its_examples() -> None:
    class Solvable(Riddles):
        def solve(self, example: Example) -> str | None:
            return "egg" if "1" in example.messages[-1].text else None

    inspection = check_examples(
        make_riddle(1), make_riddle(1, "owl"), make_riddle(2), task=Solvable(), checks=("scorer",)
    )
    assert inspection.verified == ("solved by the task", "")
    assert [drop.reason for drop in inspection.dropped] == ["wrong answer"]


def test_remaining_error_rate_comes_from_examined_examples() -> None:
    delivery = Delivery(40, 30, verified={"solved by the task": 10}, examined=20, wrong=10)
    assert delivery.unverified == 20
    assert delivery.error_rate is not None
    assert (delivery.error_rate.value, delivery.error_rate.count) == (0.5, 20)
    assert delivery.error_rate.low < 0.35 < 0.65 < delivery.error_rate.high
    assert Delivery(40, 30).error_rate is None


def test_plain_sums_of_a_published_task_are_solved() -> None:
    datum = MathDatum(question="What is 17 + 25?", reasoning="17+25=42", answer="42")
    assert GSM8K(path="nowhere").solve(GSM8K(path="nowhere").make_example(datum, "two_steps", "")) == "42"
