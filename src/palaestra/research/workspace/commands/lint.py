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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LONGEST = 400_000
"""The maximum characters of a source that is checked."""
PATIENCE = 5.0
"""The maximum seconds per source."""

REMEMBERED = 64
"""The number of sources whose errors are cached in this process."""


class Finding(NamedTuple):
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Findings:
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
        if had[finding.message] > 0:
            had[finding.message] -= 1
        else:
            new.append(finding)
    return new


class Linter:
    """Checks sources one at a time; other threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._owner = -1
        self._known: dict[str, Findings | None] = {}

    def check(self, source: str) -> Findings | None:
        """Return the errors of a Python source; `None` if it is too long or the parser gave up."""
        if len(source) > LONGEST:
            return None
        if not source.strip():
            return Findings()
        with self._lock:
            if source not in self._known:  # An edit usually starts from the result of the previous one.
                if len(self._known) >= REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[source] = self._ask(source)
            return self._known[source]

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None or self._owner != os.getpid():
            return
        worker.kill()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                stream.close()
        worker.wait()

    def _ask(self, source: str) -> Findings | None:
        worker = self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(source).encode() + b"\n")
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], PATIENCE)
            line = worker.stdout.readline() if ready else b""
        except OSError:
            line = b""
        if not line:  # it died or hangs
            self.close()
            return None
        answer = json.loads(line)
        if answer is None:
            return None
        return Findings(tuple(Finding(*error) for error in answer["errors"]), answer["broken"])

    def _start(self) -> subprocess.Popen[bytes]:
        if self._worker is not None and self._owner == os.getpid() and self._worker.poll() is None:
            return self._worker
        self.close()
        spec = importlib.util.find_spec("pyflakes")
        folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
        script = Path(__file__).with_name("lint_worker.py")
        self._worker = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(script), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
        )
        self._owner = os.getpid()
        return self._worker


LINTER = Linter()
"""The linter of this process; its worker starts with the first check."""
atexit.register(LINTER.close)
