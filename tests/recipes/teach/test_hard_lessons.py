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


def run_of(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    settings = SMALL | {"writer": server.model, "cache": str(folder.parent / "calls.sqlite")} | values
    return teach.teach(out=folder, **settings)


def said(*data: dict[str, Any]) -> Reply:
    return Reply(json.dumps({"hypothesis": "", "data": data}))


def total(left: int, right: int) -> dict[str, str]:
    found = str(left + right)
    return {"question": f"What is {left}+{right}?", "reasoning": f"{left}+{right}={found}", "answer": found}


def failed(folder: Path, run: Callable[[], Any]) -> dict[str, Any]:
    """The summary of a run in which nothing was taught: it ends with an error, and has no gain."""
    with pytest.raises(WriterError, match="delivered none of"):
        run()
    with Run.open(folder, read_only=True) as opened:
        assert (opened.store.curves(), opened.store.lesson_rounds()) == ({}, [])
        summary = opened.summary or {}
    assert (summary["examples"], summary["gain"], summary["after"]) == (0, None, None)
    return summary


def test_a_writer_that_repeats_what_is_measured_on_teaches_nothing_and_the_report_says_why(tmp_path: Path) -> None:
    """The worst case of contamination: the validation questions that the prompt shows come back as data."""
    test = MathSkills().problems(Split.TEST, 3, 0, SMALL["skills"])

    def repeat(call: Call, times: int) -> Reply:
        shown = re.findall(r"The student was asked:\n(.+)", call.asked)
        asked = shown[0] if shown else test[times % len(test)].messages[0].text
        return said({"question": asked, "reasoning": "It is so", "answer": "7"})

    with Server(repeat) as server:
        summary = failed(tmp_path / "run", lambda: run_of(server, tmp_path / "run"))
        assert any("The student was asked" in call.asked for call in server.calls)
        assert not any("The right answer is" in call.asked for call in server.calls)
    assert summary["delivered"] == 0
    assert set(summary["dropped"]) == {"overlap: repeats a validation problem"}
    assert "repeats a validation problem" in write_report(tmp_path / "run").read_text()


def test_answers_of_validation_problems_reach_a_writer_only_if_the_setting_says_so(tmp_path: Path) -> None:
    with Server(lambda call, times: said(total(70 + len(call.asked), 21))) as server:
        run_of(server, tmp_path / "run", references=True)
        asked = [call.asked for call in server.calls]
    assert all("The right answer is" in one for one in asked if "The student was asked" in one)
    assert any("The student was asked" in one for one in asked)


def test_a_writer_that_says_the_same_again_and_again_teaches_it_once(tmp_path: Path) -> None:
    with Server(lambda call, times: said(total(71352, 21877), total(71352, 21877))) as server:
        found = run_of(server, tmp_path / "run", rounds=2)
        assert len(server.calls) >= 4
    assert found.summary["examples"] == 1
    assert set(found.summary["dropped"]) == {"duplicates: exact duplicate"}


def test_a_writer_whose_programs_fail_their_own_tests_teaches_nothing(tmp_path: Path) -> None:
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
    with Server(lambda call, times: said(broken)) as server:
        values: dict[str, Any] = {"task": "code-skills", "skills": (), "validation": 1, "test": 1, "lesson_size": 2}
        summary = failed(tmp_path / "run", lambda: run_of(server, tmp_path / "run", **values))
    assert "executes: fails its tests" in summary["dropped"]
    assert not marked.exists()  # Executed, but not out here.


def test_weights_on_this_machine_may_write_and_what_they_cannot_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    own = SMALL | {"writer": "nano", "cache": str(tmp_path / "calls.sqlite")}
    summary = failed(tmp_path / "run", lambda: teach.teach(out=tmp_path / "run", **own))
    assert sum(summary["writer_failures"].values()) > 0


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_budget_ends_a_run_of_many_rounds_in_the_middle_of_a_lesson(accumulate: int, tmp_path: Path) -> None:
    """Also where several calls of the teacher make one lesson: the run ends, and the end is measured."""
    settings = SMALL | {"rounds": 9, "budget": 13}
    found = teach.teach(out=tmp_path / "run", **settings, accumulate=accumulate)
    assert (found.summary["examples"], found.summary["rounds"]) == (13, 2)
    assert found.summary["after"] is not None
    assert found.trajectory.terminated
    assert not found.trajectory.truncated
    with Run.open(found.folder, read_only=True) as run:
        assert [len(run.store.lesson(round_).examples) for round_ in (1, 2)] == [8, 5]  # type: ignore[union-attr]
        assert run.store.phases()[-1] == f"2/{Split.TEST}"
