"""One step of an episode as it is stored: enough to read it, to draw it, and to play it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.core.records import Failure, Message
from palaestra.core.text import clean_fields


@dataclass(frozen=True, slots=True)
class Step:
    """What happened in one step.

    Arguments:
        episode: which of the run's, from 0.
        position: in the episode; 0 is its beginning, which has no message of the agent's.
        message: what the agent said; `None` at the beginning, and where the episode was ended from outside.
        action: what was read in it.
        observation: what the environment said to it.
        reward: of the step.
        seconds: that the agent and the environment took; `thinking` are the agent's.
        state: of the workspace, after it.
        agent: what the agent knew beyond the conversation, after it.
        info: figures of the environment: the score, the validations so far, format errors.
        stop_reason: why the episode is over with it; empty where it goes on.
        note: the reason in words, where there are any.
        failure: what broke around the agent.
        replayed: `same` or `different` if the step was run again in a fresh workspace after a kill, by comparison with its
            first output; else empty. The `observation` is the first output in both cases: the agent saw that one.
    """

    episode: int
    position: int
    message: Message | None = None
    action: str = ""
    observation: tuple[Message, ...] = ()
    reward: float = 0.0
    seconds: float = 0.0
    thinking: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    stop_reason: str = ""
    note: str = ""
    failure: Failure | None = None
    replayed: str = ""

    def __post_init__(self) -> None:
        clean_fields(self, "action", "state", "agent", "info", "stop_reason", "note")
