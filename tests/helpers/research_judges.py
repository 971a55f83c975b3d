"""Shared judges and submissions for the tests of the built-in research tasks."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from palaestra.core.errors import SandboxError
from palaestra.research.judge.evaluation import EvaluationSplit, SubmissionJudge, sandbox_for
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import JudgeResult, ResearchTask, TaskLimits, load_task
from palaestra.research.workspace.workspace import MeasuredSolution, measure


@cache
def load_judge(name: str, seconds: float | None = None) -> SubmissionJudge:
    """The judge of a task; with less time for the evaluation than the task gives, if so asked."""
    task = load_task(name)
    if seconds is not None:
        task = task.model_copy(update={"limits": TaskLimits(evaluation_seconds=seconds)})
    try:
        return SubmissionJudge(task, sandbox_for(task))
    except SandboxError as error:
        pytest.skip(str(error))


@cache
def measure_solution(name: str, which: str) -> MeasuredSolution:
    """The scores of a task's `baseline` or `reference`."""
    judge = load_judge(name)
    if which == "baseline":
        return measure(judge.task, judge.sandbox, judge, judge.task.baseline, {})
    return measure(judge.task, judge.sandbox, judge, judge.task.reference, judge.task.reference_files())


def judge_submission(name: str, text: str, split: EvaluationSplit = "validation", **more: bytes) -> JudgeResult:
    """What becomes of a submission whose only file, beside `more`, holds `text`."""
    judge = load_judge(name)
    return judge.judge({judge.task.submission.files[0]: text.encode(), **more}, split)


def load_part(task: ResearchTask | str, name: str, file: str = "evaluator.py") -> Any:
    """Something that a file of a task defines."""
    task = load_task(task) if isinstance(task, str) else task
    return load_function(task.folder / file, name)
