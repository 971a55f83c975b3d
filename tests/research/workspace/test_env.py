"""The research environment follows Gymnasium's contract, alone and in a vector environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import EnvError
from palaestra.core.records import FailureCause, Message, ToolCall
from palaestra.envs.factory import make_turn_env
from palaestra.envs.turn import TurnStopReason
from palaestra.research.workspace.env import ResearchEnv

ID = "palaestra/Research-v0"
FLOOR = -0.6
"""The reward of the lowest score, 0, on the test split, whose baseline is 6; the scale is 10."""


def block(command: str) -> str:
    return f"A thought.\n```\n{command}\n```"


@pytest.fixture
def env(number: Path) -> Any:
    created = ResearchEnv(number)
    yield created
    created.close()


def test_gymnasiums_checker_is_content(number: Path) -> None:
    env = gymnasium.make(ID, task=str(number), max_turns=3, render_mode="ansi")
    try:
        check_env(env.unwrapped)
    finally:
        env.close()


def test_workspaces_side_by_side_share_nothing(number: Path) -> None:
    envs = make_turn_env(ID, 4, {"task": str(number), "max_turns": 5}, autoreset=False)
    try:
        envs.reset(seed=0)
        envs.step([block(f"echo {10 * k} > answer.txt") for k in range(4)])
        _, rewards, terminated, _, infos = envs.step([block("submit")] * 4)
        assert terminated.all()
        assert rewards.tolist() == pytest.approx([(10 * k + 1 - 6) / 10 for k in range(4)])
        assert infos["final_info"][3]["score"] == 31.0
    finally:
        envs.close()


def test_the_reward_is_of_this_step_and_only_once(env: ResearchEnv) -> None:
    env.reset(seed=0)
    env.step(block("echo 25 > answer.txt"))
    for _ in range(2):
        _, reward, _, _, info = env.step(block("validate"))
        assert (reward, info["validated"]) == (0.0, (25.0,))
    _, reward, terminated, truncated, info = env.step(block("submit"))
    assert (reward, terminated, truncated, info["attempts"]) == (2.0, True, False, (25.0, 25.0))
    assert env.handed_in == {"answer.txt": b"25\n"}


def test_rewards_of_validations_add_up_to_the_same(number: Path) -> None:
    env = ResearchEnv(number, validation_reward=True, split="validation")
    try:
        env.reset(seed=0)
        rewards = [
            env.step(block(c))[1]
            for c in ("echo 25 > answer.txt", "validate", "echo 15 > answer.txt", "validate", "submit")
        ]
        assert rewards == [0.0, 2.0, 0.0, 0.0, -1.0]
    finally:
        env.close()


def test_the_validation_split_keeps_the_test_split_out(number: Path) -> None:
    env = ResearchEnv(number, split="validation")
    try:
        assert "on the\nvalidation split and ends" in env.reset(seed=0)[0].messages[1].text
        observation, _, _, _, info = env.step(block("submit"))
        assert (info["score"], info["baseline"]) == (5.0, 5.0)
        assert "value on the validation split: 5" in observation.messages[-1].text
    finally:
        env.close()
    with pytest.raises(EnvError, match=r"split .*'train'"):
        ResearchEnv(number, split="train")


def test_broken_evaluator_costs_no_validation(env: ResearchEnv) -> None:
    env.reset(seed=0)
    env.step(block("echo break > answer.txt"))
    output = env.step(block("validate"))[0].messages[-1].text
    assert "through no fault of yours" in output
    env.step(block("echo 7 > answer.txt"))
    shown = [env.step(block("validate"))[0].messages[-1].text for _ in range(4)]
    assert "0 validations left" in shown[2]
    assert "All 3 validations are used" in shown[3]
    info = env.stop(TurnStopReason.COST)[4]
    assert (info["failures"], info["attempts"], info["score"]) == ({"scorer": 1}, (7.0, 7.0, 7.0), 8.0)


def test_messages_without_an_action_are_turns_with_a_penalty(number: Path) -> None:
    env = ResearchEnv(number, format_errors=2, format_penalty=0.25)
    try:
        env.reset(seed=0)
        _, reward, _, _, info = env.step("nothing here")
        assert (reward, "fenced block" in info["format_error"]) == (-0.25, True)
        env.step(block("echo 16 > answer.txt"))  # Whoever finds the way back starts anew.
        env.step("again nothing")
        _, reward, terminated, truncated, info = env.step("and again")
        assert (reward, terminated, truncated) == (pytest.approx(0.85), False, True)
        assert (info["stop_reason"], info["score"]) == (TurnStopReason.FORMAT, 17.0)
    finally:
        env.close()


def test_every_tool_call_is_answered_until_submission(number: Path) -> None:
    env = ResearchEnv(number, tools=True)
    try:
        opening = env.reset(seed=0)[0].messages
        assert "edit FIRST:LAST" not in opening[0].text
        calls = [ToolCall("bash", '{"command": "echo 8 > answer.txt"}', "a"), ToolCall("nothing", "{}", "b"),
                 ToolCall("submit", "{}", "c"), ToolCall("bash", '{"command": "rm answer.txt"}', "d")]  # fmt: skip
        observation, _, terminated, _, info = env.step(Message("assistant", "All at once.", tuple(calls)))
        answers = observation.messages[3:]
        assert [(m.role, m.tool_call_id) for m in answers] == [("tool", name) for name in "abcd"]
        assert answers[3].text == "Not run: the task is over."
        assert "there is no tool 'nothing'" in answers[1].text
        assert (terminated, info["score"]) == (True, 9.0)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("reason", "score", "outcome", "paid"),
    [
        ("cost", 6.0, "scored", 0.0), ("interrupted", 6.0, "scored", 0.0), ("gave_up", None, "missing", FLOOR),
        ("failed", None, "failed", 0.0),
    ],
)  # fmt: skip
def test_ending_from_outside_submits(
    env: ResearchEnv, reason: str, score: float | None, outcome: str, paid: float
) -> None:
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.stop(TurnStopReason(reason))
    assert (info["score"], reward, terminated or truncated) == (score, paid, True)
    assert info["outcome"] == outcome


@pytest.mark.parametrize("answer", ["rm answer.txt", "ln -sf /etc/passwd answer.txt", "echo nan > answer.txt"])
@pytest.mark.parametrize("validation_reward", [False, True])
def test_an_episode_without_a_score_sums_to_the_floor(number: Path, answer: str, validation_reward: bool) -> None:
    env = ResearchEnv(number, max_turns=4, validation_reward=validation_reward)
    try:
        env.reset(seed=0)
        steps = [env.step(block(text)) for text in ("echo 50 > answer.txt", "validate", answer, "submit")]
    finally:
        env.close()
    assert sum(step[1] for step in steps) == pytest.approx(FLOOR)
    info = steps[-1][4]
    assert (info["outcome"], info["score"], "failure" in info) == ("invalid", None, False)


def test_a_lost_sandbox_is_a_failure_of_ours(env: ResearchEnv) -> None:
    env.reset(seed=0)
    assert env._workspace is not None
    env._workspace.shell.close()
    _, reward, _, _, info = env.stop(TurnStopReason.COST)
    assert (reward, info["outcome"], info["failure"].cause) == (0.0, "failed", FailureCause.SANDBOX)


def test_notes_outlive_the_episode_where_they_have_a_file(number: Path, tmp_path: Path) -> None:
    env = ResearchEnv(number, memory=tmp_path / "notes.jsonl")
    try:
        env.reset(seed=0)
        env.step(block("memory_write best 42 is a good number"))
        env.reset(seed=1)
        assert "42 is a good number" in env.step(block("memory_read number"))[0].messages[-1].text
    finally:
        env.close()
