"""Turn environments as classes for the `environment_factory` of TRL's `GRPOTrainer`.

TRL makes one instance per rollout, calls `reset` with the row of the data set, and offers every other public method as a
tool. A message without a call ends the rollout. TRL passes this message only to reward functions, so the reward is a
reward function (`score_episodes`) and not a method of the class.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from palaestra.core.errors import EnvError, MissingExtraError
from palaestra.core.records import Message, ToolCall
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.turn.records import TurnStopReason
from palaestra.integrations.episodes import EpisodeSession

OVER = "The episode is over. Write a short closing message without calling a tool."
"""What a call is answered with after the end of the episode."""
TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
"""The Python types of JSON schema types."""


class TrlEnvironment:
    """Base class of the classes that `make_environment_class` makes. `reset` takes the columns of a row.

    Raises:
        EnvError: the row has no seed. Without one, the rollouts of a group would start from different states.
    """

    _env_id: ClassVar[str]
    _env_options: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        self._session = EpisodeSession(self._env_id, self._env_options)
        self._error: EnvError | None = None

    def reset(self, seed: int | None = None, **row: Any) -> None:
        if seed is None:
            raise EnvError("the data set has no column 'seed'; make it with palaestra.integrations.trl.make_dataset")
        self._session.start(int(seed))

    def _send(self, action: str | Message) -> str:
        """Take one turn and return the environment's answer as one text."""
        if self._session.is_over:
            return OVER
        try:
            texts = [message.text for message in self._session.send(action)]
        except EnvError as error:  # TRL tells the model about every exception; `score_episodes` raises this one.
            self._error = error
            raise
        return "\n".join([*texts, OVER] if self._session.is_over else texts)


def make_environment_class(env_id: str, env_options: Mapping[str, Any] | None = None) -> type[TrlEnvironment]:
    """Make a class for the `environment_factory` of `GRPOTrainer` from a turn environment.

    The tools of an environment become methods of the class. An environment without tools gets the tool `reply`, which
    sends a message.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it.
        env_options: arguments of the environment.

    Example:
        >>> kind = make_environment_class("palaestra/Guess-v0", {"high": 4})
        >>> environment = kind()
        >>> environment.reset(seed=1)
        >>> environment.reply(message="3")
        'Lower.'
    """
    session = EpisodeSession(env_id, env_options)
    tools = list(session.inside.tools)
    session.close()
    methods = {tool["function"]["name"]: _make_tool_method(tool["function"]) for tool in tools} or {"reply": _reply}
    members = {"_env_id": env_id, "_env_options": dict(env_options or {}), "__doc__": f"{env_id} for TRL.", **methods}
    return type(type(session.inside).__name__, (TrlEnvironment,), members)


def score_episodes(
    environments: Sequence[TrlEnvironment],
    completions: Sequence[Sequence[Mapping[str, Any]]],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The reward function of the environments: the sum of an episode's rewards.

    The last message of a completion goes to the environment if it is not a call. Then an episode that has not ended is
    truncated. A failed episode gets `None`, which TRL leaves out of the baseline; `failures` counts them.

    Raises:
        EnvError: an environment broke its interface.
    """
    for environment, completion in zip(environments, completions, strict=True):
        if environment._error is not None:
            raise environment._error
        session, last = environment._session, completion[-1] if completion else {}
        if not session.is_over and last.get("role") == "assistant" and not last.get("tool_calls"):
            session.send(str(last.get("content") or ""))
        session.stop(TurnStopReason.STEPS)
    results = [environment._session.result for environment in environments]
    if log_metric is not None:
        log_metric("failures", float(sum(result is None for result in results)))
    return results


def make_dataset(
    env_id: str, seeds: Iterable[int], env_options: Mapping[str, Any] | None = None, system: str = ""
) -> Any:
    """Make the `datasets.Dataset` of an environment: the first messages of an episode (`prompt`) and its `seed`.

    Arguments:
        seeds: the seeds of the episodes, one row each.
        system: a system message before each prompt.

    Raises:
        EnvError: an episode cannot be started.
    """
    datasets = load_datasets()
    session = EpisodeSession(env_id, env_options)
    before = [{"role": "system", "content": system}] if system else []
    rows = []
    for seed in seeds:
        opening = session.start(seed)
        if session.failure is not None:
            raise EnvError(f"{env_id} cannot start an episode with seed {seed}: {session.failure.message}")
        rows.append({"prompt": before + to_chat_messages(opening), "seed": int(seed)})
    session.close()
    return datasets.Dataset.from_list(rows)


def load_datasets() -> Any:
    """Import `datasets`. Raises `MissingExtraError` if it is not installed."""
    if find_spec("datasets") is None:
        raise MissingExtraError("datasets", "trl", "a data set for TRL")
    import datasets

    return datasets


def _reply(self, message: str) -> str:  # type: ignore[no-untyped-def]  # A type of self would be an argument of the tool.
    """
    Send your next message and read the answer.

    Args:
        message: Your message.

    Returns:
        The answer.
    """
    answer: str = self._send(message)
    return answer


_reply.__name__ = "reply"


def _make_tool_method(function: Mapping[str, Any]) -> Callable[..., str]:
    """Make a method with the name, the types and the descriptions of a tool in OpenAI's format."""
    name, properties = function["name"], function.get("parameters", {}).get("properties", {})

    def call(self: TrlEnvironment, **arguments: Any) -> str:
        return self._send(Message("assistant", "", (ToolCall(name, json.dumps(arguments), "call"),)))

    hints = {argument: _to_type(schema) for argument, schema in properties.items()}
    lines = [f"    {argument}: {schema.get('description', argument)}" for argument, schema in properties.items()]
    call.__name__, call.__annotations__ = name, {**hints, "return": str}
    call.__doc__ = "\n".join(
        [function.get("description") or name, "", "Args:", *lines, "", "Returns:", "    The result."]
    )
    parameters = [inspect.Parameter(a, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for a, hint in hints.items()]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([own, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    return call


def _to_type(schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "array":
        return list[_to_type(schema.get("items", {}))]  # type: ignore[misc]
    return TYPES.get(schema.get("type", ""), str)
