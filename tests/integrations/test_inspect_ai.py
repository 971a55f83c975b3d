"""Inspect AI: our tasks in it, and its tasks for `palaestra evaluate`. Runs in an environment with Inspect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from registries import isolate_registries

import palaestra
from palaestra.core.errors import TaskError
from palaestra.core.records import Answer, Completion, Failure, FailureCause, Request, Score, Split
from palaestra.engines.base import ENGINES, BaseEngine
from palaestra.runs.run import Run
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import choose, score

pytest.importorskip("inspect_ai")
import inspect_ai
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from palaestra.integrations.inspect_ai.exported import task_of

pytestmark = [pytest.mark.backends, pytest.mark.filterwarnings("ignore")]

TASKS = """
from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, choice, match, model_graded_qa, scorer
from inspect_ai.solver import basic_agent, generate, multiple_choice, prompt_template, system_message, use_tools
from inspect_ai.tool import tool

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
def faulty(value: str = "half"):
    return Task(SUMS[:2], scorer=bad(value))


@task
def several():
    return Task(SUMS, solver=[generate(), generate()], scorer=match())


@task
def tooled():
    return Task(SUMS, solver=[use_tools(open_page()), generate()], scorer=match())


@tool
def open_page():
    async def execute(url: str):
        '''Open a page.

        Args:
            url: the page
        '''
        return ""
    return execute


@tool
def double():
    async def execute(number: int):
        '''Twice a number.

        Args:
            number: any number
        '''
        return str(2 * number)
    return execute


@task
def doubling(kind: str = "loop"):
    solver = {
        "loop": [use_tools(double()), generate()],
        "basic_agent": basic_agent(tools=[double()], message_limit=10),
        "react": react(tools=[double()]),
    }[kind]
    return Task(SUMS[:3], solver=solver, scorer=match(numeric=True))


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


def make_model(answer: Callable[[str], str]) -> Any:
    """A model of Inspect that answers the text of the last message."""

    def generate(messages: Any, *rest: Any) -> Any:
        output = ModelOutput.from_content("mockllm", answer(messages[-1].text))
        output.usage = ModelUsage()  # Inspect would download a tokenizer to count the tokens.
        return output

    return get_model("mockllm/model", custom_outputs=generate, memoize=False)


def evaluate(task: Any, answers: dict[str, str], folder: Path, **arguments: Any) -> Any:
    """Run `inspect_ai.eval` with an answer for every question."""
    model = make_model(lambda text: answers.get(text, "Answer: 5"))
    (log,) = inspect_ai.eval(task, model=model, log_dir=str(folder), display="none", fail_on_error=False, **arguments)
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


def test_inspect_finds_our_tasks_by_their_registered_name(tmp_path: Path) -> None:
    arguments = {"name": "math-skills", "skills": "addition,subtraction", "limit": 4}
    log = evaluate("palaestra/task_of", {}, tmp_path, task_args=arguments)
    assert [sample.scores["palaestra"].answer for sample in log.samples] == ["5"] * 4
    assert {sample.metadata["skill"] for sample in log.samples} == {"addition", "subtraction"}


def test_a_task_of_inspect_gets_the_scores_of_inspect(tasks: Path, tmp_path: Path) -> None:
    task = make_task(f"inspect:{tasks}@sums", parts="published")
    problems = task.problems(Split.TEST, 0, seed=0)
    assert len(problems) == 40
    assert [message.role for message in problems[0].messages] == ["system", "user"]
    assert all(problem.messages[1].text.startswith("What is ") for problem in problems)
    texts = [f"I think {problem.reference if n % 2 else n}" for n, problem in enumerate(problems)]
    ours = {p.id: score(task, p, Completion(text)) for p, text in zip(problems, texts, strict=True)}
    answers = {problem.messages[-1].text: text for problem, text in zip(problems, texts, strict=True)}
    log = evaluate(f"{tasks}@sums", answers, tmp_path)
    theirs = {f"sums/{sample.id}": {"C": 1.0, "I": 0.0}[sample.scores["match"].value] for sample in log.samples}
    assert theirs == {name: outcome.value for name, outcome in ours.items() if isinstance(outcome, Score)}
    assert set(theirs.values()) == {0.0, 1.0}


def test_50_seeds_choose_the_samples_of_inspect(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@sums", parts="published")
    for seed in range(50):
        samples = [sample.id for sample in task._task.dataset]  # type: ignore[attr-defined]
        dataset = MemoryDataset([Sample(input="", id=name) for name in samples])
        dataset.shuffle(seed)
        expected = [f"sums/{sample.id}" for sample in dataset[:5]]
        assert [problem.id for problem in task.problems(Split.TEST, 5, seed)] == expected


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


@pytest.mark.parametrize(("grade", "value"), [("C", 1.0), ("I", 0.0)])
def test_a_model_graded_task_asks_the_grader(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, grade: str, value: float
) -> None:
    graders = {"openai/grader": make_model(lambda text: f"GRADE: {grade}")}
    monkeypatch.setattr("inspect_ai.model.get_model", graders.__getitem__)
    task = make_task(f"inspect:{tasks}@graded", parts="published", grader="openai/grader")
    outcome = score(task, task.problems(Split.TEST, 1, seed=0)[0], Completion("4"))
    assert isinstance(outcome, Score)
    assert outcome.value == value


def test_a_model_graded_task_without_a_grader_is_a_failure(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@graded", parts="published")
    outcome = score(task, task.problems(Split.TEST, 1, seed=0)[0], Completion("4"))
    assert isinstance(outcome, Failure)
    assert "model" in outcome.message.partition("raised")[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@several", "several times"),
        ("@tooled", r"tools.*own_tasks\.py@tooled.*palaestra/MODEL"),
        ("@boxed", "sandbox"),
        ("", "one task"),
        ("@none", ""),
    ],
)
def test_a_task_that_evaluate_cannot_run_is_an_error(tasks: Path, name: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        make_task(f"inspect:{tasks}{name}")


@pytest.mark.parametrize("kind", ["basic_agent", "react"])
def test_an_agent_as_the_solver_is_an_error_that_names_the_way(tasks: Path, kind: str) -> None:
    with pytest.raises(TaskError, match=r"`generate` once.*palaestra/MODEL"):
        make_task(f"inspect:{tasks}@doubling", args={"kind": kind})


class DoublingEngine(BaseEngine):
    """Calls `double` with the number of the question, then `submit` with the result if there is such a tool."""

    def __init__(self, name: str) -> None:
        self.name = self.identity = name

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        return [[Completion(self.answer(request))] for request in requests]

    def answer(self, request: Request) -> str:
        last = request.messages[-1]
        names = [tool["function"]["name"] for tool in json.loads(request.tools)]
        if last.role == "user":
            call = {"name": "double", "arguments": {"number": int(last.text.split(" + ")[0])}}
        elif "submit" in names:
            call = {"name": "submit", "arguments": {"answer": last.text}}
        else:
            return f"It is {last.text}"
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize("kind", ["loop", "basic_agent", "react"])
def test_inspect_plays_solvers_with_tools_with_our_engine(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    isolate_registries(monkeypatch, ENGINES)
    ENGINES.register("doubling", DoublingEngine)
    (log,) = inspect_ai.eval(
        f"{tasks}@doubling",
        model="palaestra/doubling:x",
        task_args={"kind": kind},
        log_dir=str(tmp_path),
        display="none",
    )
    assert log.status == "success", log.error
    assert [sample.scores["match"].value for sample in log.samples] == ["C"] * 3
    roles = [message.role for message in log.samples[0].messages if message.role != "system"]
    assert roles[:3] == ["user", "assistant", "tool"]


def test_inspect_eval_plays_our_task_with_our_model(tmp_path: Path) -> None:
    """nano gets the same scores in `inspect eval` as in `palaestra evaluate`."""
    settings = {"skills": "addition,clock", "problems": 6, "seed": 3}
    options = [part for name, value in settings.items() for part in ("-T", f"{name}={value}")]
    command = [sys.executable, "-m", "inspect_ai", "eval", "palaestra/task_of", "-T", "name=math-skills", *options]
    more = ["--model", "palaestra/nano", "--log-dir", str(tmp_path), "--display", "none"]
    subprocess.run([*command, *more], check=True, timeout=200, cwd=tmp_path)
    (file,) = tmp_path.glob("*.eval")
    log = read_eval_log(str(file))
    theirs = {str(sample.id): sample.scores["palaestra"].value for sample in log.samples}
    run = palaestra.evaluate(
        task="math-skills", model="nano", skills=("addition", "clock"), problems=6, seed=3, out=str(tmp_path / "run")
    )
    with Run.open(run.folder, read_only=True) as stored:
        (phase,) = stored.store.phases()
        ours = {attempt.problem.id: attempt.outcome.value for attempt in stored.store.attempts(phase)}
    assert len(ours) == 12
    assert theirs == ours


def test_our_recipe_evaluates_a_task_of_inspect(tasks: Path, tmp_path: Path) -> None:
    run = palaestra.evaluate(
        task=f"inspect:{tasks}@sums", model="nano", limit=6, max_tokens=8, out=str(tmp_path / "run")
    )
    assert run.summary["problems"] == 6
    assert run.report.failure_count == 0
    assert run.report.accuracy is not None


def test_the_splits_are_disjoint(tasks: Path) -> None:
    task = make_task(f"inspect:{tasks}@sums")
    parts = [{problem.id for problem in task.problems(split, 0, seed=0)} for split in Split]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 40
