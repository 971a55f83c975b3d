"""The terminal as every command uses it: text comes out as it is, and Ctrl-C is answered with how to go on."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from typer.core import TyperGroup

INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl-C."""


def terminal(*, stderr: bool = False) -> Console:
    """A console that prints what it is given: nothing in a user's text is markup, or an emoji's name (`:x:`)."""
    return Console(stderr=stderr, markup=False, emoji=False)


class StoppedError(Exception):
    """A command was stopped by Ctrl-C. In words: that it was, and how to go on where something is stored.

    Arguments:
        interrupt: whose notes say how to go on; the outermost of them is right, which came last.
    """

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        notes: list[str] = getattr(interrupt, "__notes__", [])
        super().__init__(f"stopped; what was done is stored. Go on with: {notes[-1]}" if notes else "stopped")


class Commands(TyperGroup):
    """Commands whose interrupt reaches `main`; Typer would end them with an exit code and no word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError(error) from error
