"""Run user-written reward functions and check what they return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.user_code import describe_error, describe_location, describe_origin
from palaestra.envs.token.prompts import Prompt, Response


def compute_rewards(
    rewards: Callable[[Sequence[Response]], Sequence[float | RewardError]], responses: Sequence[Response], batch: bool
) -> list[float | Exception]:
    """Compute the reward of each response, or the exception that explains why it has none.

    Arguments:
        rewards: computes the rewards of several responses.
        batch: whether to pass all responses in one call. If that fails, each response is passed on its own, so that
            one bad response does not affect the others.

    Raises:
        EnvError: the environment itself is at fault, not a response.
    """
    if len(responses) > 1 and not batch:
        return [compute_rewards(rewards, [response], False)[0] for response in responses]
    try:
        returned: Any = rewards(responses)
        if not isinstance(returned, Iterable) or isinstance(returned, str | Mapping):
            raise RewardError(f"expected a list of numbers; got {short_repr(returned)}")
        values = list(returned)
        if len(values) != len(responses):
            raise RewardError(f"rewards returned {len(values)} values for {len(responses)} responses")
    except EnvError:
        raise
    except Exception as error:  # User code may raise anything.
        return [error] if len(responses) == 1 else compute_rewards(rewards, responses, False)
    return [_to_reward_or_error(value) for value in values]


def to_reward(value: Any) -> float:
    """Convert a reward to a float.

    Raises:
        RewardError: it is not a finite number. Strings such as "1" are rejected.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RewardError(f"expected a number; got {type(value).__name__} {str(value)[:40]!r}") from None
    if not math.isfinite(reward):
        raise RewardError(f"expected a finite number; got {reward}")
    return reward


def reward_error(error: Exception, what: str, prompt: Prompt, function: Callable[..., Any]) -> RewardError:
    """Make an error of one line with the cause, the user's file and line, and the prompt."""
    cause = describe_error(error)
    where = "" if describe_origin(error) else describe_location(function)
    wrapped = RewardError(f"the {what} of a response failed: {cause}{where}; its prompt: {prompt.text[:50]!r}")
    wrapped.__cause__ = error
    return wrapped


def _to_reward_or_error(value: Any) -> float | Exception:
    if isinstance(value, RewardError):
        return value
    try:
        return to_reward(value)
    except Exception as error:
        return error
