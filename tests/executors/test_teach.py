"""A teach run on an executor: workers score the answers and write the examples, with the result of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest

from palaestra import teach
from palaestra.core.records import Completion, Failure, FailureCause, Message, Request, Sampling
from palaestra.engines.mock import MockEngine
from palaestra.executors.base import Pool, Resources, open_executor
from palaestra.runs.run import Run
from palaestra.tasks import evaluate as evaluation
from palaestra.tasks.evaluate import EvaluationState, EvaluationWorkers, WorkerEngine

PLAN = {
    "rounds": 1,
    "lesson_size": 8,
    "validation": 1,
    "test": 1,
    "epochs": 1,
    "skills": ("clock", "groups"),
    "answer_tokens": 24,
}


def read(folder: Path) -> list[object]:
    with Run.open(folder, read_only=True) as run:
        store = run.store
        return [store.attempts(phase) for phase in ("0/validation", "0/test", "1/validation", "1/test")]


@pytest.mark.backends
def test_scoring_in_workers_gives_the_result_of_one_process(tmp_path: Path) -> None:
    summaries = [
        teach(**PLAN, executor=name, out=tmp_path / name[:6], progress=False).summary  # type: ignore[arg-type]
        for name in ("inline", "processes:1")
    ]
    assert read(tmp_path / "inline") == read(tmp_path / "proces")
    ignored = {"seconds", "executor"}
    assert {k: v for k, v in summaries[0].items() if k not in ignored and "seconds" not in k} == {
        k: v for k, v in summaries[1].items() if k not in ignored and "seconds" not in k
    }


def echo(request: Request, index: int) -> str:
    return request.messages[-1].text.upper()


def make_echo() -> MockEngine:
    return MockEngine(echo)


def test_a_writer_in_workers_answers_in_order() -> None:
    requests = [Request((Message("user", f"text {k}"),), Sampling(), k) for k in range(3 * evaluation.REQUESTS + 1)]
    with (
        open_executor("processes:2") as executor,
        EvaluationWorkers.open(executor, Resources(), dict, make_echo) as workers,
    ):
        answers = WorkerEngine("echo", workers.pool).generate(requests)
    texts = [[a.text for a in several if isinstance(a, Completion)] for several in answers]
    assert texts == [[f"TEXT {k}"] for k in range(len(requests))]


def die(request: Request, index: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def make_dying() -> tuple[dict[str, Any], MockEngine]:
    return {}, MockEngine(die)


def test_requests_whose_workers_died_have_failures() -> None:
    with open_executor("processes:1") as executor, executor.open_pool(make_dying, attempts=1) as pool:
        engine = WorkerEngine("echo", cast("Pool[EvaluationState]", pool))
        [[failure]] = engine.generate([Request((Message("user", "text"),), Sampling(), 0)])
    assert isinstance(failure, Failure)
    assert failure.cause is FailureCause.WORKER
