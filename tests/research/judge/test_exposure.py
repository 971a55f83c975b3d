"""Submitted code that sees hidden data: limits on what it can reveal, how often, and on time."""

from __future__ import annotations

import json
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.core.errors import SettingsError
from palaestra.core.records import FailureCause, Message, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import TurnStopReason
from palaestra.research.judge.evaluation import make_judge, play_field
from palaestra.research.tasks import data as secret
from palaestra.research.tasks.task import Grade, InvalidSubmission, load_task
from palaestra.research.workspace import workspace as baseline
from palaestra.research.workspace.env import MAX_CALLS, ResearchEnv
from palaestra.sandbox import make_sandbox

TASK = """
name: doubled
title: Twice the number
description: Hand in f.py with a function f.
metric: {name: right, direction: higher}
submission: {files: [f.py]}
limits: {steps: 30, seconds: 600, command_seconds: 20, validations: 3, evaluation_seconds: 10}
"""
EVALUATOR = """
from palaestra.research.tasks.task import SubmissionError


def evaluate(evaluation):
    hidden = {"validation": 1234567, "test": 7654321}[evaluation.split]
    with evaluation.program("f.py") as program:
        answer = program.call("f", hidden)
    if answer == "break":
        raise RuntimeError(f"the evaluator broke over {hidden}")
    if answer == "exit":
        raise SystemExit(3)
    if answer == "long":
        raise RuntimeError("x" * 100_000)
    if answer == "none":
        return {"right": None}
    if answer == "infinite":
        return {"right": float("inf")}
    if not isinstance(answer, int):
        raise SubmissionError(f"f must return a number; got {str(answer)[:80]}")
    return {"right": float(answer == 2 * hidden)}
"""
RAISES = "def f(x): raise ValueError(f'{x:,} ' * 100)"
SHOWS = "def f(x): return [str(x)]"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exposure") / "doubled"
    (folder / "starter").mkdir(parents=True)
    (folder / "task.yaml").write_text(TASK)
    (folder / "evaluator.py").write_text(EVALUATOR)
    (folder / "starter" / "f.py").write_text("def f(x):\n    return 1\n")
    return folder


@pytest.fixture
def env(task: Path) -> Iterator[ResearchEnv]:
    created = ResearchEnv(task, parser="identity")
    created.reset(seed=0)
    yield created
    created.close()


def submit_code(env: ResearchEnv, code: str, command: str) -> str:
    """What the agent is told of a submission."""
    env.step(f"cat > f.py <<'END'\n{code}\nEND")
    return env.step(command)[0].messages[-1].text


@pytest.mark.parametrize(
    "code", [RAISES, SHOWS, "def f(x):\n    import os\n    os.write(2, str(x).encode())\n    os._exit(1)"]
)
def test_failed_submission_reveals_nothing_and_is_the_last(env: ResearchEnv, code: str) -> None:
    env.step(f"cat > f.py <<'END'\n{code}\nEND")
    observation, reward, terminated, _, info = env.step("submit")
    output = observation.messages[-1].text
    assert "cannot be judged: on the test split" in output
    assert "7654321" not in output.replace(",", "")
    assert (terminated, info["score"], info["stop_reason"]) == (True, None, TurnStopReason.ATTEMPTS)
    assert (reward, info["outcome"], "failure" in info) == (
        env.task.metric.reward(None, info["baseline"]),
        "invalid",
        False,
    )


@pytest.mark.backends
@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    while True: pass", "import time\ndef f(x): time.sleep(100)", "def f(x): return bytearray(1 << 30) and 1",
        "def f(x): return f(x)", "def f(x): return float('nan')", "def f(x): raise SystemExit", "def f(x): return 'infinite'",
        "def f(x): return 'break'", "def f(x): return 'x' * 9_000_000", "import os\ndef f(x): os.kill(os.getpid(), 9)",
        "import threading\nlock = threading.Lock()\nlock.acquire()\ndef f(x): lock.acquire()", "def f(x): print('y' * (1 << 27))",
    ],
)  # fmt: skip
def test_a_broken_program_is_rewarded_no_more_than_the_worst(tmp_path: Path, code: str) -> None:
    (tmp_path / "doubled" / "starter").mkdir(parents=True)
    hurried = TASK.replace("evaluation_seconds: 10", "evaluation_seconds: 0.2, memory: 200000000")
    for name, text in (
        ("task.yaml", hurried),
        ("evaluator.py", EVALUATOR),
        ("starter/f.py", "def f(x): return 2 * x\n"),
    ):
        (tmp_path / "doubled" / name).write_text(text)
    env = ResearchEnv(tmp_path / "doubled", parser="identity")
    rewards = []
    try:
        for submitted in ("def f(x): return 0", code):
            env.reset(seed=0)
            env.step(f"cat > f.py <<'END'\n{submitted}\nEND")
            _, reward, _, _, info = env.step("submit")
            rewards.append(reward)
    finally:
        env.close()
    assert rewards[1] <= rewards[0]
    assert (info["outcome"], info["stop_reason"], "failure" in info) == ("invalid", TurnStopReason.ATTEMPTS, False)


def test_failed_validation_counts_and_is_reported_briefly(env: ResearchEnv) -> None:
    output = submit_code(env, RAISES, "validate")
    assert "ValueError: 1,234,567" in output
    assert len(output) < 600
    assert env.state()["validations_left"] == 2


@pytest.mark.parametrize("command", ["validate", "submit"])
def test_failures_before_exposure_are_free_and_told_in_full(env: ResearchEnv, command: str) -> None:
    output = submit_code(env, "import nothing_of_that_name", command)
    assert "No module named 'nothing_of_that_name'" in output
    assert "It was not counted" in output
    assert env.state()["validations_left"] == 3


def test_evaluator_broken_by_an_answer_counts(env: ResearchEnv) -> None:
    for left, answer in enumerate(("none", "exit", "break")):
        output = submit_code(env, f"def f(x): return {answer!r}", "validate")
        assert "the evaluator broke." in output
        assert "1234567" not in output
        assert env.state()["validations_left"] == 2 - left
    observation, _, terminated, _, info = env.step("submit")
    assert "7654321" not in observation.messages[-1].text
    # No way out of a bad score: it is not a failure of the episode, and there is no score.
    assert (terminated, info["score"], info["failures"], "failure" in info) == (True, None, {"scorer": 4}, False)


def test_a_score_that_is_no_number_is_no_way_out_of_a_bad_one(env: ResearchEnv) -> None:
    assert "right is inf" in submit_code(env, "def f(x): return 'infinite'", "validate")
    assert env.state()["validations_left"] == 2
    assert env.step("submit")[4]["stop_reason"] is TurnStopReason.ATTEMPTS


def test_a_good_one_is_still_scored(env: ResearchEnv) -> None:
    assert "right on the validation split: 1" in submit_code(env, "def f(x): return 2 * x", "validate")
    assert env.step("submit")[4]["score"] == 1.0


# The seeds of what is hidden


def test_secret_seed_is_fixed_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lessons, games = load_task("write_lessons"), load_task("prisoners_dilemma")
    monkeypatch.delenv(secret.VARIABLE)
    seeds, places = [], []
    for machine in ("a", "b", "a"):
        monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path / machine))
        secret._machine_seed.cache_clear()
        seeds.append(secret.eval_seed(lessons))
        places.append(baseline._place(lessons).name)
        assert secret.eval_seed(games) == 0
        assert stat.S_IMODE((tmp_path / machine / "research" / "secret").stat().st_mode) == 0o600
    assert seeds[0] == seeds[2] != seeds[1]
    assert places[0] == places[2] != places[1]
    assert all(f"{seed:x}" not in place and str(seed) not in place for seed, place in zip(seeds, places, strict=True))
    monkeypatch.setenv(secret.VARIABLE, "17")
    assert secret.eval_seed(lessons) == 17
    monkeypatch.setenv(secret.VARIABLE, "mine")
    with pytest.raises(SettingsError, match="integer"):
        secret.eval_seed(lessons)


# Games: who plays whom


class Watched:
    """An evaluation whose submission is a function, and which keeps what it was asked."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[list[int], list[int]]]] = []

    def generator(self, *names: str | int) -> np.random.Generator:
        return Seeds(0).derive(*names).generator()

    def program(self, file: str) -> Watched:
        return self

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: str, many: list[tuple[list[int], list[int]]]) -> list[int]:
        self.rounds.append([(list(mine), list(theirs)) for mine, theirs in many])
        return [len(theirs) % 3 for _, theirs in many]


def test_the_order_of_calls_does_not_tell_who_is_played() -> None:
    field = [lambda mine, theirs, rng, own=own: own for own in range(4)]
    watched = Watched()
    means = play_field(
        watched,
        "",
        "",
        field,
        lambda chosen, other, rng: (chosen, other, float(chosen == other)),
        games=5,
        rounds=(9, 9),
    )  # type: ignore[arg-type]
    # A player who says the round's number modulo 3, against one who always says 0, 1, 2 or 3.
    assert means.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    orders = [[theirs[0] for _, theirs in asked] for asked in watched.rounds[1:]]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)


# Time


def bash(command: str, number: int = 0) -> ToolCall:
    return ToolCall("bash", json.dumps({"command": command}), f"c{number}")


def test_calls_of_one_message_are_limited_by_time_and_number(task: Path) -> None:
    env = ResearchEnv(task, tools=True, max_seconds=1.0)
    try:
        env.reset(seed=0)
        start = time.monotonic()
        observation, _, _, truncated, info = env.step(
            Message("assistant", "", tuple(bash("sleep 0.6", number) for number in range(12)))
        )
        assert time.monotonic() - start < 8
        answers = [message for message in observation.messages if message.role == "tool"]
        assert [answer.tool_call_id for answer in answers] == [f"c{number}" for number in range(12)]
        assert answers[-1].text == "Not run: the time is over."
        assert (truncated, info["stop_reason"]) == (True, TurnStopReason.TIME)
        env.max_seconds = 600.0
        env.reset(seed=0)
        many = tuple(bash("echo $((x += 1))", number) for number in range(MAX_CALLS + 3))
        answers = [m for m in env.step(Message("assistant", "", many))[0].messages if m.role == "tool"]
        assert answers[MAX_CALLS - 1].text.startswith(f"{MAX_CALLS}\n")
        assert {answer.text for answer in answers[MAX_CALLS:]} == {f"Not run: a message has at most {MAX_CALLS} calls."}
    finally:
        env.close()


def test_a_command_takes_no_longer_than_the_episode_has(task: Path) -> None:
    env = ResearchEnv(task, parser="identity", max_seconds=1.5)
    try:
        env.reset(seed=0)
        start = time.monotonic()
        info = env.step("sleep 15")[4]
        assert time.monotonic() - start < 10
        assert info["stop_reason"] is TurnStopReason.TIME
    finally:
        env.close()


SLOW = r"""mkdir -p /tmp/b; cd /tmp/b; printf '#!/bin/sh\nsleep 0.4\nyes yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy | /usr/bin/head -n 20000\n' > head
printf '#!/bin/sh\necho 100 9000000\n' > wc; printf '#!/bin/sh\n:\n' > tail; chmod +x *; PATH=/tmp/b:$PATH; echo hello > /tmp/big; cd /workspace"""


def test_slow_programs_do_not_slow_down_commands(task: Path) -> None:
    limited = load_task(task)
    limits = limited.limits.model_copy(update={"command_seconds": 1.5})
    quick = limited.model_copy(update={"limits": limits})
    env = ResearchEnv(quick, parser="identity")
    try:
        env.reset(seed=0)
        env.step(SLOW)
        start = time.monotonic()
        output = env.step("open /tmp/big")[0].messages[-1].text
        assert time.monotonic() - start < 8
        assert "1|hello" in output
        assert not env.over
    finally:
        env.close()


# Answers that are forged, and texts that cannot be written


def test_a_forged_answer_of_the_shell_is_the_agents_own_error(env: ResearchEnv) -> None:
    env.step("set -T; trap '[[ ${__a[0]} == folder ]] && __a=(file 1 1 /workspace 1)' DEBUG")
    info = env.step("open /workspace")[4]
    assert "failure" not in info
    assert not env.over


def test_lone_surrogates_never_get_into_a_conversation(task: Path) -> None:
    env = ResearchEnv(task, tools=True)
    try:
        env.reset(seed=0)
        env.step(Message("assistant", "", (bash("cat > f.py <<'E'\ndef f(x): raise ValueError('\\ud800')\nE"),)))
        for call in (ToolCall("goto", '{"line": "\\ud800"}', "a"), ToolCall("validate", "{}", "b")):
            observation = env.step(Message("assistant", "", (call,)))[0]
            assert observation in env.observation_space
            assert "\ufffd" in observation.messages[-1].text
            observation.messages[-1].text.encode()
    finally:
        env.close()


def test_a_judge_raises_nothing_and_says_what_was_exposed(task: Path) -> None:
    judge = make_judge(load_task(task), make_sandbox())

    def judge_code(code: str) -> Any:
        return judge.judge({"f.py": code.encode()}, "test")

    assert isinstance(judge_code("def f(x): return 2 * x"), Grade)
    assert judge.exposed
    assert judge_code("raise ValueError('early')") == InvalidSubmission("f.py: ValueError: early")
    assert not judge.exposed
    assert judge_code("def f(x): return 'none'").cause is FailureCause.SCORER
    assert len(judge_code("def f(x): return 'long'").message) < 800
    assert judge_code("def f(x): return 'exit'").cause is FailureCause.SCORER
    assert judge_code("def f(x): return 'x' * 9_000_000") == InvalidSubmission(
        "on the test split f.py gave an answer of more than 8388608 bytes. Use validate or a test of your own for details",
        True,
    )


def test_what_a_command_saw_counts_as_well(task: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(task, folder)
    (folder / "evaluator.py").write_text(
        "from palaestra.research.tasks.task import SubmissionError\n\n\ndef evaluate(evaluation):\n"
        "    result = evaluation.run('python3', 'f.py', '7654321')\n    raise SubmissionError(result.text)\n"
    )
    created = make_judge(load_task(folder), make_sandbox()).judge({"f.py": b"import sys; print(sys.argv)"}, "test")
    assert isinstance(created, InvalidSubmission)
    assert created.exposed
    assert "7654321" not in created.reason


def test_the_folder_of_a_slow_shell_is_not_waited_for(env: ResearchEnv) -> None:
    env.step("set -T; trap '[[ ${FUNCNAME[0]-} == palaestra_question ]] && sleep 6' DEBUG")
    start = time.monotonic()
    env.step("true")
    assert time.monotonic() - start < 12
