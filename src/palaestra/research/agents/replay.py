"""Replays the actions of an earlier run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.records import Message
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.agents.base import Agent, AgentContext, Halt, absolute_path, count_turns
from palaestra.research.workspace.step_record import Step
from palaestra.runs.run import Run

INTERRUPTED = str(TurnStopReason.INTERRUPTED)
TRAJECTORY = ".traj"
LIMITS = {"context": TurnStopReason.CONTEXT, "format": TurnStopReason.FORMAT, "cost": TurnStopReason.COST}
"""The limit at which MLGym submitted, by a word in the exit status."""
KEPT = ("format_errors", "format_penalty")
"""Settings of the run that are also arguments of the environment."""


class ReplayAgent(Agent):
    """Repeats the assistant's messages of a stored run and stops where it stopped.

    The environment is configured as in that run, so that the same task gives the same result. Of several
    episodes, the one that counted is replayed. A command that was interrupted is not started again.

    A `.traj` file is an MLGym trajectory: its responses are repeated and parsed by their last fenced block, as MLGym
    does. Line numbers are adapted to changed starter files (see `shift_lines`). If MLGym submitted at a limit, so does
    this agent.

    Arguments:
        argument: the run folder, a file in it such as `trajectory.json`, or a `.traj` file.

    Raises:
        SettingsError: no folder is given.
        RunError: the folder contains no finished research run.
    """

    takes = "FOLDER"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not argument:
            raise SettingsError("the agent 'replay' needs the folder of a run; use replay:FOLDER")
        folder = Path(argument.replace("{task}", context.task.name)).expanduser()
        self._end: Halt | None = None
        self._published: list[str] = []
        if folder.suffix == TRAJECTORY:
            self._read_trajectory(folder)
            return
        if folder.is_file():
            folder = folder.parent
        with Run.open(folder, read_only=True) as run:
            summary = run.summary
            if run.recipe != "research" or summary is None:
                raise RunError(f"{folder} contains no finished research run to replay")
            self._settings = run.settings
            self.parser = str(summary.get("parser", ""))
            self._tools = bool(summary.get("tools", False))
            self._commands = summary.get("commands", run.settings.get("commands", ()))
            steps = run.store.steps(Step, int(summary.get("kept_episode", 0)))
        if summary["task"] != context.task.name:
            raise SettingsError(
                f"{folder} is a run of the task '{summary['task']}'; it cannot be replayed on '{context.task.name}'"
            )
        # Steps that the agent or a user ended, possibly during a command.
        outside = [
            step for step in steps if step.stop_reason and (step.message is None or step.stop_reason == INTERRUPTED)
        ][:1]
        for step in outside:
            self._end = Halt(TurnStopReason(step.stop_reason), step.note, step.failure)
        self.messages = [step.message for step in steps if step.message is not None and step not in outside]

    def _read_trajectory(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            responses = [step["response"] for step in data["trajectory"]]
            self._published = [str(step.get("observation")) for step in data["trajectory"]]
            status = str(data["info"].get("exit_status"))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{path} cannot be read as an MLGym trajectory: {type(error).__name__}: {error}") from error
        self.parser = "last_block"
        self._settings = {"steps": len(responses) + 1, "format_errors": 0}
        self._tools, self._commands = False, ()
        self.messages = [Message("assistant", str(text)) for text in responses]
        if status.startswith("autosubmission"):
            reason = next((limit for word, limit in LIMITS.items() if word in status), TurnStopReason.STEPS)
            self._end = Halt(reason, f"the trajectory ended with: {status}")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        return absolute_path(argument)

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
        turn = count_turns(conversation)
        if turn < len(self.messages):
            message = self.messages[turn]
            if not self._published:
                return message
            return Message("assistant", shift_lines(message.text, self._published[:turn], conversation.messages))
        if self._end is not None:
            return self._end
        return Halt(TurnStopReason.GAVE_UP, "the replayed run has no further action")


# Line numbers of published trajectories

_SHOWN = re.compile(r"\[[Ff]ile:? (\S+?)(?: \((\d+) lines total\)|, (\d+) lines)\]")
_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_RANGE = re.compile(r"(?P<word>edit|insert|goto)(?P<space>\s+)(?P<first>\d+)(?::(?P<last>\d+))?(?=\s|\Z)")


def shift_lines(text: str, published: Sequence[str], conversation: Sequence[Message]) -> str:
    """Shift the line numbers of an edit, insert or goto in a message's last block by the growth of its file.

    MLGym's starter files now begin with a copyright notice that they lacked when its trajectories were recorded.

    Arguments:
        text: the published message.
        published: the published answers to earlier messages.
        conversation: our messages so far.
    """
    shift = _find_shift(published, _read_answers(conversation))
    blocks = list(_BLOCK.finditer(text))
    if not shift or not blocks:
        return text
    command = _RANGE.match(text, blocks[-1].start(1))
    if command is None:
        return text
    numbers = [str(int(number) + shift) for number in (command["first"], command["last"]) if number is not None]
    return text[: command.start()] + command["word"] + command["space"] + ":".join(numbers) + text[command.end() :]


def _find_shift(published: Sequence[str], ours: Sequence[str]) -> int:
    """Return by how many lines the open file has grown, from the first time that both sides showed it."""
    shifts: dict[str, int] = {}
    file = ""
    for then, now in zip(published, ours, strict=False):
        before, after = _SHOWN.search(then), _SHOWN.search(now)
        if before is not None:
            file = before[1]
        if before is not None and after is not None and before[1] == after[1]:
            shifts.setdefault(before[1], int(after[2] or after[3]) - int(before[2] or before[3]))
    return shifts.get(file, 0)


def _read_answers(conversation: Sequence[Message]) -> list[str]:
    """Return the environment's answer to each of the agent's messages."""
    answers: list[str] = []
    for message in conversation:
        if message.role == "assistant":
            answers.append("")
        elif answers:
            answers[-1] += message.text
    return answers
