"""Tools of turn environments: calls are executed, and calls that cannot be executed are answered and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import pytest

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import prompt_ids
from palaestra.core.errors import EnvError
from palaestra.core.records import Message, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.envs.turn import Reply, ToolEnv, TurnVectorEnv
from palaestra.envs.turn.games import CalculatorEnv, calculator_examples
from palaestra.envs.turn.tools import MAX_CALLS
from palaestra.models.registry import LoadedModel


def convert(value: float, unit: Literal["km", "mile"] = "km") -> float:
    """A length in metres.

    Arguments:
        value: the length
        unit: its unit
    """
    if value < 0:
        raise ValueError("a length is not negative")
    return value * {"km": 1000.0, "mile": 1609.344}[unit]


class Lengths(ToolEnv):
    def __init__(self) -> None:
        super().__init__([convert], max_turns=9)

    def opening(self, options: Mapping[str, Any]) -> str:
        return "How many metres are 2 km?"

    def answer(self, message: Message) -> Reply:
        return Reply(reward=float("2000" in message.text), stop="submitted")


def call_tools(env: Any, *calls: tuple[str, str]) -> tuple[list[str], dict[str, Any]]:
    message = Message("assistant", "", tuple(ToolCall(*item, id=f"call{k}") for k, item in enumerate(calls)))
    observation, reward, terminated, truncated, info = env.step(message)
    assert (reward, terminated, truncated) == (0.0, False, False)
    answers = observation.messages[-len(calls) :]
    assert [answer.role for answer in answers] == ["tool"] * len(calls)
    assert [answer.tool_call_id for answer in answers] == [item.id for item in message.tool_calls]
    return [answer.text for answer in answers], info


def test_calls_are_executed_and_other_messages_are_answers() -> None:
    env = Lengths()
    env.reset(seed=0)
    assert env.tools[0]["function"]["name"] == "convert"
    texts, info = call_tools(env, ("convert", '{"value": 2}'), ("convert", '{"value": 1, "unit": "mile"}'))
    assert texts == ["2000.0", "1609.344"]
    assert (info["tool_calls"], info["tool_errors"]) == (2, 0)
    assert env.step("They are 2000.")[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("", '{"name": "conv', "expected a call with a name and a JSON object of arguments; got"),
        ("convert", "[2]", "expected a call with a name and a JSON object"),
        ("convrt", "{}", "there is no tool 'convrt'; the tools are convert"),
        ("convert", "{}", "missing a required argument: 'value'"),
        ("convert", '{"value": "two"}', "convert: value is of type float; got str"),
        ("convert", '{"value": 2, "unit": "m"}', "convert: unit is one of km, mile"),
        ("convert", '{"value": -1}', "a length is not negative"),
    ],
)
def test_a_call_that_cannot_be_executed_is_answered_and_counted(name: str, arguments: str, error: str) -> None:
    env = Lengths()
    env.reset(seed=0)
    texts, info = call_tools(env, (name, arguments), ("convert", '{"value": 2}'))
    assert texts[0].startswith("error: ")
    assert error in texts[0]
    assert texts[1] == "2000.0"
    assert (info["tool_calls"], info["tool_errors"]) == (2, 1)


def test_a_message_with_too_many_calls_is_answered_in_full() -> None:
    env = Lengths()
    env.reset(seed=0)
    texts, info = call_tools(env, *[("convert", '{"value": 2}')] * (MAX_CALLS + 2))
    assert texts[-3:] == ["2000.0", *["error: a message has at most 16 calls"] * 2]
    assert info["tool_errors"] == 2


def test_a_function_without_types_or_descriptions_is_no_tool() -> None:
    def bare(value, unit: str = "km"):  # type: ignore[no-untyped-def]
        """A length."""

    with pytest.raises(EnvError, match=r"'bare' .*type hints"):
        ToolEnv([bare])


def test_the_calculator_can_be_called_as_a_tool() -> None:
    env = gymnasium.make("palaestra/Calculator-v0", tools=True, disable_env_checker=True)
    inner = env.unwrapped
    assert isinstance(inner, CalculatorEnv)
    observation, _ = env.reset(seed=0)
    first, second = inner.factors
    assert observation.messages[-1].text == f"What is {first} * {second}?"
    texts, info = call_tools(env, ("calculate", f'{{"expression": "{first}*{second}"}}'))
    assert texts == [str(first * second)]
    assert info["tool_errors"] == 0
    assert env.step(f"It is {first * second}.")[1:3] == (1.0, True)
    env.reset(seed=0)
    assert env.step("calc: 1+1")[2], "with the tool, `calc:` is an answer like any other"
    vector = TurnVectorEnv(lambda: CalculatorEnv(tools=True), 2)
    assert [tool["function"]["name"] for tool in vector.tools] == ["calculate"]
    vector.close()
    assert not CalculatorEnv().tools


def test_warm_up_examples_have_the_tokens_of_an_episode(nano: LoadedModel) -> None:
    env, tokenizer = CalculatorEnv(tools=True), nano.tokenizer
    end = int(tokenizer.eos_token_id)
    encoder = ChatEncoder(tokenizer, tools=json.dumps(list(env.tools)))
    first, second = calculator_examples(2, seed=0, tools=True)
    opening = env.reset(seed=Seeds(0).derive("calculator").derive(0).integer() % 2**31)[0].messages
    ids = encoder.encode_opening(opening)
    assert tuple(prompt_ids(tokenizer, first.messages)) == ids
    sampled = tokenizer.encode(first.response, add_special_tokens=False)
    message = encoder.decode_message(sampled)
    reply = env.step(message)[0].messages[2:]
    ids += (*sampled, end, *encoder.encode_reply(opening, message, reply, end))
    assert tuple(prompt_ids(tokenizer, second.messages)) == ids
    assert env.step(second.response)[1:3] == (1.0, True)
