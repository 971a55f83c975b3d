"""Scoring: concurrent if the task allows it, and an error before generation if it is not possible."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from chat_server import Reply, Server
from small_coder import make_small_coder

from palaestra.core.errors import SandboxError
from palaestra.core.records import Completion, Failure, FailureCause, Message, Problem, Score, Split
from palaestra.envs.turn.tasks import ProblemSet, TaskVectorEnv
from palaestra.recipes.evaluate.recipe import evaluate
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.train.recipe import train
from palaestra.tasks.base import get_hooks, make_task
from palaestra.tasks.evaluate import score_all


class ConcurrentTask:
    """Every score waits until another one is under way."""

    name = "meeting"
    concurrent_scoring = True

    def __init__(self) -> None:
        self.together = threading.Barrier(2, timeout=20.0)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"all": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [Problem(str(k), (Message("user", f"Say {k}."),), str(k), "all") for k in range(per_skill)]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        self.together.wait()
        return Score(float(completion.text == problem.reference))


class SequentialTask(ConcurrentTask):
    """Scores one answer at a time, and breaks on some."""

    concurrent_scoring = False

    def __init__(self) -> None:
        self.busy = threading.Lock()

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        if completion.text == "break":
            raise RuntimeError("it broke")
        assert self.busy.acquire(blocking=False), "two at once"
        try:
            return Score(float(completion.text == problem.reference))
        finally:
            self.busy.release()


def test_answers_are_scored_concurrently_and_in_order() -> None:
    problems = ConcurrentTask().problems(Split.TEST, 8, 0)
    outcomes = score_all(ConcurrentTask(), [(p, Completion(p.id if int(p.id) % 2 else "no")) for p in problems])
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Score)] == [0.0, 1.0] * 4


def test_sequential_scorers_and_their_exceptions() -> None:
    problems = SequentialTask().problems(Split.TEST, 4, 0)
    outcomes = score_all(SequentialTask(), [(p, Completion("break" if p.id == "2" else p.id)) for p in problems])
    line = SequentialTask.score.__code__.co_firstlineno + 2
    assert outcomes[2] == Failure(FailureCause.SCORER, f"RuntimeError: it broke (test_scoring.py, line {line})")
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Score)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", [ConcurrentTask, SequentialTask])
def test_vector_environments_score_as_their_task_allows(kind: type[Any]) -> None:
    env = TaskVectorEnv(ProblemSet(kind(), problems=4), attempts=1, num_envs=4)
    env.reset(seed=0)
    rewards = env.step(["0", "1", "2", "3"])[1]
    assert set(rewards) <= {0.0, 1.0}
    env.close()


def test_token_environments_score_concurrently() -> None:
    env = gymnasium.make_vec(
        "CoTEnv-v0",
        num_envs=4,
        task=ConcurrentTask(),
        problems=4,
        max_tokens=1,
        tokenizer="nano",
        vectorization_mode="vector_entry_point",
    )
    env.reset(seed=0)
    infos = env.step(env.action_space.sample())[4]
    assert [response.failure for response in infos["responses"]] == [""] * 4, (
        "alone, each waits for another one in vain"
    )
    env.close()


@pytest.fixture
def no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system on which bubblewrap cannot make namespaces."""
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.usefixtures("no_sandbox")
@pytest.mark.parametrize("task", [pytest.param("code-skills", marks=pytest.mark.backends), "tools-skills"])
def test_no_model_is_called_without_a_sandbox(task: str, tmp_path: Path) -> None:
    model, coder = str(tmp_path / "coder"), make_small_coder()  # `nano` cannot read the examples.
    coder.weights.save_pretrained(model)
    coder.tokenizer.save_pretrained(model)
    reason = "bubblewrap cannot create a sandbox here .*this system does not let users create namespaces"
    with Server(lambda call, times: Reply("x")) as server:
        with pytest.raises(SandboxError, match=reason):
            evaluate(task=task, model=server.model, limit=1, out=tmp_path / "run")
        with pytest.raises(SandboxError, match=reason):
            teach(task=task, student=model, writer=server.model, validation=1, test=1, out=tmp_path / "run")
        assert server.calls == []
    for env in ("CoTEnv-v0", "palaestra/Task-v0"):
        with pytest.raises(SandboxError, match=reason):
            train(env=env, model=model, env_kwargs={"task": task}, iterations=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SandboxError, match=reason):
        get_hooks(make_task(task, shots=1)).check_scoring()


@pytest.mark.usefixtures("no_sandbox")
def test_tasks_without_a_sandbox_need_none() -> None:
    get_hooks(make_task("math-skills")).check_scoring()
