"""The environments of GEM as turn environments."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest

from palaestra.core.errors import UnknownNameError
from palaestra.envs.factory import detect_kind, make_turn_env
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.gem import GemEnv, load_gem

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


@pytest.mark.parametrize(
    "name", ["GuessTheNumber-v0-hard", "Mastermind-v0-easy", "Minesweeper-v0-easy", "Sudoku-v0-easy"]
)
def test_50_seeds_are_the_episodes_of_gem(name: str) -> None:
    ours, theirs = GemEnv(f"game:{name}"), load_gem().make(f"game:{name}")
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        for seed in range(50):
            for start in (seed, None):  # The second reset continues the generators.
                observation, _ = ours.reset(seed=start)
                text, info = theirs.reset(seed=start)
                assert observation.messages[-1].text == f"{text.strip()}\n{info.get('suffix', '').strip()}".strip()
                for move in ("7", "1 2", "1 1 4", "21"):
                    observation, reward, over, *_ = ours.step(f"\\boxed{{{move}}}")
                    text, expected, terminated, *_ = theirs.step(f"\\boxed{{{move}}}")
                    assert observation.messages[-1].text.startswith(text.strip())
                    assert (reward, over) == (expected, terminated)
                    if over:
                        break
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def test_a_message_without_an_action_is_counted() -> None:
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


def test_an_unknown_environment_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'game:Mastermind-v0-easy'"):
        GemEnv("game:Mastermind-v0-esay")
