"""A user at the keyboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.records import Message
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.agents.base import Agent, AgentContext, Halt
from palaestra.research.workspace.commands import load_commands

FENCE = "```"
HELP = (
    "Type a command and press Enter. What has several lines stands between two lines of ```; edit and insert end with "
    "their own last line. Ctrl-D gives up, Ctrl-C submits the current workspace."
)


class HumanAgent(Agent):
    """Shows new messages and reads a command: one line, or several between two lines of ```.

    After `edit ...` or `insert ...` it reads on to the line that ends the text. The end of the input (Ctrl-D) gives up
    without a submission. Ctrl-C ends the episode as `TurnStopReason.INTERRUPTED` and submits the current workspace.
    """

    parser = "identity"
    interactive = True

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        self._shown = 0
        self._ends = {
            name: command.end
            for name, command in load_commands().items()
            if command.body is not None and command.body.required
        }

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        self._shown = 0

    def act(self, conversation: Conversation) -> Message | Halt:
        fresh = conversation.messages[self._shown :]
        for message in fresh:
            if message.role != "assistant":
                self.context.show(f"\n{message.text}\n")
        if not self._shown:
            self.context.show(HELP)
        try:
            command = self._command()
        except EOFError:
            return Halt(TurnStopReason.GAVE_UP, "the input ended")
        self._shown = len(conversation.messages)
        return Message("assistant", command)

    def state(self) -> Mapping[str, Any]:
        return {"shown": self._shown}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._shown = int(state.get("shown", 0))

    def _command(self) -> str:
        line = ""
        while not line.strip():
            line = self.context.ask("> ")
        words = line.split(None, 1)
        if line.strip() == FENCE:
            return "\n".join(self._until(FENCE))
        if words[0] in self._ends:
            end = self._ends[words[0]]
            return "\n".join([line, *self._until(end), end])
        return line

    def _until(self, end: str) -> list[str]:
        lines: list[str] = []
        while (line := self.context.ask("  ")).strip() != end:
            lines.append(line)
        return lines
