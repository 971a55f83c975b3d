"""The actions of a run that was played before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.records import Message
from palaestra.envs.turn.records import Conversation, StopReason
from palaestra.research.agents.base import Agent, Halt, Outfit, settled_path, turns_of
from palaestra.research.steps import Step
from palaestra.runs.run import Run

INTERRUPTED = str(StopReason.INTERRUPTED)
KEPT = ("format_errors", "format_penalty")
"""Settings of the run that are the environment's too."""


class ReplayAgent(Agent):
    """Says what the assistant of a stored run said, message by message, and stops where it stopped.

    The environment is made as it was for that run, so that with the same task the result is the same. Of a run of
    several episodes the one is played that counted. A command that somebody interrupted is not begun again.

    Arguments:
        argument: the folder of the run, or a file in it such as its `trajectory.json`.

    Raises:
        SettingsError: no folder is named.
        RunError: there is no run of research in it, or one that has not ended.
    """

    takes = "FOLDER"

    def __init__(self, argument: str, outfit: Outfit) -> None:
        super().__init__(argument, outfit)
        if not argument:
            raise SettingsError("the agent 'replay' plays a run; name its folder as replay:FOLDER")
        folder = Path(argument.replace("{task}", outfit.task.name)).expanduser()
        if folder.is_file():
            folder = folder.parent
        with Run.open(folder, read_only=True) as run:
            summary = run.summary
            if run.recipe != "research" or summary is None:
                raise RunError(f"{folder} holds no run of research that has ended; there is nothing to replay")
            self._settings = run.settings
            self.parser = str(summary.get("parser", ""))
            self._tools = bool(summary.get("tools", False))
            self._commands = summary.get("commands", run.settings.get("commands", ()))
            steps = run.store.steps(Step, int(summary.get("kept_episode", 0)))
        if summary["task"] != outfit.task.name:
            raise SettingsError(
                f"{folder} is of the task '{summary['task']}'; its actions say nothing of '{outfit.task.name}'"
            )
        # Who stopped it from outside: the agent itself, or a person, perhaps during a command.
        outside = [
            step for step in steps if step.stop_reason and (step.message is None or step.stop_reason == INTERRUPTED)
        ]
        self._end = outside[0] if outside else None
        self.messages = [step.message for step in steps if step.message is not None and step is not self._end]

    @classmethod
    def settled(cls, argument: str) -> str:
        return settled_path(argument)

    def environment(self) -> Mapping[str, Any]:
        kept = {name: self._settings[name] for name in KEPT if name in self._settings}
        limits = {"max_turns": self._settings.get("steps", 0), "max_seconds": self._settings.get("seconds", 0.0)}
        return {
            "parser": self.parser or "last_block",
            "tools": self._tools,
            "commands": self._commands,
            **kept,
            **limits,
        }

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = turns_of(conversation)
        if turn < len(self.messages):
            return self.messages[turn]
        if self._end is not None:
            return Halt(StopReason(self._end.stop_reason), self._end.note, self._end.failure)
        return Halt(StopReason.GAVE_UP, "the run that is replayed has no further action")
