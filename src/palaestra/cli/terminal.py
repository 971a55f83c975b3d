"""The terminal as every command uses it: text comes out as it is, and Ctrl-C is answered with how to go on."""

from __future__ import annotations

import os
import sys
from typing import Any

from typer.core import TyperGroup

from palaestra.core.checks import short_repr
from palaestra.core.errors import PalaestraError
from palaestra.core.interrupts import Terminated
from palaestra.core.user_code import describe_origin

INTERRUPTED, TERMINATED = 130, 143
"""The exit codes of a command that was stopped by Ctrl-C, and by SIGTERM."""
TRACEBACK = "--traceback"
"""The option of every command that prints the traceback of an error."""


def explain(error: Exception) -> tuple[str, int]:
    """An error as one line, and the exit code that goes with it.

    Our own errors and those of Typer say what to do: 2. Of any other, the line names its kind, the user's file and
    line that it came from if there is one, and where its traceback is: 1.
    """
    if isinstance(error, PalaestraError):
        return f"error: {error}", 2
    if hasattr(error, "format_message"):  # A usage error of Typer.
        return f"error: {' '.join(error.format_message().split())}; see palaestra --help", 2
    said = " ".join(str(error).split())
    kind = f"{type(error).__name__}: {said}" if said else type(error).__name__
    kept = next((note for note in getattr(error, "__notes__", ()) if note.startswith("traceback: ")), "")
    origin = describe_origin(error)
    whose = "" if origin else "; this is a bug of Palaestra"
    return f"error: {kind}{origin}{whose}; {kept or f'see where with {TRACEBACK}'}", 1


class StoppedError(Exception):
    """A command was stopped by Ctrl-C or SIGTERM. In words: that it was, and how to go on where something is stored.

    Arguments:
        interrupt: whose notes say how to go on; the outermost of them is right, which came last.
    """

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        self.status = TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        notes: list[str] = getattr(interrupt, "__notes__", [])
        super().__init__(f"stopped; what was done is stored. Go on with: {notes[-1]}" if notes else "stopped")


class Commands(TyperGroup):
    """Commands whose interrupt reaches `main`; Typer would end them with an exit code and no word.

    A `sys.exit` in a user's code is an error: exit code 0 would hide that the command did not finish.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError(error) from error
        except SystemExit as error:
            raise PalaestraError(
                f"the command was ended by sys.exit({short_repr(error.code)}){describe_origin(error)}"
            ) from error


def quiet() -> None:
    """Turn off the progress bars and advice of transformers, for our own progress.

    The environment variables are read when transformers is imported; it is not imported for this.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.disable_progress_bar()
