"""The command that is everything else: bash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palaestra.research.workspace.commands.base import Command, CommandParameter, CommandResult

if TYPE_CHECKING:
    from palaestra.research.workspace.commands.session import Session


def run_bash(session: Session, text: str) -> CommandResult:
    """Run a text in the agent's shell, unless it is refused."""
    refusal = session.blocklist.refusal(text)
    if refusal is not None:
        return CommandResult(refusal, ok=False, kind="blocked")
    result = session.inside.execute(text, session.timeout)
    output = (session.inside.take_stray() + result.output).decode("utf-8", "replace").rstrip("\n")
    note = result.note or ("" if result.ok else f"exit code {result.exit_code}")
    return CommandResult(output, result.ok, "bash", note, result.exit_code, result.seconds)


def _perform(session: Session, arguments: Mapping[str, Any]) -> CommandResult:
    return run_bash(session, arguments["command"].replace("\r\n", "\n"))


BASH = Command(
    "bash",
    _perform,
    "Run a text with bash, in a shell that stays: the current folder, variables and background processes are there the next "
    "time. Nobody types into it, so programs that wait for input find none. What takes longer than the time limit of a command is ended.",
    (CommandParameter("command", "what bash is to run, of any number of lines"),),
    "python train.py --epochs 3 2>&1 | tail -n 20",
    textual=False,
)
