"""The bash command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandParameter, CommandResult
from palaestra.research.workspace.commands.session import Session


def _perform(session: Session, arguments: Mapping[str, Any]) -> CommandResult:
    return session.run_bash(arguments["command"].replace("\r\n", "\n"))


BASH = Command(
    "bash",
    _perform,
    "Run a text with bash, in a shell that stays: the current folder, variables and background processes are there the next "
    "time. Nobody types into it, so programs that wait for input find none. What takes longer than the time limit of a command is ended.",
    (CommandParameter("command", "what bash is to run, of any number of lines"),),
    "python train.py --epochs 3 2>&1 | tail -n 20",
    textual=False,
)
