"""Runs an evaluator and the submission that it judges in separate sandboxes, connected by a pipe each way.

In the evaluator's sandbox a stub replaces the module of the submission (`inside.stub`); in the submission's sandbox
`inside.serve` answers. No code of the agent runs in the evaluator's sandbox, so everything printed there comes from the
evaluator.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from palaestra.core.errors import SandboxError
from palaestra.research.judge import inside
from palaestra.research.judge.inside.serve import CHANGED
from palaestra.research.judge.inside.stub import PIPES
from palaestra.research.judge.program import interrupt
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand, SandboxResult
from palaestra.sandbox.bubblewrap import Bubblewrap
from palaestra.sandbox.program import duplicate_high

_LIBRARY, _PACKAGE = "/opt/runner", "_palaestra_inside"
_INSIDE = ("serve", "stub", "values")
_HERE = Path(inside.__file__).parent
_MARGIN = 1.0
"""Seconds that a submission has beyond the evaluator; the evaluator's limit is the one that counts."""
_GRACE = 0.5
"""Seconds that a submission has to end after the last request."""


class SandboxFiles(NamedTuple):
    """The content of a sandbox: files of the workspace, and read-only paths from the path inside to the path on the
    host.
    """

    files: Mapping[str, bytes]
    read_only: Mapping[str, str]


class ApartResult(NamedTuple):
    """The result of the evaluator, and whether the submission modified an argument. The evaluator did not see that,
    because the argument was a copy.
    """

    result: SandboxResult
    changed: bool


def stub_source(names: Sequence[str]) -> bytes:
    """Return the source of the stub that replaces a submission.

    Arguments:
        names: the names that `from MODULE import *` provides if the submission has them. Others are looked up on
            access.
    """
    return (
        f"from {_PACKAGE}.stub import connect as _connect\n\n"
        "_line = _connect()\n"
        f"_names = _line.names({list(names)!r})\n"
        "__all__ = list(_names)\n"
        "globals().update(_names)\n\n\n"
        "def __getattr__(name):\n    return _line.get(name)\n"
    ).encode()


def run_apart(
    sandbox: Sandbox,
    evaluator: str,
    judge: SandboxFiles,
    module: str,
    submission: SandboxFiles,
    limits: Limits,
    env: Mapping[str, str] = {},
) -> ApartResult:
    """Run an evaluator on a submission.

    Arguments:
        evaluator: the evaluator's file in the workspace of `judge`.
        module: the submission's file.
        limits: the limits of each sandbox; the time limit is for both together.

    Raises:
        SandboxError: a sandbox failed.
    """
    if not isinstance(sandbox, Bubblewrap):
        raise SandboxError(f"two sandboxes with a pipe between them need bubblewrap; got {sandbox.name}")
    ours = {f"{_LIBRARY}/{_PACKAGE}/{name}.py": str(_HERE / f"{name}.py") for name in _INSIDE}
    env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": _LIBRARY, "PYTHONHASHSEED": "0", **env}
    requests, answers = _pipe(), _pipe()
    cores = sorted(os.sched_getaffinity(0))
    own, theirs = random.SystemRandom().sample(cores, 2) if len(cores) > 1 else (-1, -1)
    outcome: list[SandboxResult | BaseException] = []
    dotted = ".".join(PurePosixPath(module).with_suffix("").parts)

    numbers = (requests[0], answers[1], theirs)
    serving = SandboxCommand(
        # Without the workspace in the module search path (-P), so that it cannot shadow our modules.
        ["python3", "-P", "-B", "-m", f"{_PACKAGE}.serve", dotted, *map(str, numbers)],
        submission.files,
        limits=replace(limits, wall_seconds=limits.wall_seconds + _MARGIN),
        env=env,
        read_only={**submission.read_only, **ours},
        pass_fds=(requests[0], answers[1]),
    )
    judging = SandboxCommand(
        ["python3", "-B", evaluator],
        judge.files,
        limits=limits,
        env={**env, PIPES: f"{requests[1]},{answers[0]},{own}"},
        read_only={**judge.read_only, **ours},
        pass_fds=(requests[1], answers[0]),
    )

    def serve() -> None:
        try:
            outcome.append(sandbox.run(serving))
        except BaseException as error:  # Raised again below.
            outcome.append(error)
        finally:
            _close(requests[0], answers[1])  # So that the evaluator sees the end of the pipe.

    thread = threading.Thread(target=serve, daemon=True, name="submission")
    thread.start()
    try:
        result = sandbox.run(judging)
    finally:
        _close(requests[1], answers[0])
        thread.join(_GRACE)
        interrupt(thread)
        thread.join()
    served = outcome[0]
    if isinstance(served, SandboxError):
        raise served
    if not isinstance(served, SandboxResult):  # It was interrupted.
        return ApartResult(result, False)
    if served.status.is_limit and not result.ok:  # Why the evaluator got no answer.
        result = replace(result, status=served.status)
    return ApartResult(result, served.exit_code == CHANGED)


def _pipe() -> tuple[int, int]:
    try:
        ends = os.pipe()
    except OSError as error:
        raise SandboxError(f"cannot make a pipe: {error}; is the machine out of open files?") from error
    try:
        return duplicate_high(ends[0]), duplicate_high(ends[1])
    finally:
        _close(*ends)


def _close(*files: int) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)
