"""Score answers: check beforehand that it can be done, and run slow scorers side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore

from palaestra.core.checks import short_repr
from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Failure, FailureCause, Problem, Score
from palaestra.core.user_code import describe_location, describe_origin
from palaestra.tasks.base import Task

THREADS = 2 * (os.cpu_count() or 1)
"""Scorers that run at once. Judged programs have twice as much wall time as CPU time, so that two can share a core."""


def check_scoring(task: Task) -> None:
    """Raise if answers to `task` cannot be scored here, for example because there is no sandbox.

    Recipes and environments call this before they ask a model anything.
    """
    check = getattr(task, "check_scoring", None)
    if check is not None:
        check()


def score(task: Task, problem: Problem, completion: Completion) -> Score | Failure:
    """Score one answer. A scorer is a plugin: whatever it raises is its failure and no score.

    Raises:
        TaskError: it returned something else than a `Score` or a `Failure`.
    """
    try:
        outcome: object = task.score(problem, completion)
    except Exception as error:
        return Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}{describe_origin(error)}")
    if isinstance(outcome, Score | Failure):
        return outcome
    raise TaskError(
        f"{type(task).__name__}.score returned {short_repr(outcome)}{describe_location(task.score)}; "
        "expected a Score or a Failure"
    )


def score_all(task: Task, answers: Sequence[tuple[Problem, Completion]]) -> list[Score | Failure]:
    """Score answers in their order; in several threads if the task allows it (`concurrent_scoring`)."""
    if len(answers) < 2 or not has_concurrent_scoring(task):
        return [score(task, *answer) for answer in answers]
    with ThreadPoolExecutor(min(THREADS, len(answers)), "score") as threads:
        return list(threads.map(lambda answer: score(task, *answer), answers))


def has_concurrent_scoring(task: Task) -> bool:
    """Whether `task.score` may be called by several threads at once."""
    return bool(getattr(task, "concurrent_scoring", False))


def scoring_slots(task: Task) -> BoundedSemaphore:
    """A semaphore that admits as many threads to `task.score` as may call it at once."""
    return BoundedSemaphore(THREADS if has_concurrent_scoring(task) else 1)
