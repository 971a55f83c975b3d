"""Commands that the environment performs: validate and submit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palaestra.research.workspace.commands.base import Command, CommandResult
from palaestra.research.workspace.commands.session import Session


def _validate(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    return session.hooks.validate()


def _submit(session: Session, arguments: Mapping[str, Any]) -> str | CommandResult:
    return session.hooks.submit()


VALIDATE = Command(
    "validate",
    _validate,
    "Have your work as it is now scored on the validation data, and go on. How often this can be done is limited.",
)
SUBMIT = Command("submit", _submit, "Hand your work in as it is now. It is scored, and the episode ends.")
