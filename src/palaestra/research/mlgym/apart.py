"""An evaluator and the submission that it judges, each in a sandbox of its own, and the words between them.

In the evaluator's sandbox a file of ours stands in for the module of the submission. What the evaluator asks of it comes here
line by line, goes on to the sandbox of the submission, and the answers go back. None of it is looked into: what the
submission says is read by the evaluator's side only, which takes it for values and nothing else.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from palaestra.core.errors import SandboxError
from palaestra.research import inside
from palaestra.research.deadline import interrupt
from palaestra.research.inside.evaluate import KEPT
from palaestra.research.inside.marks import ASK, ENDED, LONGEST_REQUEST, OPEN, UNSENDABLE
from palaestra.research.mlgym.scores import EXCEPTIONS
from palaestra.research.program import LONGEST
from palaestra.sandbox.base import GIB, MIB, Limits, Result, Sandbox

LIBRARY, PACKAGE = "/opt/runner", "_palaestra_inside"
INSIDE = ("changes", "marks", "run", "serve", "stub", "values")
HERE = Path(inside.__file__).parent
STUB = f"""from {PACKAGE}.stub import names_of as _names_of

globals().update(_names_of(globals()))
"""
"""What stands in for `target.py`."""
ASKED, ANSWERED = GIB, 256 * MIB
"""Bytes of all requests, and of all answers."""
MARGIN = 1.0
"""Seconds that a submission has beyond the evaluator: it is the evaluator's time that ends."""
GRACE, PATIENCE = 0.5, 30.0
"""Seconds that a submission has to end when nobody asks any more, and a sandbox beyond its time."""


@dataclass(frozen=True, slots=True)
class Place:
    """What lies in a sandbox: files of the workspace, and further paths, from the path inside to that of the host."""

    files: Mapping[str, bytes]
    read_only: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    """How an evaluator ended.

    Arguments:
        result: with what it printed, the end of it, as stdout.
        unsendable: what it passed to the submission that cannot be sent, if it did; then nothing was judged.
        unimportable: the exception that importing the submission raised; of its name, what Python itself has.
    """

    result: Result
    unsendable: str = ""
    unimportable: str = ""


def run_apart(sandbox: Sandbox, evaluator: str, judge: Place, submission: Place, limits: Limits) -> Ended:
    """Run an evaluator on a submission.

    Arguments:
        evaluator: its file in the workspace of `judge`.
        limits: of each of the two; the time is of both together.

    Raises:
        SandboxError: a sandbox broke.
    """
    ends = time.monotonic() + limits.wall_seconds
    longer = replace(limits, output=ANSWERED, wall_seconds=limits.wall_seconds + MARGIN)
    asking = _Side(sandbox, ["run", str(KEPT), evaluator], judge, replace(limits, output=ASKED), LONGEST_REQUEST)
    answering = _Side(sandbox, ["serve"], submission, longer, LONGEST)
    relay = _Relay(asking, answering)
    try:
        while relay.goes_on:
            poll = select.poll()
            for side in relay.open:
                poll.register(side.mine, select.POLLIN)
            ready = {file for file, _ in poll.poll(1000 * (max(0.0, ends - time.monotonic()) + PATIENCE))}
            if not ready:
                raise SandboxError("the sandbox of an evaluator did not end with its time")
            relay.pass_on([side for side in relay.open if side.mine.fileno() in ready])
    finally:
        asking.close()
        answering.end()
    said = (relay.said or "").encode("utf-8", "replace")
    return Ended(replace(asking.result(), stdout=said), relay.unsendable, relay.unimportable)


class _Side:
    """A script of ours at work in a sandbox, and the line to it."""

    def __init__(self, sandbox: Sandbox, command: list[str], place: Place, limits: Limits, longest: int) -> None:
        try:
            self.mine, self._theirs = socket.socketpair()
        except OSError as error:
            raise SandboxError(f"cannot talk with a sandbox: {error}; is the machine out of open files?") from error
        self.mine.settimeout(PATIENCE)
        self.open = True
        self._longest, self._rest = longest, bytearray()
        self._outcome: Result | BaseException | None = None
        # Without the workspace among the places of modules: what lies there stands in for none of ours.
        argv = ["python3", "-P", "-B", "-m", f"{PACKAGE}.{command[0]}", *command[1:]]
        ours = {f"{LIBRARY}/{PACKAGE}/{name}.py": str(HERE / f"{name}.py") for name in INSIDE}
        env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": LIBRARY, "PYTHONHASHSEED": "0"}

        def work() -> None:
            try:
                self._outcome = sandbox.run(
                    argv, place.files, stdin=self._theirs, limits=limits, read_only={**place.read_only, **ours}, env=env
                )
            except BaseException as error:  # Raised again by whoever asks for the result.
                self._outcome = error
            finally:
                self._theirs.close()

        self._thread = threading.Thread(target=work, daemon=True, name=command[0])
        self._thread.start()

    def send(self, line: bytes) -> None:
        with suppress(OSError):  # It has ended; whoever reads next finds out.
            self.mine.sendall(line + b"\n")

    def lines(self) -> list[bytes] | None:
        """What has come; None at the end, and after a line that is too long."""
        try:
            data = self.mine.recv(1 << 18)
        except OSError:
            return None
        self._rest += data
        if not data:
            return None
        if b"\n" not in data:
            return [] if len(self._rest) <= self._longest else None
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        return [bytes(line) for line in lines] if max(map(len, (*lines, rest))) <= self._longest else None

    def close(self) -> None:
        """Say no more; the script finds its input at an end, and ends."""
        self.open = False
        self.mine.close()

    def end(self) -> None:
        """End it, also where it is busy.

        Raises:
            SandboxError: its sandbox broke.
        """
        self.close()
        self._thread.join(GRACE)
        interrupt(self._thread)
        self._thread.join()
        if isinstance(self._outcome, SandboxError):
            raise self._outcome

    def result(self) -> Result:
        """What became of it; waits for its end."""
        self._thread.join()
        if isinstance(self._outcome, Result):
            return self._outcome
        if isinstance(self._outcome, SandboxError):
            raise self._outcome
        raise SandboxError(f"a sandbox of an evaluation broke: {self._outcome}")


class _Relay:
    """What goes from one side to the other, and what is only for us."""

    def __init__(self, asking: _Side, answering: _Side) -> None:
        self.asking, self.answering, self.goes_on = asking, answering, True
        self.said: str | None = None
        self.unsendable = self.unimportable = ""
        self._open: list[bool] = []
        """Requests without an answer, in order: whether they open the module."""

    @property
    def open(self) -> list[_Side]:
        return [side for side in (self.asking, self.answering) if side.open]

    def pass_on(self, ready: list[_Side]) -> None:
        """Take what has come from these."""
        if self.answering in ready:
            self._answer(self.answering.lines())
        if self.asking in ready:
            lines = self.asking.lines()
            self.goes_on = lines is not None
            for line in lines or ():
                self._ask(line)

    def _ask(self, line: bytes) -> None:
        mark, rest = line[:1], line[1:]
        if mark == ENDED:
            self.said, self.goes_on = str(json.loads(rest)), False
        elif mark == UNSENDABLE:
            self.unsendable, self.goes_on = str(json.loads(rest)), False
        elif mark in (ASK, OPEN):
            self._open.append(mark == OPEN)
            if self.answering.open:
                self.answering.send(rest)
            else:
                self._end("it ended before")

    def _answer(self, lines: list[bytes] | None) -> None:
        """Take lines of the submission. Where it ended, or says what nobody asked for, it is asked no more."""
        for line in lines or ():
            if not self._open:
                lines = None
                break
            if self._open.pop(0):
                self.unimportable = _raised(line)
            self.asking.send(line)
        if lines is None:
            self.answering.close()
            self._end("it ended, or said too much")

    def _end(self, why: str) -> None:
        for _ in self._open:
            self.asking.send(json.dumps({"ended": why}).encode())
        self._open.clear()


def _raised(line: bytes) -> str:
    """The exception that an answer tells of, if it does."""
    try:
        found = json.loads(line)
        name = found.get("ended") or found["error"][0]
        return name if name in EXCEPTIONS else ""
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
