"""Agents that submit a known solution: the task's baseline or its reference."""

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
"""The maximum bytes of files that are written by commands; larger ones are created by the task's own command."""


class Solution(Agent):
    """Plays a fixed list of commands."""

    parser = "identity"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        self.actions: list[str] = []

    def plan(self) -> list[str]:
        """Return the commands."""
        raise NotImplementedError(f"{type(self).__name__} needs `plan`: its commands")

    def environment(self) -> Mapping[str, Any]:
        return {**super().environment(), "commands": ()}  # Files are written by bash, whatever commands others have.

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        self.actions = self.plan()

    def act(self, conversation: Conversation) -> Message | Halt:
        turn = count_turns(conversation)
        if turn >= len(self.actions):
            return Halt(TurnStopReason.GAVE_UP, "the solution could not be submitted")
        return Message("assistant", self.actions[turn])


class BaselineAgent(Solution):
    """Writes the measured baseline's submission, validates it and submits it."""

    def plan(self) -> list[str]:
        task, measured = self.context.task, self.context.baseline()
        files = submission_files(measured)
        starter = task.starter_files()
        changed = {name: content for name, content in files.items() if starter.get(name) != content}
        if files and sum(map(len, changed.values())) <= LARGEST:
            return [*write_command(changed), "validate", "submit"]
        return [*([task.baseline] if task.baseline else []), "validate", "submit"]


class ReferenceAgent(Solution):
    """Writes the task's `reference` solution, runs it, validates it and submits it.

    Raises:
        SettingsError: the task has no reference solution.
    """

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        if not context.task.reference_files():
            raise SettingsError(f"task '{context.task.name}' has no reference solution")

    def plan(self) -> list[str]:
        task = self.context.task
        commands = [task.reference] if task.reference not in ("", "true") else []
        return [*write_command(task.reference_files()), *commands, "validate", "submit"]


def write_command(files: Mapping[str, bytes]) -> list[str]:
    """Return the command that writes these files, whatever bytes they contain; empty for no files."""
    lines = []
    for name, content in files.items():
        coded = base64.b64encode(gzip.compress(content, mtime=0)).decode()
        folder, where = shlex.quote(str(PurePosixPath(name).parent)), shlex.quote(name)
        lines.append(f"mkdir -p {folder} && base64 -d <<'END' | gzip -d > {where}\n{coded}\nEND")
    return ["\n".join(lines)] if lines else []
