"""Slots of research tasks: episodes of commands in sequence, each in a fresh workspace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.core.errors import EnvError, SettingsError, UnknownNameError
from palaestra.core.records import Message
from palaestra.core.settings import short_repr
from palaestra.envs.base import Options
from palaestra.envs.turn.base import TurnStep, TurnStopReason
from palaestra.integrations.mlgym import load_mlgym
from palaestra.research.tasks.task import ResearchTask, load_task
from palaestra.research.workspace.commands import CommandResult
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.parsing import Action

TaskName = str | Path | ResearchTask
"""A research task: its name, its folder or the task itself."""


def load_tasks(
    tasks: TaskName | Iterable[TaskName] | Mapping[str, TaskName], mlgym: str | Path | None = None
) -> dict[str, ResearchTask]:
    """Load research tasks.

    Arguments:
        tasks: one task, several, or a mapping from names of your own to tasks.
        mlgym: an MLGym checkout that the names refer to.

    Returns:
        the tasks by name.

    Raises:
        EnvError: a value is not a task.
        SettingsError: there is no task, or a task is given twice.
        UnknownNameError: no task has that name.
    """
    if isinstance(tasks, Mapping):
        named = [(str(name), _load(task, mlgym)) for name, task in tasks.items()]
    else:
        loaded = [(given, _load(given, mlgym)) for given in ([tasks] if isinstance(tasks, TaskName) else tasks)]
        named = [(str(given) if mlgym is not None else task.name, task) for given, task in loaded]
    by_name = dict(named)
    if not by_name or len(by_name) < len(named):
        raise SettingsError(f"expected one or more different tasks; got {[name for name, _ in named]}")
    return by_name


def _load(given: TaskName, mlgym: str | Path | None) -> ResearchTask:
    if isinstance(given, ResearchTask):
        return given
    if not isinstance(given, (str, Path)) or not str(given).strip():
        raise EnvError(f"a task must be a name, a folder or a ResearchTask; got {short_repr(given)}")
    return load_task(given) if mlgym is None else load_mlgym(mlgym, str(given))


class CommandEnv(ResearchEnv):
    """A `ResearchEnv` whose action is a bare command and whose observation is the bare output.

    `IsolateCodeBlock` extracts the command from a message, and `StateToMessage` renders the output. The system message
    still explains the message format of `parser`.
    """

    def __init__(self, task: ResearchTask | str | Path, *, parser: str = "last_block", **arguments: Any) -> None:
        super().__init__(task, parser=parser, **arguments)
        self._parser = _CommandParser(self._parser.instructions)

    def leave(self) -> None:
        """Close the workspace. The next reset opens another one."""
        self.close()
        self._closed = False

    @property
    def limit(self) -> TurnStopReason | None:
        """The limit that the episode has reached since its last command, if any. Messages without a command take time
        as well.
        """
        return None if self.over else self._limit()

    def _render_result(self, outcome: CommandResult) -> str:
        note = f"[{outcome.note}]" if outcome.note else ""
        return "\n".join(part for part in (outcome.text.rstrip("\n"), note) if part.strip())


@dataclass
class _CommandParser:
    """An output parser for messages that are bare commands, with the instructions of another parser."""

    instructions: str

    def __call__(self, message: Message) -> Action:
        return Action(message.text)


@dataclass(frozen=True, slots=True)
class SlotStep:
    """The result of one step of a slot.

    Arguments:
        observation: the output of the command; after a reset, the task.
        gain: the improvement over the baseline in this step, in units of the metric's scale; the lowest of the task if
            the episode ends without a score through the agent's fault.
        score: the score of the submission; NaN without one.
        baseline: the baseline's score.
        terminated, truncated: both are true if a limit ended the task, so that TorchRL does not bootstrap its last value
            (see `TurnEnv.bootstrap_truncated`).
        stop_reason: why the episode ended; empty while it is running.
        outcome: what became of the submission, a `SubmissionOutcome`; empty while the episode is running.
        failure: what failed outside the agent. Then there is no score, and the reward must not be learned from.
    """

    observation: str = ""
    gain: float = 0.0
    score: float = math.nan
    baseline: float = math.nan
    terminated: bool = False
    truncated: bool = False
    stop_reason: str = ""
    outcome: str = ""
    failure: str = ""


class Slot:
    """Episodes in sequence, each in a fresh workspace.

    Arguments:
        tasks: the tasks to choose from, by name.
        arguments: arguments of `CommandEnv`.
    """

    def __init__(self, tasks: Mapping[str, ResearchTask], arguments: Options) -> None:
        self.tasks, self.arguments = tasks, arguments
        self.name = next(iter(tasks))
        self.system = ""
        self._envs: dict[str, CommandEnv] = {}
        self._num_seen, self._baseline = 0, math.nan

    @property
    def env(self) -> CommandEnv:
        """The environment of the current task."""
        if self.name not in self._envs:
            self._envs[self.name] = CommandEnv(self.tasks[self.name], **self.arguments)
        return self._envs[self.name]

    def choose(self, name: str) -> None:
        """Select the task of the next episode."""
        if name not in self.tasks:
            raise UnknownNameError("task of this environment", name, self.tasks)
        if name != self.name:
            self.close()
        self.name = name

    def reset(self, seed: int) -> SlotStep:
        """Begin an episode in a fresh workspace."""
        observation, info = self.env.reset(seed=seed)
        first, *rest = observation.messages
        self.system, self._num_seen, self._baseline = first.text, len(observation.messages), info["baseline"]
        return SlotStep("\n\n".join(message.text for message in rest), baseline=self._baseline)

    def step(self, command: str) -> SlotStep:
        """Run a command."""
        return self._record(self.env.step(command), own_messages=1)

    def stop(self, reason: TurnStopReason) -> SlotStep:
        """End the episode from outside and submit the current workspace."""
        return self._record(self.env.stop(reason), own_messages=0)

    def close(self) -> None:
        """Close the workspace, if one is open."""
        if self.name in self._envs:
            self._envs[self.name].leave()

    def _record(self, step: TurnStep, own_messages: int) -> SlotStep:
        observation, reward, terminated, truncated, info = step
        new = observation.messages[self._num_seen + own_messages :]
        self._num_seen = len(observation.messages)
        score, failure = info.get("score"), info.get("failure")
        return SlotStep(
            observation="\n\n".join(message.text for message in new),
            gain=reward,
            score=math.nan if score is None else float(score),
            baseline=self._baseline,
            terminated=terminated or (truncated and not self.env.bootstrap_truncated),
            truncated=truncated,
            stop_reason=str(info.get("stop_reason", "")),
            outcome=str(info.get("outcome", "")),
            failure="" if failure is None else f"{failure.cause}: {failure.message}",
        )
