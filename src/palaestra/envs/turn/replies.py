"""Checks of the values that user-defined environments return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, Message
from palaestra.engines.openai_format import parse_message
from palaestra.envs.turn.records import Reply, TurnStopReason, message_space

_MESSAGES = message_space()


class NoRewardError(EnvError, RewardError):
    """A reward is not a finite number. It may happen in a single episode, so it counts as a failure and not as wrong
    use.
    """


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A `Reply` with validated fields."""

    messages: tuple[Message, ...]
    reward: float
    stop: TurnStopReason | None
    failure: Failure | None
    info: Mapping[str, Any]

    def before(self, then: CheckedReply) -> CheckedReply:
        """Combine two replies of the same turn."""
        return CheckedReply(
            (*self.messages, *then.messages), self.reward + then.reward, then.stop, then.failure, {**self.info, **then.info}
        )  # fmt: skip


def check_messages(where: str, given: Any) -> list[Message]:
    """Validate the messages of an environment: `Message` objects, OpenAI message dictionaries, or texts from the user.

    Arguments:
        where: the class and method that returned them, for the error.
        given: one message or several.

    Raises:
        EnvError: a value is something else.
    """
    if isinstance(given, (str, Message, Mapping)):
        given = (given,)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
        raise EnvError(f"{where} gave {short_repr(given)}; expected messages")
    return [_message(where, message) for message in given]


def check_reply(where: str, given: Any) -> CheckedReply:
    """Validate the reply of an environment.

    Raises:
        EnvError: it is not a `Reply`, or a field has the wrong type.
        NoRewardError: the reward is not a finite number.
    """
    if not isinstance(given, Reply):
        raise EnvError(f"{where} gave {short_repr(given)}; expected a Reply")
    if not isinstance(given.failure, Failure | None):
        raise EnvError(f"{where} gave the failure {short_repr(given.failure)}; expected a Failure, or None")
    messages = tuple(check_messages(where, given.messages))
    # The reward of a failed turn is ignored.
    reward = 0.0 if given.failure is not None else _reward(where, given.reward)
    info = check_mapping(where, given.info, "info ")
    return CheckedReply(messages, reward, _stop(where, given.stop), given.failure, info)


def check_mapping(where: str, given: Any, what: str = "") -> dict[str, Any]:
    """Validate and copy a mapping.

    Raises:
        EnvError: it is something else.
    """
    if not isinstance(given, Mapping):
        raise EnvError(
            f"{where} gave {f'the {what}' if what else ''}{short_repr(given)}; expected names and their values"
        )
    return dict(given)


def _message(where: str, given: Any) -> Message:
    if isinstance(given, str):
        given = Message("user", given)
    elif isinstance(given, Mapping):
        try:
            given = parse_message(given)
        except ValueError as error:
            raise EnvError(f"{where} gave {short_repr(given)} as a message; {error}") from error
    if not isinstance(given, Message) or given not in _MESSAGES:
        raise EnvError(f"{where} gave {short_repr(given)} as a message; expected a Message, its dictionary or a text")
    return given


def _stop(where: str, given: Any) -> TurnStopReason | None:
    if given is None:
        return None
    try:
        return TurnStopReason(given)
    except ValueError as error:
        raise EnvError(
            f"{where} gave the stop {short_repr(given)}; expected one of {', '.join(TurnStopReason)}"
        ) from error


def _reward(where: str, given: Any) -> float:
    # A text is never a number. Arrays and tensors with one element are.
    wrong = isinstance(given, (str, bytes, bytearray))
    try:
        reward = math.nan if wrong else float(given)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        wrong, reward = True, math.nan
    if math.isfinite(reward):
        return reward
    raise (EnvError if wrong else NoRewardError)(
        f"{where} gave the reward {short_repr(given)}; expected a finite number"
    )
