"""The stored record of one step: enough to read it, render it and replay it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.core.records import Failure, Message, Usage
from palaestra.core.text import clean_fields
from palaestra.research.workspace.file_changes import FileChange


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode.

    Arguments:
        episode: the index of the episode in the run, from 0.
        position: the index in the episode; 0 is its beginning, without a message of the agent.
        message: the agent's message; `None` at the beginning and for an episode that was ended from outside.
        action: the action that was read in it.
        observation: the environment's messages.
        reward: the reward of the step.
        seconds: the time of agent and environment; `thinking` is the agent's part.
        state: the state of the workspace after the step.
        agent: the agent's state after the step, besides the conversation.
        info: the environment's info: the score, the validations so far, format errors.
        stop_reason: why the episode ended with this step; empty if it goes on.
        note: a description of the reason, if any.
        failure: a failure outside the agent.
        replayed: `same` or `different` if the step was run again in a fresh workspace after a kill, compared with its
            first output; otherwise empty. `observation` is the first output in both cases, because the agent saw that
            one.
        departure: how the step differs from the recorded one that the agent `replay` repeats; empty if it does not.
        calls, usage, money: the calls of the agent's model in this step, their tokens and their price in US dollars.
        files: the text files of the workspace that this step changed.
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
    departure: str = ""
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    money: float = 0.0
    files: tuple[FileChange, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "action", "state", "agent", "info", "stop_reason", "note", "departure")
