"""Ctrl-C while the command `palaestra` is imported, and while it exits: one line at most, and no traceback."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130
"""The exit code of a command that was stopped by Ctrl-C."""


def is_command() -> bool:
    """Whether this process runs `palaestra` or `python -m palaestra`, and not a program that imports the package."""
    words = [*sys.argv[:1], *sys.orig_argv]
    return os.path.basename(words[0]) == "palaestra" or (words[0] == "-m" and "palaestra" in words)


def exit_on_interrupt() -> None:
    """Make Ctrl-C end the process with one line. An ignored signal stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_on_interrupt() -> None:
    """Make Ctrl-C end the process without a word: what there is to say has been printed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)
