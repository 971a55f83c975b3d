"""Multi-turn games that the smallest model can play: `palaestra/Guess-v0` and `palaestra/Calculator-v0`."""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from palaestra.chat.rendering import to_plain, with_tools
from palaestra.core.errors import EnvError
from palaestra.core.records import Example, Message, Split, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer, check_number
from palaestra.envs.base import Options
from palaestra.envs.turn.base import Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.tools import answer_calls, make_tools
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.tasks.base import get_split

_NUMBER = re.compile(r"-?\d+")
_CALL = re.compile(r"^\s*calc:(.*)$", re.MULTILINE)
_MAX_EXPRESSION = 64
_MAX_RESULT = 10**9
"""The largest number that the calculator returns."""
_MAX_GUESS = 10**18
"""The largest number that can be guessed."""


class GuessEnv(TurnEnv):
    """Guess a number. Every guess is answered with "Higher." or "Lower.".

    A guess is the last whole number of a message. A message without one uses up an attempt too. Finding the number ends
    the episode with reward 1 (`TurnStopReason.SOLVED`), using up the attempts with 0 (`TurnStopReason.LOST`). Binary
    search finds any of `2**attempts - 1` numbers; a player that ignores the answers finds `attempts` of them.

    Arguments:
        low, high: the range, both ends included.
        attempts: the number of guesses.
        format_penalty: subtracted from the reward of a message without a number.

    Example:
        >>> env = GuessEnv(high=8)
        >>> observation, info = env.reset(seed=1)
        >>> observation.messages[-1].text
        'Guess a number from 1 to 8.'
        >>> env.step("Answer: 8")[0].messages[-1].text
        'Lower.'
    """

    def __init__(
        self,
        low: int = 1,
        high: int = 8,
        attempts: int = 3,
        format_penalty: float = 0.0,
        *,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            max_turns=check_integer("attempts", attempts, minimum=1), max_seconds=max_seconds, render_mode=render_mode
        )
        self.low = check_integer("low", low, minimum=-_MAX_GUESS, maximum=_MAX_GUESS)
        self.high = check_integer("high", high, minimum=self.low, maximum=_MAX_GUESS)
        self.attempts, self.format_penalty = self.max_turns, check_number("format_penalty", format_penalty, minimum=0)
        self._secret = self.low

    def opening(self, options: Options) -> Sequence[Message]:
        self._secret = int(self.np_random.integers(self.low, self.high + 1))
        return [Message("user", f"Guess a number from {self.low} to {self.high}.")]

    def respond(self, message: Message) -> Reply:
        numbers = _NUMBER.findall(message.text)
        guess = int(numbers[-1][:20]) if numbers else None
        if guess == self._secret:
            return Reply(reward=1.0, stop=TurnStopReason.SOLVED)
        penalty = -self.format_penalty if guess is None else 0.0
        if self.turn >= self.attempts:
            return Reply(reward=penalty, stop=TurnStopReason.LOST)
        answer = "Say a number." if guess is None else "Higher." if guess < self._secret else "Lower."
        return Reply((Message("user", answer),), penalty)


class CalculatorEnv(TurnEnv):
    """A product of two numbers, with a calculator as a tool: the message `calc: 37*48` is answered by the tool.

    A line `calc: EXPRESSION` (numbers, `+ - * /`, brackets) calls the tool. Its result, or an error, comes back as a
    message of the role `tool`. Any other message is the answer: its last whole number. It ends the
    episode with reward 1 if it is right (`TurnStopReason.SOLVED`) and 0 otherwise (`TurnStopReason.LOST`). An episode
    that still calls the tool in its last turn is truncated (`TurnStopReason.STEPS`).

    Arguments:
        digits: the number of digits of both factors.
        split: the pairs of factors; the train split is disjoint from the held-out splits.
        max_turns: the maximum number of messages, including the answer.
        offer: mention the tool in the question.
        tools: offer the calculator as the tool `calculate`, which is called in the format of the model's chat template,
            instead of `calc:`.

    Example:
        >>> env = CalculatorEnv()
        >>> observation, info = env.reset(seed=0)
        >>> env.step("calc: 12*7")[0].messages[-1]
        Message(role='tool', content='84', tool_calls=(), tool_call_id='')
    """

    held_out: ClassVar[Options] = {"split": "test"}

    def __init__(
        self,
        digits: int = 2,
        split: str = "train",
        max_turns: int = 3,
        offer: bool = True,
        tools: bool = False,
        *,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if split not in list(Split):
            raise EnvError(f"split must be one of {', '.join(Split)}; got {split!r}")
        super().__init__(
            max_turns=check_integer("max_turns", max_turns, minimum=1), max_seconds=max_seconds, render_mode=render_mode
        )
        self.digits, self.split, self.offer = check_integer("digits", digits, minimum=2, maximum=6), Split(split), offer
        self.factors = (0, 0)
        self._tools = make_tools([calculate]) if tools else {}
        self.tools = [tool.schema() for tool in self._tools.values()]

    def opening(self, options: Options) -> Sequence[Message]:
        while True:
            first, second = (int(n) for n in self.np_random.integers(10 ** (self.digits - 1), 10**self.digits, size=2))
            # Order does not matter: 37*48 and 48*37 belong to the same split.
            if get_split(f"calculator|{min(first, second)}*{max(first, second)}") is self.split:
                break
        self.factors = first, second
        hint = " You may write calc: and an expression." if self.offer and not self.tools else ""
        return [Message("user", f"What is {first} * {second}?{hint}")]

    def respond(self, message: Message) -> Reply:
        if self.tools and message.tool_calls:
            return answer_calls(self._tools, message)
        calls = _CALL.findall(message.text) if not self.tools else []
        if calls:
            return Reply((Message("tool", calculate(calls[-1])),), info={"called": True})
        numbers = _NUMBER.findall(message.text)
        first, second = self.factors
        right = bool(numbers) and numbers[-1] == str(first * second)
        return Reply(reward=float(right), stop=TurnStopReason.SOLVED if right else TurnStopReason.LOST)


def calculator_examples(count: int, seed: int, **arguments: Any) -> list[Example]:
    """Generate turns of episodes that call the tool and answer with its result, for a supervised warm-up.

    A model that never writes `calc:` cannot discover that it is rewarded. With `tools=True` the messages describe the tool
    and contain calls as text, as for a model whose chat template does not support tools.

    Arguments:
        count: the number of examples, alternating calls and answers.
        arguments: arguments of `CalculatorEnv`.

    >>> [example.response for example in calculator_examples(2, seed=0)]
    ['calc: 66*33', 'Answer: 2178']
    """
    env, seeds, examples = CalculatorEnv(**arguments), Seeds(seed).derive("calculator"), list[Example]()
    tools = json.dumps(list(env.tools)) if env.tools else ""
    for episode in range(-(-count // 2)):
        observation, _ = env.reset(seed=seeds.derive(episode).integer() % 2**31)
        first, second = env.factors
        call = Message("assistant", f"calc: {first}*{second}")
        if tools:
            arguments_text = json.dumps({"expression": f"{first}*{second}"})
            call = Message("assistant", "", (ToolCall("calculate", arguments_text, "call00001"),))
        opening, after_call = observation.messages, env.step(call)[0].messages
        if tools:
            opening, after_call = with_tools(opening, tools), with_tools(after_call, tools)
        examples.append(Example(opening, to_plain(call).text))
        examples.append(Example(after_call, f"Answer: {first * second}"))
    return examples[:count]


class GuessVectorEnv(TurnVectorEnv):
    """`GuessEnv` in slots. Takes the arguments of both."""

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(GuessEnv, num_envs, **arguments)


class CalculatorVectorEnv(TurnVectorEnv):
    """`CalculatorEnv` in slots. Takes the arguments of both."""

    def __init__(self, num_envs: int = 1, **arguments: Any) -> None:
        super().__init__(CalculatorEnv, num_envs, **arguments)


_OPERATIONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(expression: str) -> str:
    """Evaluate an expression of numbers, `+ - * /` and brackets; returns an error message if it is invalid.

    Arguments:
        expression: for example 12*7

    >>> calculate("12*7"), calculate("(1+2)/4"), calculate("1/0"), calculate("x")
    ('84', '0.75', 'error: division by zero', 'error: not an expression')
    """
    text = expression.strip().removesuffix("=")
    if len(text) > _MAX_EXPRESSION:
        return "error: too long"
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except ZeroDivisionError:
        return "error: division by zero"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: not an expression"
    if abs(value) > _MAX_RESULT:
        return "error: too large"
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"


def _value(node: ast.AST) -> Fraction:
    """Compute the exact value of an expression."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value: Fraction = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        return value
    raise ValueError(type(node).__name__)
