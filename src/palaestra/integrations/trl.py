"""Turn environments and tasks for TRL's `GRPOTrainer`: environment classes, reward functions and data sets.

For the `environment_factory` TRL makes one instance per rollout, calls `reset` with the row of the data set, and offers every other public method as a
tool. A message without a call ends the rollout. TRL passes this message only to reward functions, so the reward is a
reward function (`score_episodes`) and not a method of the class.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import GenericAlias, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from palaestra.core.errors import EnvError, ModelError, TaskError
from palaestra.core.records import Failure, Json, Message, ToolCall
from palaestra.core.tables import load_table
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.base import Options
from palaestra.envs.turn.base import TurnStopReason
from palaestra.envs.turn.tasks import ProblemSet
from palaestra.integrations import load_library
from palaestra.integrations.episodes import EpisodeSession
from palaestra.tasks.base import Task

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

_OVER = "The episode is over. Write a short closing message without calling a tool."
"""What a call is answered with after the end of the episode."""
_TYPES: Mapping[str, type] = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
"""The Python types of JSON schema types."""


class TrlEnvironment:
    """Base class of the classes that `make_environment_class` makes. `reset` takes the columns of a row.

    Raises:
        EnvError: the row has no seed. Without one, the rollouts of a group would start from different states.
    """

    _env_id: ClassVar[str]
    _env_kwargs: ClassVar[Options]

    def __init__(self) -> None:
        self._session = EpisodeSession(self._env_id, self._env_kwargs)
        self._error: EnvError | None = None

    def reset(self, seed: int | None = None, **row: object) -> None:
        if seed is None:
            raise EnvError("the data set has no column 'seed'; make it with palaestra.integrations.trl.make_dataset")
        self._session.start(int(seed))

    def _send(self, action: str | Message) -> str:
        """Take one turn and return the environment's answer as one text."""
        if self._session.is_over:
            return _OVER
        try:
            texts = [message.text for message in self._session.send(action)]
        except EnvError as error:  # TRL tells the model about every exception; `score_episodes` raises this one.
            self._error = error
            raise
        return "\n".join([*texts, _OVER] if self._session.is_over else texts)


def make_environment_class(env_id: str, env_kwargs: Options | None = None) -> type[TrlEnvironment]:
    """Make a class for the `environment_factory` of `GRPOTrainer` from a turn environment.

    The tools of an environment become methods of the class. An environment without tools gets the tool `reply`, which
    sends a message.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it.
        env_kwargs: arguments of the environment.

    Example:
        >>> kind = make_environment_class("palaestra/Guess-v0", {"high": 4})
        >>> environment = kind()
        >>> environment.reset(seed=1)
        >>> environment.reply(message="3")
        'Lower.'
    """
    session = EpisodeSession(env_id, env_kwargs)
    tools = list(session.inside.tools)
    session.close()
    methods = {tool["function"]["name"]: _make_tool_method(tool["function"]) for tool in tools} or {"reply": _reply}
    members = {"_env_id": env_id, "_env_kwargs": dict(env_kwargs or {}), "__doc__": f"{env_id} for TRL.", **methods}
    return type(type(session.inside).__name__, (TrlEnvironment,), members)


def score_episodes(
    environments: Sequence[TrlEnvironment],
    completions: Sequence[Sequence[Json]],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: object,
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
    return _count_failures([environment._session.result for environment in environments], log_metric)


def _count_failures(rewards: list[float | None], log_metric: Callable[[str, float], None] | None) -> list[float | None]:
    """Log the number of missing rewards as the metric `failures`. Returns the rewards."""
    if log_metric is not None:
        log_metric("failures", float(rewards.count(None)))
    return rewards


def make_dataset(
    env_id: str, seeds: Iterable[int], env_kwargs: Options | None = None, system: str = ""
) -> datasets.Dataset:
    """Make the `datasets.Dataset` of an environment: the first messages of an episode (`prompt`) and its `seed`.

    Arguments:
        seeds: the seeds of the episodes, one row each.
        system: a system message before each prompt.

    Raises:
        EnvError: an episode cannot be started.
    """
    package = _load_datasets()
    session = EpisodeSession(env_id, env_kwargs)
    before = [{"role": "system", "content": system}] if system else []
    rows = []
    for seed in seeds:
        opening = session.start(seed)
        if session.failure is not None:
            raise EnvError(f"{env_id} cannot start an episode with seed {seed}: {session.failure.message}")
        rows.append({"prompt": before + to_chat_messages(opening), "seed": int(seed)})
    session.close()
    return package.Dataset.from_list(rows)


def _load_datasets() -> ModuleType:
    """Import `datasets`. Raises `MissingExtraError` if it is not installed."""
    return load_library("datasets", "datasets", "trl", "a data set for TRL")


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


def _make_tool_method(function: Json) -> Callable[..., str]:
    """Make a method with the name, the types and the descriptions of a tool in OpenAI's format."""
    name, properties = function["name"], function.get("parameters", {}).get("properties", {})

    def call(self: TrlEnvironment, **arguments: object) -> str:
        return self._send(Message("assistant", "", (ToolCall(name, json.dumps(arguments), "call"),)))

    hints = {argument: _to_type(schema) for argument, schema in properties.items()}
    lines = [f"    {argument}: {schema.get('description', argument)}" for argument, schema in properties.items()]
    call.__name__, call.__annotations__ = name, {**hints, "return": str}
    description = function.get("description") or name
    call.__doc__ = "\n".join([description, "", "Args:", *lines, "", "Returns:", "    The result."])
    parameters = [inspect.Parameter(a, inspect.Parameter.KEYWORD_ONLY, annotation=hint) for a, hint in hints.items()]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([own, *parameters], return_annotation=str)  # type: ignore[attr-defined]
    return call


def _to_type(schema: Json) -> type | GenericAlias:
    if schema.get("type") == "array":
        return list[_to_type(schema.get("items", {}))]  # type: ignore[misc]
    return _TYPES.get(schema.get("type", ""), str)


class TaskReward:
    """The reward function of a task: the score of the last message of a completion.

    A failing scorer gives `None`, which TRL leaves out of the baseline; `failures` counts them. The function needs the
    column `problem` of `make_dataset`.

    Arguments:
        task: a task, or its name (`palaestra list tasks`).
        arguments: arguments of `ProblemSet`: `split`, `problems`, `skills`, `problem_seed`, `task_kwargs`.

    Example:
        >>> reward = TaskReward("math-skills", skills="addition", problems=8)
        >>> dataset = reward.make_dataset()  # doctest: +SKIP
        >>> trainer = GRPOTrainer(model, reward_funcs=reward, train_dataset=dataset)  # doctest: +SKIP
    """

    def __init__(self, task: str | Task = "math-skills", **arguments: Any) -> None:
        self.problem_set = ProblemSet(task, **arguments)
        self.problems = {problem.id: problem for problem in self.problem_set.problems}
        self.__name__ = self.problem_set.task.name  # The name of the metric in TRL.

    def make_dataset(self) -> datasets.Dataset:
        """Make the `datasets.Dataset` of the problems: `prompt`, `problem` and `skill`."""
        problems = self.problems.values()
        rows = [{"prompt": to_chat_messages(p.messages), "problem": p.id, "skill": p.skill} for p in problems]
        return _load_datasets().Dataset.from_list(rows)

    def __call__(
        self,
        completions: Sequence[str | Sequence[Json]],
        problem: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: object,
    ) -> list[float | None]:
        rewards = [self._score(name, completion) for name, completion in zip(problem, completions, strict=True)]
        return _count_failures(rewards, log_metric)

    def _score(self, name: str, completion: str | Sequence[Json]) -> float | None:
        if name not in self.problems:
            raise TaskError(f"there is no problem {name!r}; make the data set with make_dataset of the same TaskReward")
        text = completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
        outcome = self.problem_set.score(self.problems[name], text)
        return None if isinstance(outcome, Failure) else outcome.value


_TO_PLAIN: str = load_table(__file__, "jinja")["to_plain"]
"""Jinja that turns calls of `reply` into plain messages and tool messages into those of the user."""


def make_plain_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Copy a tokenizer so that TRL plays an environment with plain messages, as `palaestra train` does.

    Each message of the model counts as a call of the tool `reply`. The environment's answer is rendered as a user's
    message, and no tool is described in the prompt. Set `max_tool_calling_iterations` to the number of turns: TRL asks
    for another message after every call.

    Raises:
        ModelError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise ModelError("the tokenizer has no chat template")
    question = [{"role": "user", "content": "?"}]
    without = tokenizer.apply_chat_template(question, tokenize=False)
    prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    plain = deepcopy(tokenizer)
    plain.chat_template = _TO_PLAIN + tokenizer.chat_template
    plain.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": prompt.removeprefix(without),
        "fields": {
            "tool_calls": {
                "close": tokenizer.eos_token,
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": {"name": "reply", "arguments": {"message": "{content}"}}},
            }
        },
    }
    return plain
