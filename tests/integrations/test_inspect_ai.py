"""Inspect AI: our tasks in it, and its tasks for `palaestra evaluate`. Runs in an environment with Inspect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Failure, FailureCause, Score, Split
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import choose, score

inspect_ai = pytest.importorskip("inspect_ai")
from inspect_ai.model import ModelOutput, get_model

from palaestra.integrations.inspect_ai.exported import task_of

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]

TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, choice, match, model_graded_qa, scorer
from inspect_ai.solver import generate, multiple_choice, prompt_template, system_message

SUMS = [Sample(input=f"{n} + {n}", target=str(2 * n), id=f"s{n}") for n in range(40)]
COLOURS = [Sample(input="The sky is", choices=["green", "blue"], target="B")]


@scorer(metrics=[accuracy()])
def bad(value):
    async def score(state, target):
        if value == "raises":
            raise RuntimeError("broken")
        if value == "blocks":
            import asyncio
            await asyncio.sleep(60)
        return Score(value={"nan": float("nan"), "two": 2.0, "list": [1.0], "half": "P"}[value])
    return score


@task
def sums(plus: str = "+"):
    chain = [system_message("Add."), prompt_template("What is {prompt}?"), generate()]
    return Task(SUMS, solver=chain, scorer=match(numeric=True))


@task
def colours():
    return Task(COLOURS, solver=multiple_choice(), scorer=choice())


@task
def faulty(value: str):
    return Task(SUMS[:2], scorer=bad(value))


@task
def several():
    return Task(SUMS, solver=[generate(), generate()], scorer=match())


@task
def boxed():
    return Task(SUMS, scorer=match(), sandbox="local")


@task
def graded():
    return Task(SUMS, scorer=model_graded_qa())
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("inspect") / "own_tasks.py"
    file.write_text(TASKS)
    return file


def evaluate(task: Any, answers: dict[str, str], folder: Path) -> Any:
    """Run `inspect_ai.eval` with an answer for every question."""

    def answer(messages: Any, *rest: Any) -> Any:
        return ModelOutput.from_content("mockllm", answers[messages[-1].text])

    (log,) = inspect_ai.eval(
        task, model=get_model("mockllm/model", custom_outputs=answer, memoize=False), log_dir=str(folder), display="none",
        fail_on_error=False,
    )  # fmt: skip
    return log


def test_200_answers_get_the_same_scores_in_inspect(tmp_path: Path) -> None:
    task = make_task("math-skills")
    problems = choose(task, Split.TEST, 12, 0, (), 200)
    assert len(problems) == 200
    texts = [f"Answer: {problem.reference if n % 3 else n}" for n, problem in enumerate(problems)]
    ours = {p.id: score(task, p, Completion(text)) for p, text in zip(problems, texts, strict=True)}
    answers = {problem.messages[-1].text: text for problem, text in zip(problems, texts, strict=True)}
    log = evaluate(task_of("math-skills", problems=12, limit=200), answers, tmp_path)
    assert log.status == "success"
    theirs = {str(sample.id): sample.scores["palaestra"].value for sample in log.samples}
    assert theirs == {name: outcome.value for name, outcome in ours.items() if isinstance(outcome, Score)}
    assert 0.5 < log.results.scores[0].metrics["accuracy"].value < 0.9


def test_a_failure_of_our_scorer_is_an_error_of_the_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from palaestra.tasks.math.task import MathSkills

    def fail(self: Any, problem: Any, completion: Any) -> Failure:
        return Failure(FailureCause.SCORER, "broken")

    monkeypatch.setattr(MathSkills, "score", fail)
    task = task_of("math-skills", skills="addition", problems=1)
    log = evaluate(task, {task.dataset[0].input[-1].text: "Answer: 5"}, tmp_path)
    assert "scorer: broken" in log.samples[0].error.message
    assert not log.samples[0].scores


def test_the_command_of_inspect_finds_our_tasks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inspect_ai", "eval", "palaestra/task_of", "-T", "name=math-skills"]
    command += ["-T", "skills=addition,clock", "-T", "limit=4", "--model", "mockllm/model", "--display", "none"]
    subprocess.run([*command, "--log-dir", str(tmp_path), "--log-format", "json"], check=True, timeout=120)
    (log,) = tmp_path.glob("*.json")
    assert len(json.loads(log.read_text())["samples"]) == 4


def test_a_task_of_inspect_gets_the_scores_of_inspect(tasks: Path, tmp_path: Path) -> None:
    task = make_task(f"inspect:{tasks}@sums", parts="published")
    problems = task.problems(Split.TEST, 0, seed=0)
    assert len(problems) == 40
    assert [(m.role, m.text) for m in problems[0].messages][0] == ("system", "Add.")
    texts = [f"I think {problem.reference if n % 2 else n}" for n, problem in enumerate(problems)]
    ours = {p.id: score(task, p, Completion(text)) for p, text in zip(problems, texts, strict=True)}
    answers = {problem.messages[-1].text: text for problem, text in zip(problems, texts, strict=True)}
    log = evaluate(f"{tasks}@sums", answers, tmp_path)
    theirs = {f"sums/{sample.id}": {"C": 1.0, "I": 0.0}[sample.scores["match"].value] for sample in log.samples}
    assert theirs == {name: outcome.value for name, outcome in ours.items() if isinstance(outcome, Score)}
    assert set(theirs.values()) == {0.0, 1.0}


def test_a_solver_that_reads_the_answer_takes_part_in_the_score(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@colours", parts="published")
    (problem,) = task.problems(Split.TEST, 0, seed=0)
    assert "B) blue" in problem.messages[-1].text
    assert [score(task, problem, Completion(f"ANSWER: {letter}")) for letter in "AB"] == [
        Score(0.0, {"extracted": "A", "explanation": "ANSWER: A"}),
        Score(1.0, {"extracted": "B", "explanation": "ANSWER: B"}),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("raises", "broken"), ("blocks", "did not return"), ("nan", "no score"), ("two", "0 to 1"), ("list", "one value")],
)
def test_a_bad_scorer_is_a_failure(tasks: Path, value: str, expected: str) -> None:
    task = make_task(f"inspect:{tasks}@faulty", args={"value": value}, parts="published", max_seconds=2.0)
    outcome = score(task, task.problems(Split.TEST, 1, seed=0)[0], Completion("4"))
    assert isinstance(outcome, Failure)
    assert outcome.cause is FailureCause.SCORER
    assert expected in outcome.message


def test_partial_credit_is_half(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@faulty", args={"value": "half"}, parts="published")
    assert score(task, task.problems(Split.TEST, 1, seed=0)[0], Completion("4")) == Score(0.5)


def test_a_model_graded_task_uses_the_grader(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@graded", parts="published", grader="mockllm/model")
    outcome = score(task, task.problems(Split.TEST, 1, seed=0)[0], Completion("4"))
    assert isinstance(outcome, Failure)  # The mock model writes no grade, which Inspect reports as no score.
    assert "grade" in outcome.message.lower()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@several", "calls the model several times"),
        ("@boxed", "needs a sandbox"),
        ("", "expected one task"),
        ("@none", ""),
    ],
)
def test_a_task_that_evaluate_cannot_run_is_an_error(tasks: Path, name: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        make_task(f"inspect:{tasks}{name}")


def test_the_splits_are_disjoint(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@sums")
    parts = [{problem.id for problem in task.problems(split, 0, seed=0)} for split in Split]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
