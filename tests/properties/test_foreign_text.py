"""A run ends, stores and reads back arbitrary text of models, servers, agents and environments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from chat_server import Call, Reply, Server
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from number_task import number_task

from palaestra.core.errors import WriterError
from palaestra.core.records import Answer, Attempt, Completion, Failure, Message, Request, Score, Split
from palaestra.envs.turn import Reply as TurnReply
from palaestra.envs.turn import TurnEnv, TurnStopReason
from palaestra.recipes.evaluate.recipe import evaluate
from palaestra.recipes.research.recipe import run_research
from palaestra.recipes.teach.recipe import teach
from palaestra.recipes.train.recipe import train
from palaestra.report import write_report
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run
from palaestra.tasks.base import make_task
from palaestra.tasks.evaluate import choose
from palaestra.tasks.evaluate import evaluate as run_task

NASTY = [
    "\ud800", "Answer: \udfff4", "\0", "Answer: 4\0", "\u202e4 :rewsnA", "\x1b[2J\x07Answer: 4", "\U0010ffff", "\r\n" * 40,
    "﻿Answer: ４", "```python\nx = '\\ud800'\n```", '{"name": "\\ud800", "arguments": {"a": "\\udc00"}}', "$" * 999, "\\" * 999,
]  # fmt: skip
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
ANY = st.text(st.characters(), max_size=60) | st.sampled_from(NASTY)


def read_attempts(folder: Path) -> list[Attempt]:
    with Run.open(folder, read_only=True) as run:
        return [attempt for phase in run.store.phases() for attempt in run.store.attempts(phase)]


@FEW
@given(st.lists(ANY, min_size=4, max_size=8))
@pytest.mark.parametrize("task", ["math-skills", "tools-skills"])
def test_evaluate_keeps_any_answer_and_scores_it(
    task: str, tmp_path_factory: pytest.TempPathFactory, answers: Sequence[str]
) -> None:
    folder = tmp_path_factory.mktemp("evaluate") / "run"
    with Server(lambda call, times: Reply(answers[len(call.asked) % len(answers)])) as server:
        result = evaluate(task=task, model=server.model, limit=8, out=folder)
    kept = read_attempts(folder)
    assert len(kept) == 8
    assert all(isinstance(attempt.outcome, Score) for attempt in kept), "a strange answer is a wrong one, not a failure"
    assert result.summary["failures"] == {}
    assert write_report(folder).stat().st_size


class Fixed:
    """An engine that says one thing."""

    name = "fixed"

    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        return [[Completion(self.text)] for _ in requests]


@pytest.mark.parametrize("text", ["\ud800" + "87654 " * 1_666_666, "(" * 10_000_000])
@pytest.mark.parametrize("task", ["math-skills", "tools-skills", "vision-skills", "code-skills"])
def test_an_answer_of_ten_megabytes_is_kept_and_wrong(task: str, text: str, tmp_path: Path) -> None:
    asked = make_task(task)
    with Run.create(tmp_path / "run", "evaluate", {}) as run:
        run_task(
            asked,
            choose(asked, Split.TEST, 0, 0, limit=2),
            lambda: Fixed(text),
            keep=lambda attempts, cost: run.store.add_attempts("0/test", attempts, cost),
        )
    kept = read_attempts(tmp_path / "run")
    assert [attempt.correct for attempt in kept] == [False, False]
    assert {len(attempt.completion.text) for attempt in kept if attempt.completion} == {len(text)}


@FEW
@example(texts=["0", "0", "0", "", "0", "\r\n"])  # A question of white space alone.
@given(st.lists(ANY, min_size=6, max_size=6))
def test_teach_checks_stores_and_reports_any_lesson(
    tmp_path_factory: pytest.TempPathFactory, texts: Sequence[str]
) -> None:
    folder = tmp_path_factory.mktemp("teach") / "run"

    def write(call: Call, times: int) -> Reply:
        k = len(call.asked) + times
        data = [
            {"question": f"What is {k}+1? {texts[k % 6]}", "reasoning": texts[(k + 1) % 6], "answer": f"{k + 1}"},
            {"question": texts[(k + 2) % 6], "reasoning": f"{k}+2={k + 2}", "answer": texts[(k + 3) % 6]},
        ]
        return Reply(json.dumps({"hypothesis": texts[k % 6], "data": data}))

    # Where nothing that it wrote can be taught, the run says so.
    with Server(write) as server, suppress(WriterError):
        teach(
            skills=("addition",),
            rounds=1,
            lesson_size=4,
            validation=2,
            test=2,
            epochs=1,
            threads=1,
            answer_tokens=8,
            teacher="open_ended",
            writer=server.model,
            cache=str(folder.parent / "calls.sqlite"),
            out=folder,
        )
    with Run.open(folder, read_only=True) as run:
        assert run.summary is not None
        assert (run.store.lesson(1) is None) == (run.summary["gain"] is None)
        assert run.summary["rounds"] == (run.store.lesson(1) is not None)
    assert write_report(folder).stat().st_size


class Says(TurnEnv):
    """Says strange things and asks for anything."""

    texts: Sequence[str] = NASTY

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.start = int(self.np_random.integers(len(self.texts)))
        return [Message("user", self.texts[self.start])]

    def respond(self, message: Message) -> TurnReply:
        text = self.texts[(self.start + self.turn) % len(self.texts)]
        over = self.turn == 2
        return TurnReply((text,), float(self.start % 2), TurnStopReason.SOLVED if over else None, info={"said": text})


@pytest.fixture
def says_env() -> Iterator[str]:
    gymnasium.register("Says-v0", entry_point=Says)
    yield "Says-v0"
    del gymnasium.registry["Says-v0"]


def test_train_keeps_the_trajectories_of_any_conversation(says_env: str, tmp_path: Path) -> None:
    train(
        env=says_env,
        iterations=1,
        episodes=8,
        num_envs=8,
        group_size=4,
        evaluation=0,
        threads=1,
        max_tokens=4,
        keep_trajectories=8,
        out=tmp_path / "run",
    )
    with Run.open(tmp_path / "run", read_only=True) as run:
        kept = run.store.trajectories(1)
    assert len(kept) == 8
    assert all(trajectory.segments for trajectory in kept)


@FEW
@given(st.lists(ANY, min_size=3, max_size=3))
def test_research_keeps_the_steps_of_any_agent(tmp_path_factory: pytest.TempPathFactory, texts: Sequence[str]) -> None:
    folder = tmp_path_factory.mktemp("research")

    def act(call: Call, times: int) -> Reply:
        turn = len(call.body["messages"])
        if turn > 6:
            return Reply("```\nsubmit\n```")
        if turn > 4:
            return Reply("```\nprintf '\\xff\\xed\\xa0\\x80\\000'; python3 -c 'raise ValueError(chr(0xd800))'\n```")
        return Reply(f"{texts[0]}\n```\necho {texts[1]}\n```{texts[2]}")

    with Server(act) as server:
        result = run_research(
            task=str(number_task(folder)),
            agent="model",
            model=server.model,
            steps=6,
            out=folder / "run",
            cache=str(folder / "calls.sqlite"),
        )
    assert not result.summary["failures"]
    with Run.open(folder / "run", read_only=True) as run:
        steps = run.store.steps(Step, 0)
    assert len(steps) > 2
    assert not any(isinstance(step.failure, Failure) for step in steps)
    assert re.search("<html", write_report(folder / "run").read_text())
