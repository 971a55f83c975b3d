"""Whole runs with a misbehaving writer: the student is not harmed, and the run reports the reason."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server

from palaestra.core.errors import SandboxError, WriterError
from palaestra.core.records import Split
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.sandbox import make_sandbox
from palaestra.tasks.math.task import MathSkills

SMALL: dict[str, Any] = {
    "skills": ("geometry", "percent"), "rounds": 1, "lesson_size": 8, "validation": 3, "test": 3, "epochs": 1,
    "answer_tokens": 24, "threads": 1, "teacher": "open_ended",
}  # fmt: skip


def run_writer(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    settings = SMALL | {"writer": server.model, "cache": str(folder.parent / "calls.sqlite")} | values
    return teach.teach(out=folder, **settings)


def reply_with(*data: dict[str, Any]) -> Reply:
    return Reply(json.dumps({"hypothesis": "", "data": data}))


def write_sum(left: int, right: int) -> dict[str, str]:
    result = str(left + right)
    return {"question": f"What is {left}+{right}?", "reasoning": f"{left}+{right}={result}", "answer": result}


def run_without_gain(folder: Path, run: Callable[[], Any]) -> dict[str, Any]:
    """Run `run`, check that it ends with an error and without a gain, and return its summary."""
    with pytest.raises(WriterError):
        run()
    with Run.open(folder, read_only=True) as opened:
        assert (opened.store.curves(), opened.store.lesson_rounds()) == ({}, [])
        summary = opened.summary or {}
    assert (summary["examples"], summary["gain"], summary["after"]) == (0, None, None)
    return summary


def test_writer_that_leaks_problems_teaches_nothing(tmp_path: Path) -> None:
    """The worst case of contamination: the validation questions that the prompt shows come back as data."""
    test = MathSkills().problems(Split.TEST, 3, 0, SMALL["skills"])

    def repeat(call: Call, times: int) -> Reply:
        shown = re.findall(r"The student was asked:\n(.+)", call.asked)
        asked = shown[0] if shown else test[times % len(test)].messages[0].text
        return reply_with({"question": asked, "reasoning": "It is so", "answer": "7"})

    with Server(repeat) as server:
        summary = run_without_gain(tmp_path / "run", lambda: run_writer(server, tmp_path / "run"))
        assert any("The student was asked" in call.asked for call in server.calls)
        assert not any("The right answer is" in call.asked for call in server.calls)
    assert summary["delivered"] == 0
    assert set(summary["dropped"]) == {"overlap: repeats a validation problem"}
    assert "repeats a validation problem" in write_report(tmp_path / "run").read_text()


def test_writer_sees_validation_answers_only_if_set(tmp_path: Path) -> None:
    with Server(lambda call, times: reply_with(write_sum(70 + len(call.asked), 21))) as server:
        run_writer(server, tmp_path / "run", references=True)
        asked = [call.asked for call in server.calls]
    assert all("The right answer is" in item for item in asked if "The student was asked" in item)
    assert any("The student was asked" in item for item in asked)


def test_repeated_examples_are_taught_once(tmp_path: Path) -> None:
    with Server(lambda call, times: reply_with(write_sum(71352, 21877), write_sum(71352, 21877))) as server:
        result = run_writer(server, tmp_path / "run", rounds=2)
        assert len(server.calls) >= 4
    assert result.summary["examples"] == 1
    assert set(result.summary["dropped"]) == {"duplicates: exact duplicate"}


def test_programs_that_fail_their_own_tests_are_not_taught(tmp_path: Path) -> None:
    try:
        make_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    marked = tmp_path / "executed"
    broken = {
        "statement": "Write `double(n)` that returns twice n.",
        "solution": f"def double(n):\n    open({str(marked)!r}, 'w')\n    return 3 * n",
        "tests": ["assert double(2) == 4", "assert double(0) == 0"],
    }
    with Server(lambda call, times: reply_with(broken)) as server:
        values: dict[str, Any] = {
            "task": "code-skills",
            "skills": ("lists",),
            "validation": 1,
            "test": 1,
            "lesson_size": 2,
        }
        summary = run_without_gain(tmp_path / "run", lambda: run_writer(server, tmp_path / "run", **values))
    assert "executes: fails its tests" in summary["dropped"]
    assert not marked.exists()  # Executed, but not out here.


def test_local_weights_may_write_and_failures_have_a_cause(tmp_path: Path) -> None:
    own = SMALL | {"writer": "nano", "cache": str(tmp_path / "calls.sqlite")}
    summary = run_without_gain(tmp_path / "run", lambda: teach.teach(out=tmp_path / "run", **own))
    assert sum(summary["writer_failures"].values()) > 0


@pytest.mark.parametrize("accumulate", [1, 3])
def test_budget_ends_a_run_in_the_middle_of_a_lesson(accumulate: int, tmp_path: Path) -> None:
    """Also where several calls of the teacher make one lesson: the run ends, and the end is measured."""
    settings = SMALL | {"rounds": 9, "budget": 13}
    result = teach.teach(out=tmp_path / "run", **settings, accumulate=accumulate)
    assert (result.summary["examples"], result.summary["rounds"]) == (13, 2)
    assert result.summary["after"] is not None
    assert result.trajectory.terminated
    assert not result.trajectory.truncated
    with Run.open(result.folder, read_only=True) as run:
        assert [len(run.store.lesson(round_).examples) for round_ in (1, 2)] == [8, 5]  # type: ignore[union-attr]
        assert run.store.phases()[-1] == f"2/{Split.TEST}"
