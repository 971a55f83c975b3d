"""Run checks in a process of their own, so that an environment that hangs or dies ends a check and not the command."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from palaestra.core.errors import PalaestraError
from palaestra.core.records import Event, Listener
from palaestra.core.registry import describe_error
from palaestra.recipes.check.answers import Answers, make_answers
from palaestra.recipes.check.records import (
    CHECK_END,
    CheckEndedError,
    CheckFinding,
    CheckRecord,
    CheckStatus,
    EnvCheck,
    report_fail,
    report_skip,
    to_record,
)
from palaestra.recipes.check.subjects import Subject
from palaestra.recipes.check.submissions import ResearchPart, estimate_evaluation

_PATIENCE = 10.0
"""How many times its expected seconds a check may take, and how many times the seconds of the slowest gate."""
_MIN_SECONDS, _START_SECONDS = 20.0, 120.0
"""The least time limit of a check, and of a gate, which shows how slow the environment is."""
_MAX_LOAD = 3.0
"""How many times longer a check may take on a busy machine."""
_MAX_HANGS = 2
"""Checks that may hang before the rest is skipped."""


class SubjectParts:
    """The parts of a subject, made when the first check needs them."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @cached_property
    def answers(self) -> Answers | None:
        return make_answers(self.subject)

    @cached_property
    def trial(self) -> Any:
        from palaestra.recipes.check.trials import ControlTrial, TextTrial  # They load torch.

        if self.answers is not None:
            return TextTrial(self.answers)
        return self.subject.env and ControlTrial(self.subject.env)

    @cached_property
    def research(self) -> ResearchPart | None:
        return self.subject.research and ResearchPart(self.subject)

    def get(self, part: str) -> Any:
        """The part that a check examines; `None` if the subject has none."""
        if part in ("answers", "trial"):
            return getattr(self, part)
        return {"env": self.subject.env, "problems": self.subject.task and self.answers, "research": self.research}[
            part
        ]


def list_applicable(subject: Subject, checks: Sequence[EnvCheck]) -> list[EnvCheck]:
    """The checks of the parts that a subject may have. Whether actions are texts is only known once it is made."""
    parts = {"env": subject.env, "problems": subject.task, "research": subject.research}
    parts["answers"] = parts["trial"] = subject.env or subject.task
    return [check for check in checks if parts[check.part] is not None]


def run_checks(
    subject: Subject, checks: Sequence[EnvCheck], *, budget: float, listener: Listener
) -> tuple[list[CheckRecord], str]:
    """Run checks in order.

    Arguments:
        budget: seconds for all checks; 0 for no limit. A check that has started ends by its own limit or by the budget.
            One that is ended by the budget has no result.

    Returns:
        the results, and why checks are missing; empty if none are.
    """
    start, results, hangs, slowest = time.monotonic(), list[CheckRecord](), 0, 0.0
    worker: _Worker | None = None
    by_id: dict[str, CheckRecord] = {}
    try:
        for number, check in enumerate(checks):
            left = budget - (time.monotonic() - start) if budget else float("inf")
            if left <= 0:
                break
            listener(Event(check.check_id, number, len(checks)))
            began = time.monotonic()
            needed = (*(gate.check_id for gate in checks[:number] if gate.is_gate), *check.after)
            blocking = next((name for name in needed if _has_failed(by_id.get(name))), "")
            if hangs >= _MAX_HANGS:
                finding = report_skip(f"{_MAX_HANGS} checks hung or ended the process before")
            elif blocking:
                finding = report_skip(f"{blocking} failed")
            else:
                worker = worker or _Worker(subject)
                least = _START_SECONDS if check.is_gate else _MIN_SECONDS
                limit = max(least, _PATIENCE * check.seconds, _PATIENCE * slowest)
                if check.evaluations:
                    limit += 2 * check.evaluations * estimate_evaluation(subject)[0]
                # A busy machine gets more time: processes that wait for a core do not hang.
                limit *= min(_MAX_LOAD, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
                finding = worker.run(check, min(limit, left))
                if worker.is_lost:
                    hangs, worker = hangs + 1, None
                    if budget and time.monotonic() - start >= budget:
                        break  # The budget ended it, not its own limit.
            record = to_record(check, finding, subject.command, time.monotonic() - began)
            results.append(record)
            if check.is_gate:
                slowest = max(slowest, record.seconds)
            if check.check_id not in by_id or _has_failed(record):
                by_id[check.check_id] = record
        missing = len(checks) - len(results)
        return results, f"the budget of {budget:g} s is spent; {missing} checks did not end" if missing else ""
    finally:
        if worker is not None:
            worker.close()


def _has_failed(record: CheckRecord | None) -> bool:
    return record is not None and record.status is CheckStatus.FAIL


class _Worker:
    """A process that runs checks of one subject, one after the other."""

    def __init__(self, subject: Subject) -> None:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self.is_lost = False
        handle, name = tempfile.mkstemp(prefix="palaestra-check-")
        os.close(handle)
        self._stacks = Path(name)
        self._pipe, inside = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(subject, inside, str(self._stacks)), daemon=False
        )
        self._process.start()
        inside.close()

    def run(self, check: EnvCheck, seconds: float) -> CheckFinding:
        """Run a check. A process that dies or exceeds the time is lost, and the check has failed."""
        self._pipe.send((check, seconds))
        with suppress(EOFError, ConnectionError):
            if self._pipe.poll(seconds):
                finding: CheckFinding = self._pipe.recv()
                return finding
            self.is_lost = True
            with suppress(ProcessLookupError, AttributeError):
                os.kill(self._process.pid or 0, signal.SIGUSR1)
                time.sleep(0.3)
            where = self._locate()
            self._kill()
            remedy = "Make it return: look at the line of the evidence for a loop without an end, a lock or a missing time-out."
            return report_fail(f"it did not return within {seconds:.0f} s", *where, remedy=remedy)
        self.is_lost = True
        self._process.join(5)
        code, where = self._process.exitcode or 0, self._locate()
        self._kill()
        how = f"with the signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        remedy = "Raise an exception instead of ending the process; a signal is a fault in compiled code."
        return report_fail(f"the environment ended the process, {how}", *where, remedy=remedy)

    def _locate(self) -> list[str]:
        """The innermost lines that the process executed last, as it wrote them."""
        lines = [line.strip() for line in self._stacks.read_text(errors="replace").splitlines() if "File " in line]
        return [
            line
            for line in lines
            if not re.search(r"palaestra/recipes/check|/multiprocessing/|gymnasium/(core|wrappers)", line)
        ][:2]

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(5)
        self._kill()

    def _kill(self) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join(5)
        self._stacks.unlink(missing_ok=True)


def _serve(subject: Subject, pipe: Connection, stacks: str) -> None:
    """The loop of the process: receive a check, run it, send what it found."""
    gc.freeze()  # Collections leave the memory alone that is shared with the parent.
    with suppress(OSError):
        os.setpgrp()  # The environment's own processes end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(stacks, "w") as file, open(os.devnull, "w") as nowhere:
        # What an environment prints, also in C, would be in the middle of the report.
        sys.stdout = sys.stderr = nowhere
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
        faulthandler.enable(file, all_threads=False)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
        parts = SubjectParts(subject)
        while True:
            try:
                order: tuple[EnvCheck, float] | None = pipe.recv()
            except EOFError:
                return
            if order is None:
                return
            CHECK_END.set(time.monotonic() + order[1])
            try:
                pipe.send(run_check(order[0], parts))
            except SystemExit as error:
                frames = traceback.StackSummary(reversed(traceback.extract_tb(error.__traceback__)))
                file.write("".join(frames.format()))
                raise


def run_check(check: EnvCheck, parts: SubjectParts) -> CheckFinding:
    """Run a check in this process."""
    try:
        part = parts.get(check.part)
        if part is None:
            return report_skip("its actions are not texts")
        return check.function(part)
    except CheckEndedError as error:
        return error.finding
    except PalaestraError as error:
        return report_fail(str(error))
    except Exception as error:  # The environment is the user's code.
        return report_fail(f"it raised {describe_error(error)}")
