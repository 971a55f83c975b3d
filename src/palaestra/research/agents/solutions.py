"""Agents that need no thought: the task's baseline, and the good solution that it comes with."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Message
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.agents.base import Agent, AgentContext, Halt, count_turns
from palaestra.research.workspace.baseline import submission_files

LARGEST = 1 << 20
"""Bytes of files that are written by commands; larger ones are made anew by the task's own command."""


class Solution(Agent):
    """Plays a list of commands that is known from the beginning."""

    parser = "identity"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        self.actions: list[str] = []

    def plan(self) -> list[str]:
        """The commands."""
        raise NotImplementedError(f"{type(self).__name__} needs `plan`: its commands")

    def environment(self) -> Mapping[str, Any]:
        return {**super().environment(), "commands": ()}  # Its files are written by bash, whatever others have.

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        self.actions = self.plan()

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = count_turns(conversation)
        if turn >= len(self.actions):
            return Halt(TurnStopReason.GAVE_UP, "the solution could not be handed in")
        return Message("assistant", self.actions[turn])


class BaselineAgent(Solution):
    """Puts the baseline's submission in place, as it was when the baseline was measured, validates it, and hands it in."""

    def plan(self) -> list[str]:
        task, measured = self.context.task, self.context.baseline()
        files = submission_files(measured)
        starter = task.starter_files()
        changed = {name: content for name, content in files.items() if starter.get(name) != content}
        if files and sum(map(len, changed.values())) <= LARGEST:
            return [*writing(changed), "validate", "submit"]
        return [*([task.baseline] if task.baseline else []), "validate", "submit"]


class ReferenceAgent(Solution):
    """Puts the good solution of the task's `reference` folder in place, runs it, validates it, and hands it in.

    Raises:
        SettingsError: the task comes with none.
    """

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not context.task.reference_files():
            raise SettingsError(f"task '{context.task.name}' comes with no good solution to hand in")

    def plan(self) -> list[str]:
        task = self.context.task
        made = [task.reference] if task.reference not in ("", "true") else []
        return [*writing(task.reference_files()), *made, "validate", "submit"]


def writing(files: Mapping[str, bytes]) -> list[str]:
    """The command that writes these files, whatever bytes they hold; none of no files."""
    lines = []
    for name, content in files.items():
        coded = base64.b64encode(gzip.compress(content, mtime=0)).decode()
        folder, where = shlex.quote(str(PurePosixPath(name).parent)), shlex.quote(name)
        lines.append(f"mkdir -p {folder} && base64 -d <<'END' | gzip -d > {where}\n{coded}\nEND")
    return ["\n".join(lines)] if lines else []
