"""The log of a run, `log.txt`: its events and warnings with the time; and the failure that ended a run."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from palaestra.core.errors import RunError, StorageError
from palaestra.core.text import clean_text, mask
from palaestra.runs.files import check_own_file, read_text, write_text

LOG = "log.txt"
TRACEBACK = "traceback.txt"
MAX_LOG = 1 << 20
"""Maximum characters of a log. A longer one loses its first half."""
_MAX_LINE = 4000
"""Maximum characters of a line."""
_SECONDS = re.compile(r"^\[ *[\d.]+ s\] ")
_PACKAGE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")
"""The module before the name of an exception."""


class RunLog(logging.Handler):
    """Appends lines to the log of a run. Secrets are masked. A log that cannot be written does not end the run.

    Between `open` and `close` it also receives the warnings of Python and of `logging` in this process.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.WARNING)
        self.path, self._rest = folder / LOG, ""
        self._writing = threading.Lock()

    def open(self) -> None:
        logging.getLogger().addHandler(self)
        hook: Any = warnings.showwarning
        if not isinstance(hook, _WarningHook):
            hook = warnings.showwarning = _WarningHook(hook)
        hook.logs.append(self)

    def close(self) -> None:
        logging.getLogger().removeHandler(self)
        hook: Any = warnings.showwarning
        if isinstance(hook, _WarningHook):
            hook.logs = [other for other in hook.logs if other is not self]
            if not hook.logs:
                warnings.showwarning = hook.show
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Without another handler, Python would print it: it is printed as well."""
        self.add(f"{record.levelname.lower()}: {record.getMessage()}")
        others = [handler for handler in logging.getLogger().handlers if not isinstance(handler, RunLog)]
        if not others and logging.lastResort is not None:
            logging.lastResort.handle(record)

    def add(self, text: str) -> None:
        """Append one line with the time."""
        shown = " ".join(clean_text(mask(text)).split())[:_MAX_LINE]
        line = f"{time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime())} {shown}\n"
        with self._writing, suppress(OSError, StorageError, RunError):
            check_own_file(self.path)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self.path, flags, 0o644), "ab") as stream:
                stream.write(line.encode())
                size = stream.tell()
            if size > MAX_LOG:
                lines = read_text(self.path).splitlines(keepends=True)
                write_text(self.path, "".join(lines[len(lines) // 2 :]))

    def write(self, text: str) -> int:
        """Write as a text stream does. Whole lines are added, without the seconds at their start."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            self.add(_SECONDS.sub("", line))
        return len(text)


class _WarningHook:
    """Takes the place of `warnings.showwarning` while logs are open."""

    def __init__(self, show: Any) -> None:
        self.show, self.logs = show, list[RunLog]()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        for log in self.logs:
            log.add(f"warning: {category.__name__}: {message} ({Path(filename).name}, line {lineno})")
        self.show(message, category, filename, lineno, file, line)


def read_log(folder: Path) -> list[str]:
    """Read the lines of a run's log. Runs of earlier versions have none.

    Raises:
        RunError: the file cannot be read.
    """
    with suppress(FileNotFoundError):
        return read_text(folder / LOG).splitlines()
    return []


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a run failed.

    Arguments:
        cause: the error in one line.
        traceback: the whole traceback; empty if it was not stored.
    """

    cause: str
    traceback: str = ""


def read_failure(folder: Path, error: str = "") -> RunFailure | None:
    """Read why the run in a folder failed; `None` if it has not failed.

    Arguments:
        error: the error of its summary, if it has one.

    Raises:
        RunError: the file of the traceback cannot be read.
    """
    try:
        text = read_text(folder / TRACEBACK)
    except FileNotFoundError:
        return RunFailure(error) if error else None
    return RunFailure(error or find_cause(text), text)


def find_cause(traceback: str) -> str:
    """Find the error of a traceback: its type and the first line of its message.

    >>> find_cause("Traceback (most recent call last):\\n  File ...\\na.b.EnvError: it broke\\nmore")
    'EnvError: it broke'
    """
    _, _, last = traceback.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in last.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return _PACKAGE.sub("", lines[0]) if lines else "unknown error"
