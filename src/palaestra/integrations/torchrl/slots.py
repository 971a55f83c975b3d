"""A place for one episode at a time, of whichever task, under a TorchRL environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.core.errors import UnknownNameError
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.integrations.torchrl.commands import CommandEnv
from palaestra.research.tasks.task import ResearchTask

Step = tuple[Conversation, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Told:
    """What a slot says of one step.

    Arguments:
        observation: what came of the command; at a reset, the task.
        gain: how far the work got ahead of the baseline in this step, in units of the metric's scale.
        score: of what was handed in; not a number before that, and where nothing was.
        baseline: the score to be ahead of.
        stop_reason: why the episode is over; empty while it goes on.
        failure: what broke around the agent; then there is no score, and the reward says nothing.
    """

    observation: str = ""
    gain: float = 0.0
    score: float = math.nan
    baseline: float = math.nan
    terminated: bool = False
    truncated: bool = False
    stop_reason: str = ""
    failure: str = ""


class Slot:
    """Episodes one after the other, each in a workspace of its own.

    Arguments:
        tasks: what can be chosen, by name.
        arguments: of `CommandEnv`.
    """

    def __init__(self, tasks: Mapping[str, ResearchTask], arguments: Mapping[str, Any]) -> None:
        self.tasks, self.arguments = tasks, arguments
        self.name = next(iter(tasks))
        self.system = ""
        self._envs: dict[str, CommandEnv] = {}
        self._heard, self._baseline = 0, math.nan

    @property
    def env(self) -> CommandEnv:
        """The environment of the task that was chosen last."""
        if self.name not in self._envs:
            self._envs[self.name] = CommandEnv(self.tasks[self.name], **self.arguments)
        return self._envs[self.name]

    def choose(self, name: str) -> None:
        """Take another task for the next episode."""
        if name not in self.tasks:
            raise UnknownNameError("task of this environment", name, self.tasks)
        if name != self.name:
            self.close()
        self.name = name

    def reset(self, seed: int) -> Told:
        """Begin an episode in a fresh workspace."""
        observation, info = self.env.reset(seed=seed)
        first, *rest = observation.messages
        self.system, self._heard, self._baseline = first.text, len(observation.messages), info["baseline"]
        return Told("\n\n".join(message.text for message in rest), baseline=self._baseline)

    def step(self, command: str) -> Told:
        """Run a command."""
        return self._told(self.env.step(command), said=1)

    def stop(self, reason: TurnStopReason) -> Told:
        """End the episode from outside; what is there is handed in."""
        return self._told(self.env.stop(reason), said=0)

    @property
    def limit(self) -> TurnStopReason | None:
        """The limit that ends the episode now, though no command is run; `None` while it may go on."""
        return self.env.limit

    def state(self) -> dict[str, Any]:
        """Where the agent stands."""
        return dict(self.env.state())

    def close(self) -> None:
        """Close the workspace, if one is open."""
        if self.name in self._envs:
            self._envs[self.name].leave()

    def _told(self, step: Step, said: int) -> Told:
        observation, reward, terminated, truncated, info = step
        new = observation.messages[self._heard + said :]
        self._heard = len(observation.messages)
        score, failure = info.get("score"), info.get("failure")
        return Told(
            "\n\n".join(message.text for message in new), reward, math.nan if score is None else float(score), self._baseline,
            terminated, truncated, str(info.get("stop_reason", "")),
            "" if failure is None else f"{failure.cause}: {failure.message}",
        )  # fmt: skip
