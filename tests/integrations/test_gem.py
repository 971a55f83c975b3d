"""The environments of GEM as turn environments."""

from __future__ import annotations

import logging

import pytest

from palaestra.core.errors import UnknownNameError
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.records import TurnStopReason
from palaestra.integrations.gem import GemEnv

pytestmark = pytest.mark.backends


def test_a_number_is_found_by_binary_search() -> None:
    assert detect_kind("gem:game:GuessTheNumber-v0-hard", {}) == "turn"
    env = GemEnv("game:GuessTheNumber-v0-hard")
    observation, _ = env.reset(seed=3)
    assert observation.messages[-1].text.startswith("You are playing Guess The Number.")
    low, high, over = 1, 50, False
    while not over:
        guess = (low + high) // 2
        observation, reward, over, _, info = env.step(f"\\boxed{{{guess}}}")
        low, high = (guess + 1, high) if "is higher" in observation.messages[-1].text else (low, guess - 1)
    assert (reward, info["stop_reason"]) == (1.0, TurnStopReason.SOLVED)


def test_a_message_without_an_action_gets_the_reward_of_gem_and_is_counted() -> None:
    env = GemEnv("game:GuessTheNumber-v0-easy")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("no idea")
    assert (reward, terminated, info["stop_reason"], info["invalid_actions"]) == (-0.1, True, TurnStopReason.LOST, 1)


def test_seeds_hold_in_parallel_and_logging_stays_as_it_was() -> None:
    level = logging.getLogger().level
    env = make_turn_env("gem:game:Mastermind-v0-easy", 6, {}, autoreset=False)
    try:
        runs = []
        for _ in range(2):
            env.reset(seed=list(range(6)))
            runs.append([[o.messages[-1].text for o in env.step(["\\boxed{1 2}"] * 6)[0]] for _ in range(2)])
        assert runs[0] == runs[1]
        assert len(set(runs[0][0])) > 1
    finally:
        env.close()
    assert logging.getLogger().level == level


def test_an_unknown_environment_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'game:Mastermind-v0-easy'"):
        GemEnv("game:Mastermind-v0-esay")
