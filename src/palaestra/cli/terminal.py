"""Print errors in one line, and interrupts with the command that resumes the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from typer.core import TyperGroup

from palaestra.core.checks import short_repr
from palaestra.core.errors import PalaestraError
from palaestra.core.interrupts import Terminated
from palaestra.core.plugins import describe_origin
from palaestra.core.secrets import mask
from palaestra.recipes.progress import plain_console

INTERRUPTED, TERMINATED = 130, 143
"""The exit codes of a command that was stopped by Ctrl-C, and by SIGTERM."""
TRACEBACK = "--traceback"
"""The option of every command that prints the traceback of an error."""

console = plain_console()


def say(text: str) -> None:
    """Print a line of text verbatim, without wrapping."""
    console.print(text, soft_wrap=True, highlight=False)


class MaskingStream:
    """A text stream that masks secrets in everything that is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(mask(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mask_output() -> None:
    """Mask secrets in everything that this process prints: tables, errors, tracebacks, warnings and logs."""
    sys.stdout, sys.stderr = MaskingStream(sys.stdout), MaskingStream(sys.stderr)


def explain(error: Exception) -> tuple[str, int]:
    """Return an error as one line, and its exit code.

    Errors of Palaestra and Typer, which a user can fix, have exit code 2. Any other error has exit code 1; its line
    names the type, the line of the user's code that caused it, if any, and where to find the traceback.
    """
    if isinstance(error, PalaestraError):
        return f"error: {error}", 2
    if hasattr(error, "format_message"):  # A usage error of Typer.
        return f"error: {' '.join(error.format_message().split())}; see palaestra --help", 2
    message = " ".join(str(error).split())
    kind = f"{type(error).__name__}: {message}" if message else type(error).__name__
    stored = next((note for note in getattr(error, "__notes__", ()) if note.startswith("traceback: ")), "")
    origin = describe_origin(error)
    whose = "" if origin else "; this is a bug in Palaestra"
    return f"error: {kind}{origin}{whose}; {stored or f'show the traceback with {TRACEBACK}'}", 1


class StoppedError(Exception):
    """A command was stopped by Ctrl-C or SIGTERM. The message says how to resume, if anything was stored.

    Arguments:
        interrupt: the interrupt. Its notes say how to resume; the last one, of the outermost caller, is used.
    """

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        self.status = TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        notes: list[str] = getattr(interrupt, "__notes__", [])
        super().__init__(f"stopped; the work so far is saved. Continue with: {notes[-1]}" if notes else "stopped")


class Commands(TyperGroup):
    """A group of commands that passes interrupts on to `main`; Typer would exit without a message.

    A `sys.exit` in a user's code becomes an error, because exit code 0 would hide that the command did not finish.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise StoppedError(error) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # The reader of our output is gone, for example `head`.
                raise
            raise PalaestraError(
                f"the command was ended by sys.exit({short_repr(error.code)}){describe_origin(error)}"
            ) from error


def quiet() -> None:
    """Turn off the progress bars and advice of transformers; only our own progress is shown.

    The environment variables are read when transformers is imported; it is not imported for this.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.disable_progress_bar()
