"""`palaestra/OpenEnv-v0`: environments of OpenEnv as turn environments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.chat.tool_formats import is_malformed
from palaestra.core.errors import EnvError
from palaestra.core.foreign import ForeignCallError
from palaestra.core.records import Failure, FailureCause, Json, Message, ToolCall
from palaestra.core.registry import is_reference, load_reference
from palaestra.core.settings import check_number
from palaestra.envs.base import Options
from palaestra.envs.turn.base import Reply, TurnStopReason
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv
from palaestra.envs.wrappers.slots import NonFiniteError
from palaestra.integrations.openenv.served import make_sample, read_action_format, write_observation
from palaestra.integrations.openenv.sessions import InvalidActionError, OpenEnvSession, SessionResult, open_session


class OpenEnvEnv(ForeignEnv[OpenEnvSession]):
    """An environment of OpenEnv: a server, or a class in the process. The reward of a turn is OpenEnv's.

    The text of the agent becomes an action by the schema of the environment's actions: a single field takes the text, or
    the last number or choice in it; several fields are written as a JSON object. An environment of MCP tools offers them
    as `tools`, and each call is one step. An action that does not match the schema is answered in the conversation.

    A reward of `None` stands for no reward, but servers send it for NaN too. It is accepted in turns before the first
    number. An episode that ends without any number, and `None` after a number, are failures unless `null_reward` is set.

    Arguments:
        env_id: the address of a server (`http://localhost:8000`), or a class as `module:Class` or `file.py:Class`.
        action: the field of the action for the agent's text, or `json`; by default from the schema.
        observation: the fields of the observation that the agent reads, by default all but the metadata; or a function
            of the observation that returns a text, as `module:function` or `file.py:function`.
        reset_options: further arguments of every `reset`, for example a level. The `options` of a reset replace them.
        null_reward: the reward of a turn without one.
        arguments: arguments of `ForeignEnv`. `env_kwargs` are arguments of a class.

    Example:
        >>> env = OpenEnvEnv("http://localhost:8000")  # doctest: +SKIP
        >>> env.reset(seed=0)[0].messages[-1].text  # doctest: +SKIP
        'Echo environment ready!'
    """

    keeps_generator = False  # OpenEnv does not say what a reset without a seed does; most draw a new one.

    def __init__(
        self,
        env_id: str,
        *,
        action: str = "",
        observation: Sequence[str] | str = (),
        reset_options: Options | None = None,
        null_reward: float | None = None,
        **arguments: Any,
    ) -> None:
        self.shares_random = "://" not in env_id  # Sessions of a server need no lock.
        self.action, self.reset_options = action, dict(reset_options or {})
        self._write = _load_writer(observation)
        self.null_reward = None if null_reward is None else check_number("null_reward", null_reward)
        self._has_reward, self._format = False, read_action_format({})
        super().__init__(env_id, **arguments)

    def make(self) -> OpenEnvSession:
        session = open_session(self.env_id, self.env_kwargs, self.max_call_seconds)
        fields = session.schema.get("properties", {})
        is_tool_env = "tool_name" in fields or not set(fields) - {"metadata"}
        if is_tool_env and not self.action:
            self.tools = _list_tools(self.env_id, session)
            self.sample_actions = [Message("assistant", "", (_make_sample_call(tool),)) for tool in self.tools]
        else:
            self._format = read_action_format(session.schema, self.action)
            self.sample_actions = (self._format.sample(),) * 3
        return session

    def start(self, env: OpenEnvSession, seed: int | None, options: Options) -> str:
        self._has_reward = False
        result = env.reset({**self.reset_options, **options, "seed": seed})
        if result.done:
            raise ForeignCallError(f"reset of {self.env_id} returned an episode that is already over")
        text = self._write(result.observation)
        hint = "" if self.prompt or self.tools else self._format.describe()
        return "\n".join(part for part in (text, hint) if part)

    def play(self, env: OpenEnvSession, text: str) -> ForeignStep:
        action = self._format.parse(text)
        if action is None:
            return ForeignStep(f"That is not an action. {self._format.describe()}".strip(), is_invalid=True)
        try:
            result = env.step(action)
        except InvalidActionError as error:
            return ForeignStep(f"That is not an action: {error}", is_invalid=True)
        return ForeignStep(self._write(result.observation), self._read_reward(result), result.done)

    def play_message(self, env: OpenEnvSession, message: Message) -> ForeignStep:
        if not self.tools:
            return self.play(env, message.text)
        if not message.tool_calls:
            names = ", ".join(tool["function"]["name"] for tool in self.tools)
            return ForeignStep(f"Call one of the tools: {names}.", is_invalid=True)
        answers, reward, errors, done = list[Message](), 0.0, 0, False
        for call in message.tool_calls:
            if done:
                answers.append(Message("tool", "error: the episode is over", tool_call_id=call.id))
                continue
            try:
                result = env.step(_to_action(call))
            except InvalidActionError as error:
                errors += 1
                answers.append(Message("tool", f"error: {error}", tool_call_id=call.id))
                continue
            errors += bool(result.observation.get("error"))
            reward, done = reward + self._read_reward(result), result.done
            answers.append(Message("tool", _write_tool_result(result.observation), tool_call_id=call.id))
        info = {"tool_calls": len(message.tool_calls), "tool_errors": errors}
        return ForeignStep("", reward, done, is_invalid=errors > 0, info=info, messages=answers)

    def truncate(self, reason: TurnStopReason) -> Reply:
        if self._has_reward or self.null_reward is not None:
            return super().truncate(reason)
        message = f"{self.env_id} gave no reward in the whole episode; set null_reward to the value of None"
        return Reply(failure=Failure(FailureCause.ENVIRONMENT, message))

    def _read_reward(self, result: SessionResult) -> float:
        if result.reward is not None:
            self._has_reward = True
            return result.reward
        if self.null_reward is not None:
            return self.null_reward
        if result.done or self._has_reward:
            raise NonFiniteError(f"{self.env_id} returned no finite reward; set null_reward to the value of None")
        return 0.0


class OpenEnvVectorEnv(ForeignVectorEnv):
    """`OpenEnvEnv` in slots. Takes the arguments of both. A server needs a session for each slot."""

    kind = OpenEnvEnv


def _load_writer(observation: Sequence[str] | str) -> Callable[[Options], str]:
    if isinstance(observation, str) and is_reference(observation):
        function: Callable[[Options], str] = load_reference(observation)
        return function
    names = (observation,) if isinstance(observation, str) else tuple(observation)
    return lambda fields: write_observation(fields, names)


def _list_tools(env_id: str, session: OpenEnvSession) -> list[Json]:
    """The tools of an environment in OpenAI's format."""
    listed = session.step({"type": "list_tools"}).observation.get("tools") or ()
    tools = [
        {
            "type": "function",
            "function": {
                "name": str(tool["name"]),
                "description": str(tool.get("description", "")),
                "parameters": dict(tool.get("input_schema") or {"type": "object", "properties": {}}),
            },
        }
        for tool in listed
    ]
    if not tools:
        raise EnvError(f"{env_id} has neither tools nor actions with fields; set action to the field for the text")
    return tools


def _make_sample_call(tool: Options) -> ToolCall:
    function = tool["function"]
    return ToolCall(function["name"], json.dumps(make_sample(function["parameters"].get("properties", {}))), "0")


def _to_action(call: ToolCall) -> Json:
    if is_malformed(call):
        raise InvalidActionError(f"expected a call with a name and a JSON object of arguments; got {call.name!r}")
    return {"type": "call_tool", "tool_name": call.name, "arguments": json.loads(call.arguments)}


def _write_tool_result(observation: Options) -> str:
    """The text of a tool's result. FastMCP wraps values in an object with `data`."""
    if error := observation.get("error"):
        return f"error: {error.get('message', error) if isinstance(error, Mapping) else error}"
    result = observation.get("result")
    if isinstance(result, Mapping) and "data" in result:
        result = result["data"]
    return result if isinstance(result, str) else json.dumps(result)
