"""Ask an engine the problems of a task, and score what it says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from palaestra.core.errors import TaskError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Attempt, Completion, Failure, FailureCause, Problem, Score, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Answer, Engine, Request, Sampling
from palaestra.runs.ledger import LedgerEntry
from palaestra.tasks.base import Task

CHUNK = 256
"""Problems that are asked at once, and whose attempts are stored in one transaction."""

Keep = Callable[[Sequence[Attempt], LedgerEntry], None]


def evaluate(
    task: Task,
    problems: Sequence[Problem],
    engine: Callable[[], Engine],
    *,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    phase: str = "evaluate",
    round_: int = 0,
    known: Sequence[Attempt] = (),
    keep: Keep = lambda attempts, cost: None,
    listener: Listener = ignore,
) -> list[Attempt]:
    """Attempts at all `problems`, in their order.

    Arguments:
        engine: gives the engine when it is first needed; never called if everything is `known`.
        known: attempts from before an interruption, in whole chunks as `keep` received them.
        keep: is handed each finished chunk with its cost.

    The chunks are cut the same way every time, so an evaluation that goes on after an interruption
    asks exactly the batches that it would have asked.
    """
    if len({problem.id for problem in problems}) < len(problems):
        raise TaskError(f"task '{task.name}' gave two problems the same id; every id must be unique")
    attempts = list(known)
    listener(Event(phase, len(attempts), len(problems), round_))
    while len(attempts) < len(problems):
        chunk = problems[len(attempts) : len(attempts) + CHUNK]
        working = engine()
        start = time.perf_counter()
        requests = [Request(p.messages, sampling, Seeds(seed).derive("request", p.id).integer()) for p in chunk]
        answers = [several[0] for several in working.generate(requests)]
        made = [_attempt(task, problem, answer) for problem, answer in zip(chunk, answers, strict=True)]
        usage = sum((answer.usage for answer in answers if isinstance(answer, Completion)), Usage())
        cost = LedgerEntry(phase, working.name, len(chunk), usage, time.perf_counter() - start)
        keep(made, cost)
        attempts += made
        listener(Event(phase, len(attempts), len(problems), round_))
    return attempts


def _attempt(task: Task, problem: Problem, answer: Answer) -> Attempt:
    if isinstance(answer, Failure):
        return Attempt(problem, None, answer)
    outcome: Score | Failure
    try:
        outcome = task.score(problem, answer)
    except Exception as error:  # A scorer is a plugin: whatever it raises is its failure, not a score.
        outcome = Failure(FailureCause.SCORER, f"{type(error).__name__}: {error}")
    return Attempt(problem, answer, outcome)
