"""An evaluator and the submission that it judges, each in a sandbox of its own, with a pipe each way between them.

In the evaluator's sandbox a file of ours stands in for the module of the submission (`inside.stub`); in that of the submission
`inside.serve` answers. The evaluator's sandbox runs nothing of the agent's, so what is printed there, the evaluator printed.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from palaestra.core.errors import SandboxError
from palaestra.research.judge import inside
from palaestra.research.judge.deadline import interrupt
from palaestra.research.judge.inside.serve import CHANGED
from palaestra.research.judge.inside.stub import LINE
from palaestra.sandbox.base import Limits, Sandbox, SandboxResult
from palaestra.sandbox.bubblewrap import Bubblewrap
from palaestra.sandbox.spawn import high_number

LIBRARY, PACKAGE = "/opt/runner", "_palaestra_inside"
INSIDE = ("pipe", "serve", "stub", "values")
HERE = Path(inside.__file__).parent
MARGIN = 1.0
"""Seconds that a submission has beyond the evaluator: it is the evaluator's time that ends."""
GRACE = 0.5
"""Seconds that a submission has to end when nothing more is asked of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """What lies in a sandbox: files of the workspace, and further paths, from the path inside to that of the host."""

    files: Mapping[str, bytes]
    read_only: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    """How an evaluation ended.

    Arguments:
        result: of the evaluator.
        changed: the submission changed an argument that it was given. As it got a copy, the evaluator did not see it.
    """

    result: SandboxResult
    changed: bool


def stub_source(names: Sequence[str]) -> bytes:
    """The file that stands in for a submission.

    Arguments:
        names: that `from MODULE import *` brings, where the submission has them. Others can be asked for one by one.
    """
    return (
        f"from {PACKAGE}.stub import connect as _connect\n\n"
        "_line = _connect()\n"
        f"_names = _line.names({list(names)!r})\n"
        "__all__ = list(_names)\n"
        "globals().update(_names)\n\n\n"
        "def __getattr__(name):\n    return _line.get(name)\n"
    ).encode()


def run_apart(
    sandbox: Sandbox, evaluator: str, judge: Place, module: str, submission: Place, limits: Limits,
    env: Mapping[str, str] = {},
) -> Ended:  # fmt: skip
    """Run an evaluator on a submission.

    Arguments:
        evaluator: its file in the workspace of `judge`.
        module: the file of the submission.
        limits: of each of the two; the time is of both together.

    Raises:
        SandboxError: a sandbox broke.
    """
    if not isinstance(sandbox, Bubblewrap):
        raise SandboxError(f"two sandboxes with a pipe between them need bubblewrap; got {sandbox.name}")
    ours = {f"{LIBRARY}/{PACKAGE}/{name}.py": str(HERE / f"{name}.py") for name in INSIDE}
    env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": LIBRARY, "PYTHONHASHSEED": "0", **env}
    requests, answers = _pipe(), _pipe()
    cores = sorted(os.sched_getaffinity(0))
    own, theirs = random.SystemRandom().sample(cores, 2) if len(cores) > 1 else (-1, -1)
    outcome: list[SandboxResult | BaseException] = []
    dotted = ".".join(PurePosixPath(module).with_suffix("").parts)

    def serve() -> None:
        try:
            outcome.append(sandbox.run(
                # Without the workspace among the places of modules: a file there stands in for none of ours.
                ["python3", "-P", "-B", "-m", f"{PACKAGE}.serve", dotted, str(requests[0]), str(answers[1]), str(theirs)],
                submission.files, limits=replace(limits, wall_seconds=limits.wall_seconds + MARGIN),
                read_only={**submission.read_only, **ours}, env=env, pass_fds=(requests[0], answers[1]),
            ))  # fmt: skip
        except BaseException as error:  # Raised again below.
            outcome.append(error)
        finally:
            _close(requests[0], answers[1])  # So that the evaluator finds the pipe at its end.

    thread = threading.Thread(target=serve, daemon=True, name="submission")
    thread.start()
    try:
        result = sandbox.run(
            ["python3", "-B", evaluator], judge.files, limits=limits, read_only={**judge.read_only, **ours},
            env={**env, LINE: f"{requests[1]},{answers[0]},{own}"}, pass_fds=(requests[1], answers[0]),
        )  # fmt: skip
    finally:
        _close(requests[1], answers[0])
        thread.join(GRACE)
        interrupt(thread)
        thread.join()
    if isinstance(outcome[0], SandboxError):
        raise outcome[0]
    return Ended(result, isinstance(outcome[0], SandboxResult) and outcome[0].exit_code == CHANGED)


def _pipe() -> tuple[int, int]:
    try:
        ends = os.pipe()
    except OSError as error:
        raise SandboxError(f"cannot make a pipe: {error}; is the machine out of open files?") from error
    try:
        return high_number(ends[0]), high_number(ends[1])
    finally:
        _close(*ends)


def _close(*files: int) -> None:
    for file in files:
        with suppress(OSError):
            os.close(file)
