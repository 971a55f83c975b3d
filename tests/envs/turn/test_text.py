"""Gymnasium environments with text or discrete spaces, played in text."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from palaestra.core.errors import EnvError
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.records import TurnStopReason
from palaestra.envs.turn.text import TextEnv

STILL = {"is_slippery": False}


def test_the_frozen_lake_is_crossed_in_words() -> None:
    env = TextEnv("FrozenLake-v1", env_options=STILL)
    observation, _ = env.reset(seed=0)
    assert observation.messages[-1].text == "0\nActions: left, down, right, up."
    for move in ("down", "Down.", "I go right", "right", "Action: down"):
        observation, reward, terminated, _, _ = env.step(move)
        assert (reward, terminated) == (0.0, False)
    observation, reward, terminated, _, info = env.step("left, no: right")
    assert (observation.messages[-1].text, reward, terminated) == ("15", 1.0, True)
    assert info["stop_reason"] is TurnStopReason.SOLVED
    env.reset(seed=0)
    env.step("right")
    assert env.step("down")[4]["stop_reason"] is TurnStopReason.LOST


def test_an_illegal_action_is_answered_and_counted() -> None:
    env = TextEnv("FrozenLake-v1", env_options=STILL, invalid_penalty=0.5)
    env.reset(seed=0)
    for count in (1, 2):
        observation, reward, terminated, _, info = env.step("I jump over it, leftover and all.")
        assert observation.messages[-1].text == "That is not an action. Actions: left, down, right, up."
        assert (reward, terminated, info["invalid_actions"]) == (-0.5, False, count)
    assert env.step("down")[0].messages[-1].text == "4"  # The refused turns have not moved the agent.


def test_a_taxi_is_drawn_and_driven() -> None:
    env = TextEnv("Taxi-v4", observation="ansi")
    drawing = env.reset(seed=0)[0].messages[-1].text
    assert "|R: | : :G|" in drawing
    assert "\x1b" not in drawing
    assert drawing.endswith("Actions: south, north, east, west, pickup, dropoff.")
    assert env.step("north")[1] == -1.0
    assert env.step("dropoff")[1] == -10.0


def test_a_prefix_makes_a_turn_environment_of_any_id() -> None:
    assert detect_kind("text:FrozenLake-v1", {}) == "turn"
    env = make_turn_env(
        "text:FrozenLake-v1", 2, {"env_options": STILL, "prompt": "Cell {observation}."}, autoreset=False
    )
    observations, _ = env.reset(seed=0)
    assert [o.messages[-1].text for o in observations] == ["Cell 0.", "Cell 0."]
    env.close()


def test_slippery_episodes_depend_only_on_their_seed() -> None:
    def walk(seed: int) -> list[str]:
        env = TextEnv("FrozenLake-v1", env_options={"map_name": "8x8"})
        env.reset(seed=seed)
        return [env.step("down")[0].messages[-1].text for _ in range(6)]

    assert walk(1) == walk(1)
    assert len({tuple(walk(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "HigherLowerEasy", "CountRecallEasy"])
def test_environments_of_a_package_on_pypi_are_played(name: str) -> None:
    popgym = pytest.importorskip("popgym")
    kind = next(k for k, about in popgym.envs.ALL.items() if about["id"].startswith(f"popgym-{name}"))
    gymnasium.register(f"{name}-v0", kind) if f"{name}-v0" not in gymnasium.registry else None
    env = TextEnv(f"{name}-v0", max_turns=10)
    env.reset(seed=0)
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, info = env.step("I choose 1.")
        rewards.append(reward)
        over = terminated or truncated
    assert info["invalid_actions"] == 0
    assert any(rewards)


class Echo(gymnasium.Env[str, str]):
    """Pays for the word that it has shown."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Text(20), spaces.Text(8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = f"word {self.np_random.integers(100)}"  # The space has no blanks, like many declared text spaces.
        return self.word, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self.word), True, False, {}


def test_texts_pass_unchanged_and_their_length_is_checked() -> None:
    gymnasium.register("Echo-v0", Echo)
    env = TextEnv("Echo-v0")
    word = env.reset(seed=1)[0].messages[-1].text
    assert env.step("a" * 9)[4]["invalid_actions"] == 1
    assert env.step(word)[1] == 1.0


def test_several_numbers_are_one_action() -> None:
    class Pairs(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.MultiBinary(2)})
        action_space = spaces.MultiDiscrete([3, 5])

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return {"a": 2, "b": self.observation_space["b"].sample() * 0}, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self.reset()[0], float(action[0] * 10 + action[1]), True, False, {}

    gymnasium.register("Pairs-v0", Pairs)
    env = TextEnv("Pairs-v0")
    assert env.reset(seed=0)[0].messages[-1].text == "a: 2\nb: 0 0\nAn action has 2 whole numbers."
    assert env.step("3 4")[4]["invalid_actions"] == 1
    assert env.step("Not 1 1 but 2, 4")[1] == 24.0


def test_spaces_that_cannot_be_written_are_rejected() -> None:
    with pytest.raises(EnvError, match=r"observations of Box.* cannot be written as text"):
        TextEnv("CartPole-v1")
    with pytest.raises(EnvError, match="FrozenLake-v1 has 4 actions; got 2 names"):
        TextEnv("FrozenLake-v1", actions=("a", "b"))
