"""Finds the errors that an edit adds to a Python file.

Sources are parsed in a separate process: one that crashes the parser or never ends only costs that worker. The worker
is reused, so that a check takes about as long as pyflakes. It runs outside the sandbox, because it only parses. Without
pyflakes (in `palaestra[research]`) only compiler errors are found.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

_MAX_SOURCE = 400_000
"""The maximum characters of a source that is checked."""
_MAX_SECONDS = 5.0
"""The maximum seconds per source."""
_MAX_CACHED = 64
"""The number of sources whose errors are cached in this process."""
_LOCK = threading.Lock()
"""The worker checks one source at a time."""


class Finding(NamedTuple):
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class Findings(NamedTuple):
    """The errors of a source.

    Arguments:
        broken: the source cannot be parsed; the only error is where the parser stopped.
    """

    errors: tuple[Finding, ...] = ()
    broken: bool = False


def new_errors(before: Findings, after: Findings) -> list[Finding]:
    """Return the errors that are new, wherever they are. A file that could not be parsed before has no new errors."""
    if before.broken:
        return []
    had = Counter(finding.message for finding in before.errors)
    new = []
    for finding in after.errors:
        had[finding.message] -= 1
        if had[finding.message] < 0:
            new.append(finding)
    return new


def find_errors(source: str) -> Findings | None:
    """Return the errors of a Python source; `None` if it is too long or the parser gave up."""
    if not source.strip() and len(source) <= _MAX_SOURCE:
        return Findings()
    return _ask_worker(source) if len(source) <= _MAX_SOURCE else None


@lru_cache(_MAX_CACHED)  # An edit usually starts from the result of the previous one.
def _ask_worker(source: str) -> Findings | None:
    with _LOCK:
        if start_worker().poll() is not None:
            _end_worker()
        worker = start_worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(source).encode() + b"\n")
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], _MAX_SECONDS)
            line = worker.stdout.readline() if ready else b""
        except OSError:
            line = b""
        if not line:  # It died or hangs.
            _end_worker()
    answer = json.loads(line) if line else None
    return answer and Findings(tuple(Finding(*error) for error in answer["errors"]), answer["broken"])


@cache
def start_worker() -> subprocess.Popen[bytes]:
    """Start the worker of this process."""
    spec = importlib.util.find_spec("pyflakes")
    folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
    script = Path(__file__).with_name("lint_worker.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", str(script), folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"LANG": "C.UTF-8"},
    )


os.register_at_fork(after_in_child=start_worker.cache_clear)


@atexit.register
def _end_worker() -> None:
    if start_worker.cache_info().currsize:
        start_worker().kill()
        start_worker().communicate()  # Closes the pipes.
        start_worker.cache_clear()
