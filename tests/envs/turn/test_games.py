"""The turn games: only using the replies wins Guess, and only calling the tool solves Calculator."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.core.errors import EnvError
from palaestra.core.records import Message, Split
from palaestra.envs.turn import TurnStopReason, TurnVectorEnv
from palaestra.envs.turn.games import CalculatorEnv, GuessEnv, calculate
from palaestra.tasks.base import get_split


def halve(env: GuessEnv, seed: int) -> tuple[float, Any]:
    """Play by halving the range."""
    env.reset(seed=seed)
    low, high = env.low, env.high
    while True:
        guess = (low + high) // 2
        observation, reward, terminated, truncated, info = env.step(f"I say: Answer: {guess}")
        if terminated or truncated:
            return reward, info["stop_reason"]
        low, high = (guess + 1, high) if observation.messages[-1].text == "Higher." else (low, guess - 1)


def test_halving_finds_every_number_and_not_listening_few() -> None:
    env = GuessEnv(high=7, attempts=3)
    outcomes = [halve(env, seed) for seed in range(40)]
    assert outcomes == [(1.0, TurnStopReason.SOLVED)] * 40
    deaf = []
    for seed in range(70):
        env.reset(seed=seed)
        steps = [env.step(str(guess)) for guess in (1, 2, 3) if not env.over]
        deaf.append(steps[-1][1])
        assert steps[-1][4]["stop_reason"] is (TurnStopReason.SOLVED if deaf[-1] else TurnStopReason.LOST)
    assert 0.2 < sum(deaf) / 70 < 0.65


def test_a_message_without_a_number_costs_an_attempt() -> None:
    env = GuessEnv(attempts=2, format_penalty=0.5)
    env.reset(seed=0)
    observation, reward, terminated, _, _ = env.step("I do not know.")
    assert (observation.messages[-1], reward, terminated) == (Message("user", "Say a number."), -0.5, False)
    _, reward, terminated, _, info = env.step("")
    assert (reward, terminated, info["stop_reason"]) == (-0.5, True, TurnStopReason.LOST)


def test_a_guess_of_any_length_is_read() -> None:
    env = GuessEnv()
    env.reset(seed=0)
    assert env.step("9" * 5000)[0].messages[-1].text == "Lower."
    assert env.step("-3")[0].messages[-1].text == "Higher."


def test_the_calculator_answers_and_the_answer_ends() -> None:
    env = CalculatorEnv()
    observation, _ = env.reset(seed=4)
    question = observation.messages[0].text
    first, second = (int(word) for word in question.split("?")[0].removeprefix("What is ").split(" * "))
    observation, reward, terminated, truncated, info = env.step(f"calc: {first}*{second}")
    assert observation.messages[-1] == Message("tool", str(first * second))
    assert (reward, terminated, truncated, info["called"]) == (0.0, False, False, True)
    _, reward, terminated, _, info = env.step(f"Answer: {first * second}")
    assert (reward, terminated, info["stop_reason"]) == (1.0, True, TurnStopReason.SOLVED)
    env.reset(seed=4)
    _, reward, terminated, _, info = env.step("Answer: 1")
    assert (reward, terminated, info["stop_reason"]) == (0.0, True, TurnStopReason.LOST)
    env.reset(seed=4)
    steps = [env.step("calc: 1+1") for _ in range(3)]
    assert (steps[-1][2:4], steps[-1][4]["stop_reason"]) == ((False, True), TurnStopReason.STEPS)


def test_held_out_factors_are_others() -> None:
    seen: dict[str, set[str]] = {}
    for split in Split:
        env = CalculatorEnv(split=split, offer=False)
        asked = {env.reset(seed=seed)[0].messages[0].text for seed in range(60)}
        seen[split] = {"*".join(sorted(q.removeprefix("What is ").removesuffix("?").split(" * "))) for q in asked}
        assert {get_split(f"calculator|{item}") for item in seen[split]} == {split}
    assert not seen["train"] & seen["test"]
    assert CalculatorEnv.held_out == {"split": "test"}


@pytest.mark.parametrize(
    ("expression", "shown"),
    [("12*7", "84"), (" 37 * 48 =", "1776"), ("(1+2)*-3", "-9"), ("7/2", "3.5"), ("1/3", "0.333333"), ("0.1+0.2", "0.3"),
     ("", "error: not an expression"), ("2**99", "error: not an expression"), ("__import__('os')", "error: not an expression"),
     ("True+1", "error: not an expression"), ("9"*20, "error: too large"), ("1/0", "error: division by zero"),
     ("1+"*50 + "1", "error: too long"), ("1e999", "error: not an expression")],
)  # fmt: skip
def test_what_the_calculator_shows(expression: str, shown: str) -> None:
    assert calculate(expression) == shown


@given(st.text(alphabet="0123456789+-*/(). e=x\x00'[", max_size=70))
def test_the_calculator_always_shows_something_short(expression: str) -> None:
    assert 0 < len(calculate(expression)) < 30


@pytest.mark.parametrize("wrong", [{"low": 3, "high": 2}, {"attempts": 0}, {"format_penalty": -1}])
def test_a_game_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EnvError):
        GuessEnv(**wrong)


@pytest.mark.parametrize("wrong", [{"digits": 1}, {"max_turns": 0}, {"split": "tset"}])
def test_a_calculator_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EnvError):
        CalculatorEnv(**wrong)


def test_games_come_with_their_own_vector_form() -> None:
    env = gymnasium.make_vec("palaestra/Guess-v0", 4, vectorization_mode="vector_entry_point", high=3, group_size=2)
    assert isinstance(env, TurnVectorEnv)
    observations, _ = env.reset(seed=1)
    assert observations[0].messages[0].text == "Guess a number from 1 to 3."
    _, rewards, *_ = env.step(["2"] * 4)
    assert rewards[0] == rewards[1] and rewards[2] == rewards[3]  # noqa: PT018
