"""What an environment of somebody's own gives back, checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, Message
from palaestra.engines.openai_format import message_of
from palaestra.envs.turn.records import Reply, StopReason, message_space

_MESSAGES = message_space()


class NoRewardError(EnvError, RewardError):
    """A reward that is not a finite number. It may be so in this one episode: a break of it, and no wrong use."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A `Reply` whose fields are what they should be."""

    messages: tuple[Message, ...]
    reward: float
    stop: StopReason | None
    failure: Failure | None
    info: Mapping[str, Any]

    def before(self, then: Checked) -> Checked:
        """Two replies of one turn."""
        return Checked(
            (*self.messages, *then.messages), self.reward + then.reward, then.stop, then.failure, {**self.info, **then.info}
        )  # fmt: skip


def checked_messages(where: str, given: Any) -> list[Message]:
    """The messages that an environment said: `Message`s, OpenAI's dictionaries of them, or texts, which are a user's.

    Arguments:
        where: who gave them, for the error: the class and its method.
        given: one, or several.

    Raises:
        EnvError: it is something else.
    """
    if isinstance(given, (str, Message, Mapping)):
        given = (given,)
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
        raise EnvError(f"{where} gave {short_repr(given)}; expected messages")
    return [_message(where, one) for one in given]


def checked_reply(where: str, given: Any) -> Checked:
    """What an environment answered, by the same rules for its messages.

    Raises:
        EnvError: it is none, or one of its fields is something else.
        NoRewardError: its reward is not a finite number.
    """
    if not isinstance(given, Reply):
        raise EnvError(f"{where} gave {short_repr(given)}; expected a Reply")
    if not isinstance(given.failure, Failure | None):
        raise EnvError(f"{where} gave the failure {short_repr(given.failure)}; expected a Failure, or None")
    messages = tuple(checked_messages(where, given.messages))
    # What failed has no reward, whatever stands there.
    reward = 0.0 if given.failure is not None else _reward(where, given.reward)
    info = checked_mapping(where, given.info, "info ")
    return Checked(messages, reward, _stop(where, given.stop), given.failure, info)


def checked_mapping(where: str, given: Any, what: str = "") -> dict[str, Any]:
    """A copy of names and values.

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
            given = message_of(given)
        except ValueError as error:
            raise EnvError(f"{where} gave {short_repr(given)} as a message; {error}") from error
    if not isinstance(given, Message) or given not in _MESSAGES:
        raise EnvError(f"{where} gave {short_repr(given)} as a message; expected a Message, its dictionary or a text")
    return given


def _stop(where: str, given: Any) -> StopReason | None:
    if given is None:
        return None
    try:
        return StopReason(given)
    except ValueError as error:
        raise EnvError(f"{where} gave the stop {short_repr(given)}; expected one of {', '.join(StopReason)}") from error


def _reward(where: str, given: Any) -> float:
    # A text may read like a number, and is none. Arrays and tensors of one number are.
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
