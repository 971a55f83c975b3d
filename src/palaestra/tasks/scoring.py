"""Score answers, in several threads if the task allows it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore

from palaestra.core.checks import short_repr
from palaestra.core.errors import TaskError
from palaestra.core.plugins import describe_location, describe_origin
from palaestra.core.records import Completion, Failure, FailureCause, Problem, Score
from palaestra.tasks.base import Task, get_hooks

THREADS = 2 * (os.cpu_count() or 1)
"""Threads that score at once. Programs have twice as much wall time as CPU time, so two can share a core."""


def score(task: Task, problem: Problem, completion: Completion) -> Score | Failure:
    """Score one answer. An exception of the scorer becomes a `Failure`.

    Raises:
        TaskError: the scorer returned neither a `Score` nor a `Failure`.
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
    """Score answers, in order; in several threads if the task allows it (`concurrent_scoring`)."""
    if len(answers) < 2 or not get_hooks(task).concurrent_scoring:
        return [score(task, *answer) for answer in answers]
    with ThreadPoolExecutor(min(THREADS, len(answers)), "score") as threads:
        return list(threads.map(lambda answer: score(task, *answer), answers))


def scoring_slots(task: Task) -> BoundedSemaphore:
    """A semaphore for the threads that may call `task.score` at once."""
    return BoundedSemaphore(THREADS if get_hooks(task).concurrent_scoring else 1)
