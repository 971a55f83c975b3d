"""A program under tests that call its functions: two conversations, and what goes between them."""

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
"""Seconds that the tests may take beside the program's own time."""
GRADER_MEMORY = 512 * MIB
MOST_TO_COUNT = 200_000
"""Characters of tests whose assertions are counted."""
_BY_TESTS = {
    "passed": CaseOutcome.PASSED,
    "wrong_answer": CaseOutcome.WRONG_ANSWER,
    "runtime_error": CaseOutcome.RUNTIME_ERROR,
}


class End(Enum):
    """How the tests of a program ended."""

    DONE = auto()
    FAULTY = auto()
    """They are broken, whatever the program returns."""
    BROKEN = auto()
    """Their process said something that it may not say, or was ended over what it did."""
    LOST = auto()
    """Their process says no more."""


class Trial:
    """Carries requests and answers between a program and its tests, and writes down the verdicts.

    One side has the turn at any time, and only that side is listened to. What a program says out of turn is taken for
    its next answer.

    Attributes:
        heard: how many messages of the program the tests have received.
        why: what ended the tests, where they did not come to their end.
    """

    def __init__(self, program: ScriptSession, grader: ScriptSession, tests: Functions, limits: Limits) -> None:
        self.program, self.grader, self.tests, self.limits = program, grader, tests, limits
        self.verdicts: list[CaseVerdict] = []
        self.end, self.why, self.heard = End.LOST, "", 0
        self._gone: CaseVerdict | None = None

    def run(self) -> None:
        """Run the tests to their end."""
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
        """The verdicts, with one more where all passed and assertions that must have been run are missing."""
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
        """Do what a message of the tests says."""
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
        """The next message of the program; None where there is none, and then there will be no other."""
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
        """Why the program gives no more answers."""
        result = self.program.wait_for(MARGIN)
        if result is None:
            return CaseVerdict(CaseOutcome.RUNTIME_ERROR, "the program ended")
        if result.status in OUTCOMES:
            return CaseVerdict(OUTCOMES[result.status], result.status.value)
        return CaseVerdict(CaseOutcome.RUNTIME_ERROR, clean(last_error_line(result)))

    def _verdict(self, report: Any) -> CaseVerdict:
        """The verdict on one test. One that the tests cannot have given is a wrong answer."""
        name, detail = (report.get("verdict"), report.get("detail", "")) if isinstance(report, dict) else ("", "")
        if name == "gone" and self._gone is not None:
            return self._gone
        detail = clean(detail)
        outcome = _BY_TESTS.get(name, CaseOutcome.WRONG_ANSWER) if isinstance(name, str) else CaseOutcome.WRONG_ANSWER
        if outcome is CaseOutcome.RUNTIME_ERROR and detail.startswith("MemoryError"):
            outcome = CaseOutcome.MEMORY
        return CaseVerdict(outcome, detail)


def count_assertions(tests: Functions) -> int:
    """How many assertions are run whatever happens: those of the module, and of `check`, that stand below nothing else."""
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
    """What a sandbox said, as text that can be stored."""
    return clean_text(text[:300]) if isinstance(text, str) else ""


def _error_verdict(names: list[str], message: str) -> CaseVerdict:
    outcome = CaseOutcome.MEMORY if names[0] == "MemoryError" else CaseOutcome.RUNTIME_ERROR
    return CaseVerdict(outcome, clean(f"{names[0]}: {message}"))
