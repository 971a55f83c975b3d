"""Gymnasium environments with text or discrete spaces, played in text."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.errors import EnvError
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.base import TurnStopReason
from palaestra.envs.turn.text import TextEnv, write_value

STILL = {"is_slippery": False}


def test_the_frozen_lake_is_crossed_in_words() -> None:
    env = TextEnv("FrozenLake-v1", env_kwargs=STILL)
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
    env = TextEnv("FrozenLake-v1", env_kwargs=STILL, invalid_penalty=0.5)
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
        "text:FrozenLake-v1", 2, {"env_kwargs": STILL, "prompt": "Cell {observation}."}, autoreset=False
    )
    observations, _ = env.reset(seed=0)
    assert [o.messages[-1].text for o in observations] == ["Cell 0.", "Cell 0."]
    env.close()


@pytest.mark.backends
@pytest.mark.parametrize(
    ("name", "options"),
    [("Taxi-v4", {}), ("FrozenLake-v1", {}), ("CliffWalking-v1", {"is_slippery": True}), ("Blackjack-v1", {})],
)
def test_50_seeds_are_the_episodes_of_gymnasium(name: str, options: dict[str, Any]) -> None:
    ours, theirs = TextEnv(name, env_kwargs=options), gymnasium.make(name, **options)
    for seed in range(50):
        for start in (seed, None):  # The second reset continues the generator.
            observation, _ = ours.reset(seed=start)
            states = [theirs.reset(seed=start)[0]]
            assert observation.messages[-1].text.startswith(f"{write_value(states[0])}\n")
            actions = np.random.default_rng(seed)
            for _ in range(10):
                action = int(actions.integers(theirs.action_space.n))  # type: ignore[attr-defined]
                observation, *outcome, _ = ours.step(ours.action_names[action])
                state, *expected, _ = theirs.step(action)
                assert (observation.messages[-1].text, outcome) == (write_value(state), expected)
                if outcome[1] or outcome[2]:
                    break


def test_slots_have_the_episodes_of_gymnasiums_vector() -> None:
    ours = make_turn_env("text:Blackjack-v1", 3, {})
    theirs = SyncVectorEnv([lambda: gymnasium.make("Blackjack-v1")] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, _ = ours.reset(seed=5)
    states, _ = theirs.reset(seed=5)
    for _ in range(20):  # Finished slots start their next episode without a seed.
        for observation, state in zip(observations, zip(*states, strict=True), strict=True):
            assert observation.messages[-1].text.startswith(write_value(state))
        observations, rewards, *_ = ours.step(["hit"] * 3)
        states, expected, *_ = theirs.step(np.ones(3, dtype=int))
        assert rewards.tolist() == expected.tolist()
    ours.close()


class Optional(gymnasium.Env[str, int]):
    """Shows its seeds and options; raises at the action 1."""

    observation_space, action_space = spaces.Text(99), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return f"{seed} {options}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise RuntimeError("no step")
        return "", 0.0, True, False, {}


def test_seeds_and_options_of_a_reset_are_passed_on() -> None:
    def read(env: TextEnv, **arguments: Any) -> str:
        return str(env.reset(**arguments)[0].messages[0].text.partition("\n")[0])

    env, again = TextEnv(f"{__file__}:Optional"), TextEnv(f"{__file__}:Optional")
    assert read(env, seed=0) == "0 None"
    assert read(env, options={"level": 2}) == "None {'level': 2}"
    assert read(env, seed=2**40, options={"level": 2}) == f"{2**40} {{'level': 2}}"
    again.reset(seed=2**40)
    env.step("1")
    again.step("1")
    assert read(env) == read(again) != "None None"  # An environment that was made again gets a seed of the last one.


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
    with pytest.raises(EnvError, match=r"observations of Box"):
        TextEnv("CartPole-v1")
    with pytest.raises(EnvError, match="4 actions; got 2 names"):
        TextEnv("FrozenLake-v1", actions=("a", "b"))
