"""Turn environments with tools: typed Python functions that the model calls in the format of its chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from palaestra.chat.tool_formats import is_malformed
from palaestra.core.errors import EnvError
from palaestra.core.records import Message, ToolCall
from palaestra.envs.turn.base import Reply, TurnEnv
from palaestra.tasks.tools.library.tool import ArgumentError, Tool, make_tool

MAX_CALLS = 16
"""The maximum number of calls in one message that are executed."""
_MAX_ANSWER = 10_000
"""The maximum number of characters of a tool's answer."""


class ToolEnv(TurnEnv):
    """A turn environment whose agent may call Python functions. Subclasses define `opening` and `answer`.

    A message with calls is answered by one tool message for each call. A call that cannot be executed (malformed, of an
    unknown tool, with wrong arguments) is answered with an error, so that the model can correct it; `info["tool_calls"]`
    and `info["tool_errors"]` count the calls and these errors. Other messages go to `answer`.

    Arguments:
        functions: typed functions. The first line of the docstring describes the result, and `Arguments:` each argument
            in one line. A `ValueError` of a function is answered with its message.
        max_turns, max_seconds, render_mode: as for `TurnEnv`.

    Raises:
        EnvError: a function has no type hints, or an argument is not described.

    Example:
        >>> def double(number: int) -> int:
        ...     '''Twice the number.
        ...
        ...     Arguments:
        ...         number: any number
        ...     '''
        ...     return 2 * number
        >>> class Doubling(ToolEnv):
        ...     def opening(self, options):
        ...         return "What is twice 21?"
        ...     def answer(self, message):
        ...         return Reply(reward=float("42" in message.text), stop="submitted")
        >>> env = Doubling([double])
        >>> observation, info = env.reset(seed=0)
        >>> env.step(Message("assistant", "", (ToolCall("double", '{"number": 21}', "a"),)))[0].messages[-1].text
        '42'
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., object]],
        *,
        max_turns: int = 0,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, max_seconds=max_seconds, render_mode=render_mode)
        self._tools = make_tools(functions)
        self.tools = [tool.schema() for tool in self._tools.values()]

    def respond(self, message: Message) -> Reply:
        return answer_calls(self._tools, message) if message.tool_calls else self.answer(message)

    def answer(self, message: Message) -> Reply:
        """Return the reply to a message without calls."""
        raise NotImplementedError(f"{type(self).__name__} needs `answer`: the reply to a message without calls")


def make_tools(functions: Sequence[Callable[..., object]]) -> dict[str, Tool]:
    """Make the tools of typed functions, by name.

    Raises:
        EnvError: a function has no type hints, or an argument is not described.
    """
    tools = {}
    for function in functions:
        try:
            tool = make_tool(function, "")
            tool.schema()
        except (KeyError, TypeError, NameError) as error:
            raise EnvError(
                f"the function {getattr(function, '__name__', function)!r} cannot be a tool: expected type hints (str, int, "
                f"float, list[float] or a Literal of texts) and a line for each argument in its docstring; {error!r}"
            ) from error
        tools[tool.name] = tool
    return tools


def answer_calls(tools: Mapping[str, Tool], message: Message) -> Reply:
    """Execute the calls of a message. Returns one tool message for each, and counts calls and errors in `info`."""
    answers, errors = [], 0
    for place, call in enumerate(message.tool_calls):
        try:
            if place >= MAX_CALLS:
                raise ArgumentError(f"a message has at most {MAX_CALLS} calls")
            text = _execute_call(tools, call)
        except ValueError as error:
            text = f"error: {error}"
            errors += 1
        answers.append(Message("tool", text[:_MAX_ANSWER], tool_call_id=call.id))
    return Reply(answers, info={"tool_calls": len(message.tool_calls), "tool_errors": errors})


def _execute_call(tools: Mapping[str, Tool], call: ToolCall) -> str:
    """Execute a call and return its result as text.

    Raises:
        ArgumentError: the call is malformed, there is no such tool, or the arguments are wrong.
        ValueError: the function rejects the arguments.
    """
    if is_malformed(call):
        written = f"{call.name} {call.arguments}".strip()
        raise ArgumentError(f"expected a call with a name and a JSON object of arguments; got {written[:200]!r}")
    if call.name not in tools:
        raise ArgumentError(f"there is no tool {call.name!r}; the tools are {', '.join(tools)}")
    tool = tools[call.name]
    result = tool.function(**tool.bind(kwargs=json.loads(call.arguments)))
    return result if isinstance(result, str) else json.dumps(result)
