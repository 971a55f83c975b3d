"""Rewards that users write: what counts as one, and what is said of one that breaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, PalaestraError, RewardError
from palaestra.core.user_code import describe_location, describe_origin
from palaestra.envs.token.prompts import Prompt, Response


def judge(
    rewards: Callable[[Sequence[Response]], Sequence[float | RewardError]], responses: Sequence[Response], batch: bool
) -> list[float | Exception]:
    """The reward of each response, or why it has none.

    Arguments:
        rewards: judges several responses.
        batch: whether they are judged together; where that breaks, each is judged on its own, so that one
            that cannot be judged costs the others nothing.

    Raises:
        EnvError: the environment, and not the response, is what cannot be judged.
    """
    if len(responses) > 1 and not batch:
        return [judge(rewards, [one], False)[0] for one in responses]
    try:
        found: Any = rewards(responses)
        if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
            raise RewardError(f"expected a list of numbers; got {short_repr(found)}")
        given = list(found)
        if len(given) != len(responses):
            raise RewardError(f"rewards gave {len(given)} values for {len(responses)} responses")
    except EnvError:
        raise
    except Exception as error:  # A reward is a function of the user's: it may raise anything.
        return [error] if len(responses) == 1 else judge(rewards, responses, False)
    return [_tried(value) for value in given]


def number(value: Any) -> float:
    """A reward as a float.

    Raises:
        RewardError: it is not a finite number.
    """
    try:
        if isinstance(value, (str, bytes)):  # Python would read "1" as a number; whoever gives it erred.
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RewardError(f"expected a number; got {type(value).__name__} {str(value)[:40]!r}") from None
    if not math.isfinite(found):
        raise RewardError(f"expected a finite number; got {found}")
    return found


def reward_error(error: Exception, what: str, prompt: Prompt, function: Callable[..., Any]) -> RewardError:
    """One line that names what broke, why, where the user wrote it, and at which prompt."""
    cause = describe_error(error)
    where = "" if describe_origin(error) else describe_location(function)
    found = RewardError(f"the {what} of a response failed: {cause}{where}; its prompt: {prompt.text[:50]!r}")
    found.__cause__ = error
    return found


def describe_error(error: BaseException) -> str:
    """An error in one line; of ours the message, of others the kind as well. The user's line that it came from follows."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    origin = describe_origin(error)
    if origin in said:
        origin = ""
    if isinstance(error, PalaestraError) and said:
        return f"{said}{origin}"
    return f"{type(error).__name__}: {said}{origin}" if said else f"{type(error).__name__}{origin}"


def _tried(value: Any) -> float | Exception:
    if isinstance(value, RewardError):
        return value
    try:
        return number(value)
    except Exception as error:
        return error
