"""Reward functions of the user, with the signature of TRL's.

    def length(completions, **columns):            # all completions in one call, as in TRL
        return [len(completion) / 100 for completion in completions]

    def right(completion, answer):                 # or one completion per call
        return float(answer in completion)

A function gets the arguments that it names: `completions`, `prompts` and `completion_ids`, and a list for each column of the
data; or `completion`, `prompt` and `completion_ids` of one response, and a value for each column. A completion is a text. If
the prompt of the data is a list of messages, a completion is one too, as in TRL. `None` as a value means that the function
does not apply to this prompt. Functions may be `async`; they then run at the same time.

In training, the first kind is called once per iteration with the responses of this process, group by group. It may also
take what TRL's trainer passes: `trainer_state`, `log_extra(column, values)` and `log_metric(name, value)`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from palaestra.chat.rendering import to_chat_message
from palaestra.core.errors import RewardError, SettingsError
from palaestra.core.records import Message, Problem
from palaestra.core.registry import describe_location, load_reference
from palaestra.core.settings import short_repr
from palaestra.envs.token.prompts import Response, to_reward

RewardLike = str | Callable[..., Any]
"""A function, or its reference `file.py:function`."""
_NAMES = {"completion", "completions", "prompt", "prompts", "completion_ids"}
"""What a function of completions takes at least one of."""


@dataclass(frozen=True, slots=True)
class ScoredResponse:
    """What reward functions return and log for one response.

    Arguments:
        reward: the weighted sum of their values, or a `RewardError` if none applies: a missing reward is no 0.
        parts: the values of the functions that apply, by name.
        columns: the values of `log_extra` by column.
        metrics: the means of `log_metric` over the responses that were scored together.
    """

    reward: float | RewardError
    parts: Mapping[str, float]
    columns: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class TrainerState:
    """The progress of a run, as the `transformers.TrainerState` that TRL passes, which takes seconds to import.

    Arguments:
        global_step: the number of updates so far.
        max_steps: the number of iterations of the run.
        epoch: the number of passes over the prompts so far.
    """

    def __init__(self, global_step: int = 0, max_steps: int = 0, epoch: float = 0.0) -> None:
        self.global_step, self.max_steps, self.epoch = global_step, max_steps, epoch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from transformers import TrainerState as Original

        return getattr(Original(), name)


class _Log:
    """What reward functions log about the responses of one call."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.columns: dict[str, list[Any]] = {}
        self.metrics: defaultdict[str, list[float]] = defaultdict(list)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        if len(values) != self.count:
            raise RewardError(f"log_extra('{column}'): expected {self.count} values; got {len(values)}")
        self.columns[column] = [v if isinstance(v, str | bool | int | float | None) else str(v) for v in values]

    def log_metric(self, name: str, value: object) -> None:
        self.metrics[name].append(to_reward(value))


class RewardFunctions:
    """The weighted sum of the values of several reward functions.

    Arguments:
        functions: functions, or references to them.
        weights: a weight for each; 1 if empty.

    Raises:
        SettingsError: a function takes no completions, or there is another number of weights.
    """

    def __init__(self, functions: Sequence[RewardLike], weights: Sequence[float] = ()) -> None:
        if weights and len(weights) != len(functions):
            raise SettingsError(
                f"setting 'reward_weights': expected {len(functions)}, one for each reward; got {len(weights)}"
            )
        self.weights = list(weights) or [1.0] * len(functions)
        self._functions: dict[str, _Function] = {}
        for given in functions:
            function = _Function(load_reference(given) if isinstance(given, str) else given)
            name, count = function.name, 1
            while name in self._functions:
                count += 1
                name = f"{function.name}_{count}"
            self._functions[name] = function

    @property
    def names(self) -> list[str]:
        """The names of the functions."""
        return list(self._functions)

    def compute(self, responses: Sequence[Response], state: TrainerState | None = None) -> list[ScoredResponse]:
        """Score responses together.

        Arguments:
            state: the progress of the run.
        """
        log = _Log(len(responses))
        shared = {"trainer_state": state or TrainerState(), "log_extra": log.log_extra, "log_metric": log.log_metric}
        columns = [_read_columns(response) for response in responses]
        results = [function(responses, columns, shared) for function in self._functions.values()]
        results = _run(results)
        metrics = {name: math.fsum(values) / len(values) for name, values in log.metrics.items()}
        scored = []
        for place in range(len(responses)):
            values = {name: result[place] for name, result in zip(self._functions, results, strict=True)}
            known = {name: value for name, value in values.items() if not math.isnan(value)}
            weighted = [w * v for w, v in zip(self.weights, values.values(), strict=True) if not math.isnan(v)]
            reward = math.fsum(weighted) if weighted else RewardError("no reward function applies: each returned None")
            extra = {column: entries[place] for column, entries in log.columns.items()}
            scored.append(ScoredResponse(reward, known, extra, metrics))
        return scored


class _Function:
    """A reward function with what its signature tells."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, getattr(function, "__name__", type(function).__name__)
        if not callable(function):
            raise SettingsError(f"expected a reward function; got {short_repr(function)}")
        self.takes_response = _takes_response(function)
        signature = inspect.signature(function)
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        self.names = set(signature.parameters)
        self.in_batch = not {"completion", "prompt"} & self.names
        try:
            if self.takes_response or not signature.parameters:
                signature.bind(None)
        except TypeError:
            raise SettingsError(
                f"the reward function {self.name}{describe_location(function)} must take completions (all, as in TRL), "
                f"completion (one) or a Response; it takes {', '.join(self.names) or 'nothing'}"
            ) from None

    def __call__(
        self, responses: Sequence[Response], columns: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
    ) -> Any:
        """The values, or a coroutine that returns them.

        Arguments:
            shared: arguments that are not lists.
        """
        if self.takes_response:
            return _check([self.function(response) for response in responses], self, len(responses))
        rows = [
            {**row, **_read_texts(response, row), "completion_ids": list(response.token_ids)}
            for response, row in zip(responses, columns, strict=True)
        ]
        if self.in_batch:
            names = dict.fromkeys(name for row in rows for name in row)
            lists = {name: [row.get(name) for row in rows] for name in names}
            lists |= {"completions": lists.pop("completion"), "prompts": lists.pop("prompt")}
            result = self.function(**self._select({**lists, **shared}))
            return (
                _check_later(result, self, len(rows))
                if inspect.isawaitable(result)
                else _check(result, self, len(rows))
            )
        results = [self.function(**self._select({**row, **shared})) for row in rows]
        if results and inspect.isawaitable(results[0]):
            return _check_later(_gather(results), self, len(rows))
        return _check(results, self, len(rows))

    def _select(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if self.takes_all or name in self.names}


def make_reward(
    reward: RewardLike | Sequence[RewardLike] | None, weights: Sequence[float] = ()
) -> Callable[[Response], float] | RewardFunctions | None:
    """Return reward functions as one. A single function of a `Response` is returned unchanged.

    Raises:
        SettingsError: a function takes neither completions nor a response, or weights are given without rewards.
    """
    if callable(reward) and _takes_response(reward) and not weights:
        return reward
    functions = [] if reward is None else [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    if weights and not functions:
        raise SettingsError("setting 'reward_weights' has no effect without 'reward'")
    return RewardFunctions(functions, weights) if functions else None


def _takes_response(function: Callable[..., Any]) -> bool:
    """Whether a function is called with a `Response`: it takes no completions by name, and not only keywords."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except ValueError:  # Built in, without a signature.
        return True
    if _NAMES & {p.name for p in parameters}:
        return False
    return any(p.kind not in (p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)


def _read_columns(response: Response) -> dict[str, Any]:
    source = response.prompt.source
    if not isinstance(source, Problem):
        return {}
    row = {
        name: value
        for name, value in source.metadata.get("row", {}).items()
        if name not in ("completion", "completions", "completion_ids")
    }
    return {"answer": source.reference, **row}


def _read_texts(response: Response, row: Mapping[str, Any]) -> dict[str, Any]:
    """The prompt and the completion: texts, or lists of messages if the data has a conversation."""
    source, messages = response.prompt.source, row.get("prompt")
    if (
        not isinstance(messages, list)
        and isinstance(source, Problem)
        and (len(source.messages) > 1 or response.messages)
    ):
        messages = list(map(to_chat_message, source.messages))
    if isinstance(messages, list):
        answers = response.messages or (Message("assistant", response.text),)
        return {"prompt": messages, "completion": list(map(to_chat_message, answers))}
    return {"prompt": response.prompt.text, "completion": response.text}


def _check(values: Any, function: _Function, count: int) -> list[float]:
    """The values of a function as numbers; NaN for `None`."""
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != count:
        raise RewardError(
            f"the reward function {function.name} must return a list of {count} numbers, one for each completion; got "
            f"{short_repr(values)}{describe_location(function.function)}"
        )
    return [math.nan if value is None else to_reward(value) for value in values]


async def _check_later(values: Any, function: _Function, count: int) -> list[float]:
    return _check(await values, function, count)


async def _gather(awaitables: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))


def _run(results: Sequence[Any]) -> list[list[float]]:
    """Wait for the coroutines among some results, all at the same time."""
    waiting = [result for result in results if inspect.isawaitable(result)]
    if not waiting:
        return list(results)
    values = iter(_run_coroutine(_gather(waiting)))
    return [next(values) if inspect.isawaitable(result) else result for result in results]


def _run_coroutine(coroutine: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:  # A notebook has a running loop.
        return pool.submit(asyncio.run, coroutine).result()
