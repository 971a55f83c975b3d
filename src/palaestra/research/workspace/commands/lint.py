"""Which errors an edit brings into a Python file.

Sources of the agent are parsed in a process of their own: one that makes the parser crash, or run for ever, costs a
worker and nothing else. The worker stays, so that a check takes about as long as pyflakes does. It is not in the sandbox:
it parses, and runs nothing of what it reads. Without pyflakes, which comes with `palaestra[research]`, only what the
compiler finds is found.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LONGEST = 400_000
"""Characters of the longest source that is looked at."""
PATIENCE = 5.0
"""Seconds that one source may take."""

REMEMBERED = 64
"""Sources whose errors are known, for all workspaces of this process."""


class Finding(NamedTuple):
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Findings:
    """The errors of a source.

    Arguments:
        broken: it cannot be parsed, so that the only error is where the parser stopped.
    """

    found: tuple[Finding, ...] = ()
    broken: bool = False


def new_errors(before: Findings, after: Findings) -> list[Finding]:
    """The errors that were not there before, wherever they stood. Of a file that could not be parsed nothing is known,
    so none counts as new."""
    if before.broken:
        return []
    had = Counter(one.message for one in before.found)
    new = []
    for one in after.found:
        if had[one.message] > 0:
            had[one.message] -= 1
        else:
            new.append(one)
    return new


class Linter:
    """Checks sources, one at a time; other threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._owner = -1
        self._known: dict[str, Findings | None] = {}

    def check(self, source: str) -> Findings | None:
        """The errors of a Python source; `None` where it is too long or too much for the parser."""
        if len(source) > LONGEST:
            return None
        if not source.strip():
            return Findings()
        with self._lock:
            if source not in self._known:  # What one edit leaves, the next one starts from.
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
        worker = self._started()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(source).encode() + b"\n")
            worker.stdin.flush()
            ready, _, _ = select.select([worker.stdout], [], [], PATIENCE)
            line = worker.stdout.readline() if ready else b""
        except OSError:
            line = b""
        if not line:  # it died, or will not end
            self.close()
            return None
        return _read(json.loads(line))

    def _started(self) -> subprocess.Popen[bytes]:
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
"""The one of this process; its worker starts with the first check."""
atexit.register(LINTER.close)


def _read(answer: dict[str, object] | None) -> Findings | None:
    if answer is None:
        return None
    found = answer["found"]
    assert isinstance(found, Sequence)
    return Findings(tuple(Finding(line, message) for line, message in found), bool(answer["broken"]))
