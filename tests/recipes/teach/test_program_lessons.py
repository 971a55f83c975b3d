"""Whole runs on published data sets of programs with input and output."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server

from palaestra.core.errors import SandboxError
from palaestra.recipes.evaluate.recipe import evaluate
from palaestra.recipes.teach import recipe as teach
from palaestra.runs.run import Run
from palaestra.sandbox import make_sandbox

SMALL: dict[str, Any] = {
    "rounds": 1, "validation": 2, "test": 2, "epochs": 1, "answer_tokens": 16, "threads": 1, "teacher": "no_state",
    "task": "livecodebench", "skills": ("programs",),
}  # fmt: skip


@pytest.fixture
def contest_options(tmp_path: Path) -> dict[str, str]:
    """The task options for a folder of problems in the format of LiveCodeBench, two per split."""
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    rows = []
    for number, day in enumerate(("2023-06-01", "2023-10-01", "2024-03-01") * 2):
        cases = json.dumps([{"input": f"{number}\n", "output": f"{number + 5}\n", "testtype": "stdin"}])
        rows.append(
            {
                "question_id": f"q{number}",
                "question_content": f"Read n. Print n plus 5, case {number}.",
                "platform": "atcoder",
                "difficulty": "easy",
                "contest_date": f"{day}T00:00:00",
                "public_test_cases": cases,
                "private_test_cases": cases,
            }
        )
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"path": str(folder)}


def make_program(factor: int, *outputs: int) -> dict[str, Any]:
    tests = [{"input": str(n), "output": str(output)} for n, output in enumerate(outputs)]
    statement = f"The input is one whole number. Print it times {factor}, on one line."
    return {"statement": statement, "solution": f"n = int(input())\nprint({factor} * n)", "tests": tests}


def test_programs_that_fail_their_own_tests_are_dropped(contest_options: dict[str, str], tmp_path: Path) -> None:
    def write(call: Call, times: int) -> Reply:
        if "all tests expect the same output; give tests with different outputs" in call.asked:
            return Reply(json.dumps({"data": [make_program(7, 0, 7)]}))
        kind = next(
            kind
            for kind in ("easy", "medium", "hard")
            if f'of the kind "{kind}"' in json.dumps(call.body["messages"]).replace("\\", "")
        )
        data = {"easy": make_program(3, 0, 0), "medium": make_program(8, 0, 7), "hard": make_program(11, 0, 11, 22)}
        return Reply(json.dumps({"data": [data[kind]]}))

    with Server(write) as server:
        result = teach.teach(
            out=tmp_path / "run",
            writer=server.model,
            cache=str(tmp_path / "calls.sqlite"),
            lesson_size=3,
            top_up=0,
            task_kwargs=contest_options,
            **SMALL,
        )
    assert len(server.calls) == 4  # The one whose tests tell nothing was asked again, with the reason.
    assert all("Each test is an input with the exact output" in json.dumps(call.body) for call in server.calls)
    assert result.summary["examples"] == 2
    assert result.summary["dropped"] == {"executes: fails its tests": 1}
    with Run.open(result.folder, read_only=True) as run:
        lesson = run.store.lesson(1)
    assert lesson is not None
    assert sorted(example.metadata["tests"]["outputs"] for example in lesson.examples) == [
        ["0", "11", "22"],
        ["0", "7"],
    ]


def test_plans_are_evaluated_by_the_metrics_of_their_benchmark(tmp_path: Path) -> None:
    plan = [{"id": 0, "name": "image captioning", "args": {"image": "a.jpg"}}]
    rows = [{"id": k, "user_request": f"What is on a.jpg? ({k})", "plan_str": str(plan)} for k in range(4)]
    data = tmp_path / "data"
    data.mkdir()
    (data / "test_human_verified_filtered.json").write_text("\n".join(map(json.dumps, rows)))

    def answer(call: Call, times: int) -> Reply:
        right = "(0)" in call.asked or "(1)" in call.asked
        return Reply(json.dumps({"nodes": plan if right else [plan[0] | {"name": "count"}]}))

    with Server(answer) as server:
        result = evaluate(
            out=tmp_path / "run",
            task="mnms",
            task_kwargs={"path": data},
            model=server.model,
        )
    assert result.report.accuracy == 0.5
    assert {"tool F1", "argument name F1", "edge F1", "edit distance"} <= set(json.dumps(result.summary).split('"'))
