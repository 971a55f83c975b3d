"""Run tests that call the functions of a program: pass messages between the two sandboxes, and record the verdicts."""

from __future__ import annotations

import ast
import math
from enum import Enum, auto
from typing import Any

from palaestra.core.text import clean_text
from palaestra.sandbox.base import MIB, Limits, Status
from palaestra.sandbox.rpc import ScriptSession, last_error_line
from palaestra.tasks.code.formats import Functions
from palaestra.tasks.code.messages import MessageError, ValueTooLarge, read_program, read_tests
from palaestra.tasks.code.verdicts import CaseOutcome, CaseVerdict

OUTCOMES = {
    Status.WALL_TIME: CaseOutcome.TIME, Status.CPU_TIME: CaseOutcome.TIME, Status.MEMORY: CaseOutcome.MEMORY,
    Status.OUTPUT: CaseOutcome.OUTPUT,
}  # fmt: skip
MARGIN = 5.0
"""Seconds for the tests in addition to the time of the program."""
GRADER_MEMORY = 512 * MIB
MOST_TO_COUNT = 200_000
"""Maximum length of tests whose assertions are counted."""
_BY_TESTS = {
    "passed": CaseOutcome.PASSED,
    "wrong_answer": CaseOutcome.WRONG_ANSWER,
    "runtime_error": CaseOutcome.RUNTIME_ERROR,
}


class End(Enum):
    """How the tests of a program ended."""

    DONE = auto()
    FAULTY = auto()
    """The tests are wrong, whatever the program returns."""
    BROKEN = auto()
    """Their process sent an invalid message, or was killed."""
    LOST = auto()
    """Their process ended without a result."""


class Trial:
    """Passes requests and answers between a program and its tests, and records the verdicts.

    At any time it reads from one side only. An unrequested message of the program is read as its next answer.

    Attributes:
        heard: the number of messages of the program that the tests received.
        why: the reason if the tests did not complete.
    """

    def __init__(self, program: ScriptSession, grader: ScriptSession, tests: Functions, limits: Limits) -> None:
        self.program, self.grader, self.tests, self.limits = program, grader, tests, limits
        self.verdicts: list[CaseVerdict] = []
        self.end, self.why, self.heard = End.LOST, "", 0
        self._gone: CaseVerdict | None = None

    def run(self) -> None:
        """Run all tests."""
        patience = self.limits.wall_seconds + 2 * MARGIN
        self.program.channel.set_timeout(patience)
        self.grader.channel.set_timeout(patience)
        self.program.send({"ask": {"what": "load", "name": "solution.py", "args": [], "kwargs": {}}})
        loaded = self._hear_program()
        if loaded is None or "value" not in loaded:
            raised = loaded or {}
            self.verdicts.append(
                self._gone or _error_verdict(raised.get("error", ["Exception"]), raised.get("message", ""))
            )
            self.end = End.DONE
            return
        self.grader.send(self._job())
        while self.end is End.LOST:
            message = self.grader.receive()
            if message is None and self.grader.channel.too_long:
                self.end, self.why = End.FAULTY, "they give the program a value that is too large"
            if message is None:
                return
            try:
                self._follow(message)
            except MessageError as error:
                self.end, self.why = End.BROKEN, f"they sent what is no message: {error}"

    def complete_verdicts(self) -> list[CaseVerdict]:
        """The verdicts; with a wrong answer in addition if all passed but some assertions did not run."""
        if self.verdicts and all(verdict.passed for verdict in self.verdicts):
            missing = count_assertions(self.tests) - len(self.verdicts)
            if missing > 0:
                return [*self.verdicts, CaseVerdict(CaseOutcome.WRONG_ANSWER, f"{missing} tests were not run")]
        return self.verdicts

    def _job(self) -> dict[str, Any]:
        wanted = self.tests.wanted
        return {
            "tests": self.tests.code, "given": self.tests.given, "check": wanted if self.tests.takes_function else "",
            "names": [wanted] if wanted else [], "seconds": math.ceil(max(self.limits.cpu_seconds, MARGIN)),
            "memory": GRADER_MEMORY,
        }  # fmt: skip

    def _follow(self, message: dict[str, Any]) -> None:
        """Handle a message of the tests."""
        if "test" in message:
            self.verdicts.append(self._verdict(message["test"]))
        elif "done" in message:
            self.end = End.DONE
        elif "broken" in message:
            self.end = End.FAULTY if message.get("faulty") is True else End.BROKEN
            self.why = clean(message["broken"])
        else:
            carried = read_tests(message)
            answer = None
            if self._gone is None:
                self.program.send(carried)
                answer = self._hear_program()
            self.heard += 1
            self.grader.send({"gone": True} if answer is None else answer)

    def _hear_program(self) -> dict[str, Any] | None:
        """The next message of the program; None if it has ended."""
        message = self.program.receive()
        if message is not None:
            try:
                return read_program(message)
            except ValueTooLarge as error:
                return {"error": ["ValueError"], "message": str(error)}
            except MessageError as error:
                self._gone = CaseVerdict(
                    CaseOutcome.RUNTIME_ERROR, f"the program sent what is no answer: {clean(str(error))}"
                )
        elif self.program.channel.too_long:
            self._gone = CaseVerdict(CaseOutcome.OUTPUT, "the program returned a value that is too large")
        elif self.program.channel.garbled:
            self._gone = CaseVerdict(CaseOutcome.RUNTIME_ERROR, "the program sent what is no answer")
        else:
            self._gone = self._exit_verdict()
        self.program.channel.close()
        return None

    def _exit_verdict(self) -> CaseVerdict:
        """The verdict on a program that has ended."""
        result = self.program.wait_for(MARGIN)
        if result is None:
            return CaseVerdict(CaseOutcome.RUNTIME_ERROR, "the program ended")
        if result.status in OUTCOMES:
            return CaseVerdict(OUTCOMES[result.status], result.status.value)
        return CaseVerdict(CaseOutcome.RUNTIME_ERROR, clean(last_error_line(result)))

    def _verdict(self, report: Any) -> CaseVerdict:
        """The verdict on one test. An invalid report is a wrong answer."""
        name, detail = (report.get("verdict"), report.get("detail", "")) if isinstance(report, dict) else ("", "")
        if name == "gone" and self._gone is not None:
            return self._gone
        detail = clean(detail)
        outcome = _BY_TESTS.get(name, CaseOutcome.WRONG_ANSWER) if isinstance(name, str) else CaseOutcome.WRONG_ANSWER
        if outcome is CaseOutcome.RUNTIME_ERROR and detail.startswith("MemoryError"):
            outcome = CaseOutcome.MEMORY
        return CaseVerdict(outcome, detail)


def count_assertions(tests: Functions) -> int:
    """The number of assertions that always run: those at the top level of the module and of `check`."""
    if len(tests.code) > MOST_TO_COUNT:
        return 0
    try:
        body = ast.parse(tests.code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    if tests.takes_function:
        checks = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"]
        body = body + (checks[-1].body if checks else [])
    return sum(isinstance(node, ast.Assert) for node in body)


def clean(text: Any) -> str:
    """A text from a sandbox, cleaned so that it can be stored."""
    return clean_text(text[:300]) if isinstance(text, str) else ""


def _error_verdict(names: list[str], message: str) -> CaseVerdict:
    outcome = CaseOutcome.MEMORY if names[0] == "MemoryError" else CaseOutcome.RUNTIME_ERROR
    return CaseVerdict(outcome, clean(f"{names[0]}: {message}"))
