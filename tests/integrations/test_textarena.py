"""The games of TextArena as turn environments."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import textarena

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.envs.factory import detect_kind
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.textarena import TextArenaEnv, play_randomly


def test_a_number_is_found_by_binary_search() -> None:
    assert detect_kind("textarena:GuessTheNumber-v0", {}) == "turn"
    env = TextArenaEnv("GuessTheNumber-v0")
    observation, _ = env.reset(seed=3)
    assert "between 1 and 20 within 10 turns" in observation.messages[-1].text
    low, high, over = 1, 20, False
    while not over:
        guess = (low + high) // 2
        observation, reward, over, _, info = env.step(f"My guess is [{guess}]")
        text = observation.messages[-1].text
        low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
    assert (reward, info["stop_reason"], info["invalid_actions"]) == (1.0, TurnStopReason.SOLVED, 0)


def test_a_second_invalid_move_loses() -> None:
    env = TextArenaEnv("GuessTheNumber-v0", prompt="Guess from 1 to 20.")
    observation, _ = env.reset(seed=3)
    assert observation.messages[-1].text == "Guess from 1 to 20."
    observation, reward, terminated, _, info = env.step("no idea")
    assert "invalid move" in observation.messages[-1].text
    assert (reward, terminated, info["invalid_actions"]) == (0.0, False, 1)
    assert "no idea" not in observation.messages[-1].text  # The agent's own words are not repeated.
    *_, terminated, _, info = env.step("none")
    assert (terminated, info["invalid_actions"]) == (True, 2)


def play_first(observation: str, generator: np.random.Generator) -> str:
    return "[0]"


@pytest.mark.parametrize("player", [0, 1])
def test_two_players_meet_a_random_opponent(player: int) -> None:
    def play(seed: int) -> tuple[float, list[str]]:
        env = TextArenaEnv("TicTacToe-v0", player=player)
        observation, _ = env.reset(seed=seed)
        while True:
            move = play_randomly(observation.messages[-1].text, np.random.default_rng(0))
            observation, reward, terminated, _, _ = env.step(move)
            if terminated:
                return reward, [message.text for message in observation.messages]

    games = [play(seed) for seed in range(6)]
    assert games == [play(seed) for seed in range(6)]
    assert {reward for reward, _ in games} <= {1.0, 0.0, -1.0}
    assert len({tuple(texts) for _, texts in games}) > 1


def test_an_opponent_of_ones_own_is_loaded_by_name() -> None:
    env = TextArenaEnv("TicTacToe-v0", opponent=f"{__file__}:play_first")
    env.reset(seed=0)
    observation, *_ = env.step("[4]")
    assert "Player 1 placed their symbol (X) in cell 0." in observation.messages[-1].text
    with pytest.raises(EnvError, match="opponent"):
        TextArenaEnv("TicTacToe-v0", opponent="clever")


@pytest.mark.parametrize("name", ["FrozenLake-v0", "TowerOfHanoi-v0", "LightsOut-v0", "Mastermind-v0"])
def test_other_games_of_one_player_start_and_answer(name: str) -> None:
    env = TextArenaEnv(name)
    observation, _ = env.reset(seed=0)
    assert len(observation.messages[-1].text) > 50
    observation, _, _, _, info = env.step("[1]")
    assert observation.messages[-1].text
    assert "failure" not in info


@pytest.mark.parametrize("name", ["GuessTheNumber-v0", "Mastermind-v0", "LightsOut-v0", "Minesweeper-v0"])
def test_50_seeds_are_the_games_of_textarena(name: str) -> None:
    ours, theirs = TextArenaEnv(name), textarena.make(f"{name}-raw")
    state = random.getstate()
    try:
        for seed in range(50):
            for start in (seed, None):  # The second reset continues the generator.
                observation, _ = ours.reset(seed=start)
                theirs.reset(num_players=1, seed=start)
                assert observation.messages[-1].text == read_native(theirs)
                for move in ("[3]", "[1 2 3 4]", "[0 0]", "[1 1]", "[17]"):
                    observation, reward, over, *_ = ours.step(move)
                    done, _ = theirs.step(move)
                    assert over == done
                    if done:
                        rewards, game_info = theirs.close()
                        assert (observation.messages[-1].text, reward) == (game_info[0]["reason"], rewards[0])
                        break
                    assert observation.messages[-1].text == read_native(theirs)
    finally:
        random.setstate(state)


def read_native(env: Any) -> str:
    """The new messages of a game, without those of the player."""
    _, messages = env.get_observation()
    own = textarena.ObservationType.PLAYER_ACTION
    return "\n".join(text for sender, text, kind in messages if kind is not own).strip()


def test_unknown_games_and_options_are_rejected() -> None:
    with pytest.raises(UnknownNameError, match="'GuessTheNumber-v0'"):
        TextArenaEnv("GuesTheNumber-v0")
    with pytest.raises(EnvError, match=r"GuessTheNumber-v0.*'colour'"):
        TextArenaEnv("GuessTheNumber-v0", env_kwargs={"colour": 1})
    with pytest.raises(EnvError, match="1 players"):
        TextArenaEnv("GuessTheNumber-v0", player=1)
