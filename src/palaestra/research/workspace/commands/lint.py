"""Finds the errors that an edit adds to a Python file.

Sources are parsed in a separate process: one that crashes the parser or never ends only costs that worker. The worker
is reused, so that a check takes about as long as pyflakes. It runs outside the sandbox, because it only parses. Without
pyflakes (in `palaestra[research]`) only compiler errors are found.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from palaestra.sandbox.line_process import LineProcess

_MAX_SOURCE = 400_000
"""The maximum characters of a source that is checked."""
_MAX_SECONDS = 5.0
"""The maximum seconds per source."""
_MAX_CACHED = 64
"""The number of sources whose errors are cached in this process."""


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


@lru_cache(_MAX_CACHED)  # An edit usually starts from the result of the previous one.
def find_errors(source: str) -> Findings | None:
    """Return the errors of a Python source; `None` if it is too long or the parser gave up."""
    if len(source) > _MAX_SOURCE or not source.strip():
        return Findings() if len(source) <= _MAX_SOURCE else None
    answer = get_worker().ask(lambda: source, _MAX_SECONDS)
    return answer and Findings(tuple(Finding(*error) for error in answer["errors"]), answer["broken"])


@cache
def get_worker() -> LineProcess:
    """The worker of this process."""
    spec = importlib.util.find_spec("pyflakes")
    folder = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
    script = Path(__file__).with_name("lint_worker.py")
    return LineProcess([sys.executable, "-I", "-S", "-B", str(script), folder], env={"LANG": "C.UTF-8"})
