"""The contract of turn environments: five return values, rewards in their own step, growing conversations."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, FailureCause, ImagePart, Message, TextPart, ToolCall
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.base import AssistantSpace, observation_space
from palaestra.envs.turn.games import CalculatorEnv, GuessEnv
from palaestra.envs.turn.tasks import TaskEnv

GAMES = [("palaestra/Guess-v0", {}), ("palaestra/Calculator-v0", {}), ("palaestra/Task-v0", {"problems": 3})]


class Echo(TurnEnv):
    """Answers with what was said; certain words do certain things."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.handed_in: list[TurnStopReason] = []

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        return [
            Message("system", "Echo."),
            Message("user", f"{options.get('word', 'Speak')} {self.np_random.integers(100)}."),
        ]

    def respond(self, message: Message) -> Reply:
        if message.text == "break":
            return Reply((Message("tool", "broken"),), 5.0, failure=Failure(FailureCause.SANDBOX, "gone"))
        if message.text == "raise":
            raise ZeroDivisionError("a bug")
        if message.text == "nan":
            return Reply(reward=math.nan)
        if message.text == "done":
            return Reply((Message("user", "Well done."),), 1.0, TurnStopReason.SOLVED, info={"extra": 3})
        return Reply((Message("tool", message.text),), 0.25)

    def truncate(self, reason: TurnStopReason) -> Reply:
        self.handed_in.append(reason)
        return Reply(reward=0.5, stop=reason)

    def state(self) -> Mapping[str, Any]:
        return {"turn": self.turn}


@pytest.mark.parametrize(("name", "arguments"), GAMES)
def test_registered_environments_pass_the_checker(name: str, arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="ansi", **arguments).unwrapped, skip_render_check=False)


def test_a_turn_brings_its_reward_in_its_own_step() -> None:
    env = Echo()
    observation, info = env.reset(seed=3, options={"word": "Say"})
    assert observation.messages[1].text.startswith("Say ")
    assert (info, observation.state) == ({"turn": 0}, {"turn": 0})
    after, reward, terminated, truncated, info = env.step("hello")
    assert (reward, terminated, truncated, info) == (0.25, False, False, {"turn": 1})
    assert after.messages == (*observation.messages, Message("assistant", "hello"), Message("tool", "hello"))
    last, reward, terminated, truncated, info = env.step(Message("assistant", "done", (ToolCall("submit"),)))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"turn": 2, "stop_reason": TurnStopReason.SOLVED, "extra": 3}
    assert last.messages[: len(after.messages)] == after.messages
    assert env.over
    for late in (lambda: env.step("more"), lambda: env.stop(TurnStopReason.COST)):
        with pytest.raises(gymnasium.error.ResetNeeded):
            late()


def test_the_same_seed_opens_alike_and_no_seed_goes_on() -> None:
    env = Echo()
    opened = [env.reset(seed=seed)[0] for seed in (1, 1, None, 1, None)]
    assert opened[0] == opened[1] == opened[3]
    assert opened[2] == opened[4] != opened[0]


def test_a_failure_has_no_reward_and_is_no_zero() -> None:
    env = Echo()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("break")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["stop_reason"] is TurnStopReason.FAILED
    assert info["failure"] == Failure(FailureCause.SANDBOX, "gone")
    assert observation.messages[-1].text == "broken"


@pytest.mark.parametrize(("word", "error"), [("raise", ZeroDivisionError), ("nan", RewardError)])
def test_an_environment_that_raises_needs_a_reset(word: str, error: type[Exception]) -> None:
    env = Echo()
    env.reset(seed=0)
    with pytest.raises(error):
        env.step(word)
    assert env.over
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hello")
    assert len(env.reset(seed=0)[0].messages) == 2


def test_limits_cut_and_hand_in_what_is_there() -> None:
    env = Echo(max_turns=2)
    env.reset(seed=0)
    env.step("one")
    _, reward, terminated, truncated, info = env.step("two")
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.75, False, True, TurnStopReason.STEPS)
    slow = Echo(max_seconds=0.01)
    slow.reset(seed=0)
    time.sleep(0.02)
    assert slow.step("one")[4]["stop_reason"] is TurnStopReason.TIME
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.stop(TurnStopReason.CONTEXT)
    assert (reward, terminated, truncated, info) == (
        0.5,
        False,
        True,
        {"turn": 0, "stop_reason": TurnStopReason.CONTEXT},
    )
    assert env.handed_in == [TurnStopReason.STEPS, TurnStopReason.CONTEXT]
    env.reset(seed=0)
    env.step("one")
    assert env.step("done")[4]["stop_reason"] is TurnStopReason.SOLVED, "an end of its own comes before the limit"


@pytest.mark.parametrize("action", [3, None, Message("user", "no"), ["a"]])
def test_an_invalid_action_is_rejected_without_effect(action: Any) -> None:
    env = Echo()
    observation, _ = env.reset(seed=0)
    with pytest.raises(EnvError, match="assistant's text"):
        env.step(action)
    assert env.conversation() == observation
    assert not env.over


def test_spaces_know_messages_with_images_and_with_calls() -> None:
    space = AssistantSpace()
    assert "text" in space and Message("assistant", "x", (ToolCall("f"),)) in space  # noqa: PT018
    assert Message("tool", "x") not in space and "\ud800" not in space  # noqa: PT018
    env = Echo()
    conversation, _ = env.reset(seed=0)
    observations = observation_space()
    assert conversation in observations
    picture = Message("user", (ImagePart("data:,"), TextPart("What?")))
    assert type(conversation)((picture,)) in observations
    assert type(conversation)((Message("user", (3,)),)) not in observations  # type: ignore[arg-type]
    observations.seed(1)
    assert observations.sample() in observations


def test_stop_reasons_say_whether_an_episode_was_over_or_cut() -> None:
    over = {reason for reason in TurnStopReason if reason.terminal}
    assert over == {TurnStopReason(name) for name in ("submitted", "solved", "lost", "attempts", "gave_up")}


def test_every_stop_reason_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "turn.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (terminated|truncated) \|$", page, re.M))
    assert rows == {str(reason): "terminated" if reason.terminal else "truncated" for reason in TurnStopReason}


def test_rendering_shows_the_conversation() -> None:
    env = Echo(render_mode="ansi")
    assert env.render() is None
    env.reset(seed=0)
    env.step(Message("assistant", "look", (ToolCall("open", '{"path": "a"}'),)))
    text = env.render()
    assert text is not None
    assert "[system]\nEcho." in text and '[assistant]\nlook\nopen({"path": "a"})' in text  # noqa: PT018


WHOLE: list[Any] = [1.5, True, "3", None, math.inf, -1]
FINITE: list[Any] = [math.nan, math.inf, "x", None, True, -1.0]


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (Echo, "max_turns", WHOLE),
        (Echo, "max_seconds", FINITE),
        (GuessEnv, "attempts", WHOLE),
        (GuessEnv, "low", [1.5, "1", True, math.inf]),
        (GuessEnv, "high", [math.inf, None, 0, 10**30]),
        (GuessEnv, "format_penalty", FINITE),
        (CalculatorEnv, "digits", [1, 7, 2.5, "2"]),
        (CalculatorEnv, "max_turns", [0, *WHOLE]),
        (TaskEnv, "attempts", [0, *WHOLE]),
        (TaskEnv, "problems", [-1, 1.5, "a", True]),
        (TaskEnv, "task", [5, None]),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_their_name(make: Any, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(EnvError, match=f"^{name} (is|must be) ") as caught:
            make(**{name: value})
        assert "\n" not in str(caught.value)
    assert Echo(max_turns=np.int64(2), max_seconds=np.float32(1.5)).max_turns == 2


class Rude(Echo):
    """Closes the last episode before the next one."""

    ended = 0

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.close()  # What the last episode left.
        return super().opening(options)

    def close(self) -> None:
        super().close()
        self.ended += 1


@pytest.mark.parametrize("kind", [Echo, Rude])
def test_a_closed_environment_says_so(kind: type[Echo]) -> None:
    env = kind()
    env.reset(seed=0)
    env.reset(seed=0)
    env.step("hello")
    env.close()
    env.close()
    for use in (lambda: env.step("hello"), lambda: env.stop(TurnStopReason.COST), lambda: env.reset(seed=0)):
        with pytest.raises(EnvError, match=f"{kind.__name__} is closed"):
            use()
    assert not isinstance(env, Rude) or env.ended == 4


def test_a_message_without_content_is_the_empty_text() -> None:
    for action in (Message("assistant", None), {"role": "assistant", "content": None}):  # type: ignore[arg-type]
        env = Echo()
        env.reset(seed=0)
        assert env.step(action)[0].messages[-2:] == (Message("assistant", ""), Message("tool", ""))


@pytest.mark.parametrize(
    ("content", "calls"),
    [(5, ()), ((3,), ()), ((TextPart(None),), ()), ([TextPart("a")], ()), ("x", 5), ("x", (3,))],  # type: ignore[arg-type]
)
def test_invalid_messages_are_not_in_the_action_space(content: Any, calls: Any) -> None:
    message, env = Message("assistant", content, calls), Echo()
    assert message not in AssistantSpace()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="assistant's text"):
        env.step(message)
    assert not env.over


def test_the_seed_of_a_game_is_its_episode() -> None:
    for name, arguments in GAMES:
        env = gymnasium.make(name, **arguments)
        first = [env.reset(seed=seed)[0] for seed in range(6)]
        assert [env.reset(seed=seed)[0] for seed in range(6)] == first
    assert len({observation.messages for observation in first}) > 1


def test_listing_environments_loads_no_model() -> None:
    code = (
        "import sys, palaestra, gymnasium\n"
        "gymnasium.make('palaestra/Guess-v0').reset(seed=0)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_observations_are_values_that_later_turns_do_not_change() -> None:
    env = Echo()
    kept, _ = env.reset(seed=np.random.default_rng(0).integers(9).item())
    before = kept.messages
    env.step("hello")
    assert kept.messages == before and kept.state == {"turn": 0}  # noqa: PT018


def test_conversations_convert_to_openai_and_back() -> None:
    env = Echo()
    observation, _ = env.reset(seed=0)
    sent = json.loads(json.dumps(observation.openai()))
    assert sent == [{"role": message.role, "content": message.text} for message in observation.messages]
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    reply = env.step(answer)[0].messages[2]
    assert reply == Message("assistant", "", (ToolCall("look", '{"at": 1}', "a"),))
    for wrong in (
        {"role": "user", "content": "x"},
        {"content": "x"},
        {"role": "assistant", "content": 3},
        {"role": "assistant", "tool_calls": [{}]},
    ):
        env.reset(seed=0)
        with pytest.raises(EnvError, match="assistant's text"):
            env.step(wrong)
