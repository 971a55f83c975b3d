"""Replays the actions of an earlier run and compares the outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from palaestra.core.errors import RunError, SettingsError
from palaestra.core.records import Json, Message
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.research.agents.base import Agent, AgentContext, Halt, absolute_path, count_turns
from palaestra.research.agents.comparison import (
    Window,
    find_answer_difference,
    find_difference,
    find_score_difference,
    find_shifts,
    map_line,
)
from palaestra.research.workspace.parsing import Action, make_parser
from palaestra.research.workspace.workspace import Step
from palaestra.runs.run import Run

_INTERRUPTED = str(TurnStopReason.INTERRUPTED)
_TRAJECTORY = ".traj"
_LIMITS = {"context": TurnStopReason.CONTEXT, "format": TurnStopReason.FORMAT, "cost": TurnStopReason.COST}
"""The limit at which MLGym submitted, by a word in the exit status."""
_LAST_STEP, _NOT_RUN = "max_steps", "Exited"
"""In the exit status and in the answer to the last action: MLGym submitted instead of running it."""
_KEPT = ("format_errors", "format_penalty")
"""Settings of the run that are also arguments of the environment."""


class ReplayAgent(Agent):
    """Repeats the assistant's messages of a stored run and stops where it stopped.

    The environment is configured as in that run, so that the same task gives the same result. Of several
    episodes, the one that counted is replayed. A command that was interrupted is not started again.

    A `.traj` file is an MLGym trajectory: its responses are repeated and parsed by their last fenced block, as MLGym
    does. Line numbers are adapted to changed starter files (see `shift_lines`). If MLGym submitted at a limit, so does
    this agent; the message that MLGym did not run at that limit is left out.

    Every output is compared with the recorded one (`palaestra.research.agents.comparison`), and so is the final score.

    Arguments:
        argument: the run folder, a file in it such as `trajectory.json`, or a `.traj` file.

    Raises:
        SettingsError: no folder is given.
        RunError: the folder contains no finished research run.
    """

    takes = "FOLDER"
    replays = True

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not argument:
            raise SettingsError("the agent 'replay' needs the folder of a run; use replay:FOLDER")
        folder = Path(argument.replace("{task}", context.task.name)).expanduser()
        self._end: Halt | None = None
        self._published: list[str] = []
        self._recorded: list[str] = []
        self._outputs: list[str] = []
        self._scores: Json = {}
        if folder.suffix == _TRAJECTORY:
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
            recorded = f"a run of the task '{summary['task']}'"
            raise SettingsError(f"{folder} is {recorded}; it cannot be replayed on '{context.task.name}'")
        # The agent or a user ended it, possibly during a command.
        last = steps[-1]
        if last.stop_reason and (last.message is None or last.stop_reason == _INTERRUPTED):
            self._end = Halt(TurnStopReason(last.stop_reason), last.note, last.failure)
            steps = steps[:-1]
        repeated = [(step.message, step.observation) for step in steps if step.message is not None]
        self.messages = [message for message, _ in repeated]
        self._recorded = [_join_texts(observation) for _, observation in repeated]

    def _read_trajectory(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            status = str(data["info"].get("exit_status"))
            steps = [step for step in data["trajectory"] if not str(step.get("action")).startswith("exit_")]
            if _LAST_STEP in status and str(steps[-1].get("observation")).startswith(_NOT_RUN):
                steps = steps[:-1]
            responses = [_write_message(str(step["response"]), str(step.get("action", ""))) for step in steps]
            self._published = [str(step.get("observation")) for step in steps]
            if status.startswith(("submitted", "autosubmission")):
                self._scores = dict((data["info"].get("score") or [{}])[-1])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{path} cannot be read as an MLGym trajectory: {type(error).__name__}: {error}") from error
        self.parser = "last_block"
        self._settings = {"steps": len(responses) + 1, "format_errors": 0}
        self._tools, self._commands = False, ()
        self.messages = [Message("assistant", text) for text in responses]
        if status.startswith("autosubmission"):
            reason = next((limit for word, limit in _LIMITS.items() if word in status), TurnStopReason.STEPS)
            self._end = Halt(reason, f"the trajectory ended with: {status}")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        return absolute_path(argument)

    def environment(self) -> Json:
        own = {"parser": self.parser or "last_block", "tools": self._tools, "commands": self._commands}
        kept = {name: self._settings[name] for name in _KEPT if name in self._settings}
        limits = {"max_turns": self._settings.get("steps", 0), "max_seconds": self._settings.get("seconds", 0.0)}
        return {**own, **kept, **limits}

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

    def find_departure(self, step: Step, output: str) -> str:
        turn = step.position - 1
        self._outputs[turn:] = [output]
        if not self._published:
            if turn >= len(self._recorded):
                return ""
            return find_difference(self._recorded[turn], _join_texts(step.observation))
        if step.stop_reason:
            return find_score_difference(self._scores, step.info.get("scores", {}))
        if turn >= len(self._published):
            return ""
        shifts = find_shifts(self._published, self._outputs)
        return find_answer_difference(step.action, self._published[turn], output, shifts)


def _join_texts(messages: Sequence[Message]) -> str:
    return "\n".join(message.text for message in messages)


def _write_message(response: str, action: str) -> str:
    """Return a published response, or its action alone if our parser would not find it: MLGym reads unclosed blocks."""
    parsed = make_parser("last_block")(Message("assistant", response))
    is_found = isinstance(parsed, Action) and parsed.text.strip() == action.strip()
    return response if not action or is_found else f"```\n{action.strip()}\n```"


# Line numbers of published trajectories

_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_RANGE = re.compile(r"(?P<word>edit|insert|goto)(?P<space>\s+)(?P<first>\d+)(?::(?P<last>\d+))?(?=\s|\Z)")


def shift_lines(text: str, published: Sequence[str], conversation: Sequence[Message]) -> str:
    """Adapt the line numbers of an edit, insert or goto in a message's last block to our version of the open file.

    MLGym's starter files now begin with a copyright notice that they lacked when its trajectories were recorded. If both
    sides have just shown the whole file, its lines are aligned; otherwise they are shifted by the growth of the file.

    Arguments:
        text: the published message.
        published: the published answers to earlier messages.
        conversation: our messages so far.
    """
    blocks, answers = list(_BLOCK.finditer(text)), _read_answers(conversation)
    shown = zip(map(Window.read, published), answers, strict=False)
    windows = [(then, Window.read(now)) for then, now in shown if then]
    if not windows or not blocks:
        return text
    then, now = windows[-1]
    is_aligned = now is not None and then.path == now.path and then.is_whole and now.is_whole
    shift = find_shifts(published, answers).get(then.path, 0)

    def convert(number: int, is_end: bool) -> str:
        if now is None or not is_aligned:
            return str(number + shift)
        return str(map_line(then, now, number, is_end) if number else map_line(then, now, 1) - 1)

    command = _RANGE.match(text, blocks[-1].start(1))
    if command is None:
        return text
    numbers = [convert(int(command["first"]), command["word"] == "insert")]
    if command["last"] is not None:
        numbers.append(convert(int(command["last"]), is_end=True))
    return text[: command.start()] + command["word"] + command["space"] + ":".join(numbers) + text[command.end() :]


def _read_answers(conversation: Sequence[Message]) -> list[str]:
    """Return the environment's answer to each of the agent's messages."""
    answers: list[str] = []
    for message in conversation:
        if message.role == "assistant":
            answers.append("")
        elif answers:
            answers[-1] += message.text
    return answers
