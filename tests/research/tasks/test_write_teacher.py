"""The task `write_teacher`: a teacher sees tables only, and its actions decide what unseen students learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from research_judges import load_judge

from palaestra.research.judge.evaluation import EvaluationSplit, read_only_mounts, sandbox_environment
from palaestra.research.tasks.task import Grade, InvalidSubmission, JudgeResult
from palaestra.sandbox.base import Limits, SandboxCommand

NAME = "write_teacher"
SMALL = {
    "skills": ("percent", "clock"), "rounds": 1, "lesson_size": 32, "first_lesson": 8, "validation": 8, "pool": 64,
    "device": "cpu",
}  # fmt: skip
TEACHER = "def plan_lessons(skills, tables):\n    return [[{} for skill in skills] for table in tables]\n"
Judge = Callable[..., JudgeResult]


@pytest.fixture
def judge_teacher(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge a teacher with two students and two skills."""
    judge = load_judge(NAME)
    scope: dict[str, Any] = judge._evaluate.__globals__
    monkeypatch.setitem(scope, "STUDENTS", 2)
    monkeypatch.setitem(scope, "load_function", lambda path, name: lambda: SMALL)

    def judge_text(text: str, split: EvaluationSplit = "validation") -> JudgeResult:
        return judge.judge({"teacher.py": text.encode()}, split)

    return judge_text


@pytest.mark.backends  # It teaches eight students, twice.
def test_equal_teachers_have_equal_scores(judge_teacher: Judge) -> None:
    """The same number everywhere is the same division."""
    outcomes = [judge_teacher(TEACHER.format(number)) for number in (0.0, 0.5)]
    assert isinstance(outcomes[0], Grade) and isinstance(outcomes[1], Grade), outcomes  # noqa: PT018
    assert outcomes[0].score == outcomes[1].score


def test_the_test_split_shows_nothing_of_the_tables(judge_teacher: Judge) -> None:
    show = "def plan_lessons(skills, tables):\n    raise ValueError(str(tables[0]))\n"
    validation, test = judge_teacher(show), judge_teacher(show, "test")
    assert isinstance(validation, InvalidSubmission) and isinstance(test, InvalidSubmission)  # noqa: PT018
    assert "ValueError: [[" in validation.reason
    assert "[[" not in test.reason


@pytest.mark.backends
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2.0", "from -1 to 1"),
        ("float('nan')", "from -1 to 1"),
        ("True", "from -1 to 1"),
        ("'percent'", "from -1 to 1"),
        ("0.0 for _ in tables] + [0.0", "one list of 2 numbers for each of 2 tables"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_other_actions_are_refused(judge_teacher: Judge, value: str, expected: str) -> None:
    outcome = judge_teacher(TEACHER.format(value))
    assert isinstance(outcome, InvalidSubmission), outcome
    assert expected in outcome.reason


@pytest.mark.backends  # It takes a quarter of a minute.
def test_the_practice_script_runs_in_a_workspace() -> None:
    """With the data of /data, since the generators of problems are not there."""
    judge = load_judge(NAME)
    code = f"import practice, sys\npractice.get_options = lambda: {SMALL}\nsys.argv[1:] = ['--students', '2']\npractice.main()\n"
    command = SandboxCommand(
        ("python3", "-c", code),
        judge.task.starter_files(),
        limits=Limits(wall_seconds=300, cpu_seconds=120, memory=4 << 30, processes=256),
        env=sandbox_environment(judge.task),
        read_only=read_only_mounts(judge.task, judge.data),
    )
    result = judge.sandbox.run(command)
    assert result.ok, result.error_text
    assert "mean" in result.text.splitlines()[-1]
