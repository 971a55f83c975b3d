"""Judge programs by their tests. The program runs in a sandbox that never contains its tests.

A program that reads and prints gets one input at a time, and its output is compared here. For functions there are two
processes, each in its own sandbox. One contains the program and answers calls. The other contains the tests, which are
code too; it requests calls and compares the results. They exchange values and references to objects
(`inside/peer.py`). All messages pass through this module, which forwards nothing but requests and answers. So a program
can neither read its tests nor forge its verdict.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from functools import cached_property
from typing import TYPE_CHECKING

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause, Json, Score
from palaestra.core.text import clean_text
from palaestra.sandbox.base import MIB, Limits, SandboxCommand, SandboxResult, make_sandbox
from palaestra.sandbox.rpc import ISOLATED, Script, ScriptSession, SessionPool, last_error_line
from palaestra.tasks.code.comparison import first_difference, same_output
from palaestra.tasks.code.extraction import parse_program
from palaestra.tasks.code.formats import Functions, Stdio

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

_MAX_BYTES, _MAX_COMMAS = 8 * MIB, 2_000_000
"""Maximum size of a message, which bounds the values that a program may return."""
_MESSAGE_KEYS = ("ask", "value", "argument", "error", "message", "attributes", "changed")
"""The keys of requests and answers. Other keys start jobs and report verdicts, so they are never forwarded."""
_PROGRAM = Script("palaestra.tasks.code.inside", ("peer", "program"), _MAX_BYTES, _MAX_COMMAS)
_GRADER = Script("palaestra.tasks.code.inside", ("peer", "grader"), _MAX_BYTES, _MAX_COMMAS)
_GRADER_LIMITS = Limits(
    wall_seconds=300.0, cpu_seconds=60.0, memory=512 * MIB, processes=16, output=64 * MIB, disk=64 * MIB
)
"""Limits of a grader that serves many programs: the time of all of them, and the memory of one."""
_SLACK = 2.0
"""Factor for the time limits of problems, which assume fast machines and compiled languages."""
MARGIN = 5.0
"""Seconds for the tests in addition to the time of the program."""


class CaseOutcome(StrEnum):
    """The outcome of one test."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    TIME = "time"
    """It exceeded the time limit."""
    MEMORY = "memory"
    """It exceeded the memory limit."""
    OUTPUT = "output"
    """It printed too much."""
    RUNTIME_ERROR = "runtime_error"
    NO_CODE = "no_code"
    """The response contains no program that defines what was asked for."""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The outcome of one test, with an explanation."""

    outcome: CaseOutcome
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is CaseOutcome.PASSED


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """The outcomes of all tests of a program. Tests after one that ended the program have its outcome."""

    verdicts: tuple[CaseVerdict, ...]

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def outcome(self) -> CaseOutcome:
        """The first outcome that is not a pass; otherwise a pass."""
        return next((v.outcome for v in self.verdicts if not v.passed), CaseOutcome.PASSED)

    @property
    def detail(self) -> str:
        return next((v.detail for v in self.verdicts if not v.passed), "")

    def score(self, count: int = 0, **evidence: str) -> Score:
        """The score: 1 if all tests passed, else 0. The evidence names the number of passed tests, of `count`."""
        passed = f"{sum(verdict.passed for verdict in self.verdicts)} of {count or len(self.verdicts)}"
        evidence = {"outcome": self.outcome.value, "passed": passed, "detail": self.detail, **evidence}
        return Score(float(self.passed), evidence)


class ProgramJudge:
    """Runs programs against their tests.

    Arguments:
        sandbox: where programs run; by default bubblewrap, started on first use.
        seconds: CPU time of a test (of all tests together if they call functions) for problems without their own limit.
        trusted: the tests are not written by a model. Then one sandbox for tests serves many programs, one after the
            other. Otherwise each run of tests has its own. Every program has its own sandbox in any case.
    """

    def __init__(self, sandbox: Sandbox | None = None, seconds: float = 10.0, *, trusted: bool = False) -> None:
        self.seconds, self.trusted = seconds, trusted
        if sandbox is not None:
            self.sandbox = sandbox
        self._graders = SessionPool(lambda: _GRADER.start(self.sandbox, _GRADER_LIMITS))

    @cached_property
    def sandbox(self) -> Sandbox:
        return make_sandbox()

    def judge(
        self, tests: Stdio | Functions, code: str, seconds: float = 0.0, memory: int = 0, reference: str = ""
    ) -> ProgramVerdict | Failure:
        """Run all tests of a program.

        Arguments:
            seconds, memory: the limits of the problem; 0 for the default.
            reference: a correct program, if known. If the tests fail with an error, they are run on it to see whether the
                program is at fault.

        Returns:
            A failure if the sandbox or the tests themselves failed, which says nothing about the program.
        """
        allowed = seconds * _SLACK or self.seconds
        limits = Limits.for_work(
            allowed, memory=max(memory or 512 * MIB, 64 * MIB), processes=16, output=16 * MIB, disk=64 * MIB
        )
        try:
            if isinstance(tests, Stdio):
                return self._run_stdio(tests, code, limits)
            return self._run_functions(tests, code, limits, reference)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))

    def _run_functions(self, tests: Functions, code: str, limits: Limits, reference: str) -> ProgramVerdict | Failure:
        trial = self._try(tests, code, limits)
        if trial.end is _End.DONE and (verdicts := trial.complete_verdicts()):
            return ProgramVerdict(tuple(verdicts))
        why = f"the tests failed to run: {trial.why or 'they returned no verdict'}"[:500]
        if trial.heard and trial.end is not _End.DONE and self._is_to_blame(trial, reference):
            return ProgramVerdict((*trial.verdicts, CaseVerdict(CaseOutcome.WRONG_ANSWER, why)))
        return Failure(FailureCause.SCORER, why)

    def _is_to_blame(self, trial: _Trial, reference: str) -> bool:
        """Whether the program made the tests end early: with the reference they complete."""
        if not reference:
            return trial.end is _End.BROKEN
        again = self._try(trial.tests, reference, trial.limits)
        return again.end is _End.DONE and ProgramVerdict(tuple(again.complete_verdicts())).passed

    def _try(self, tests: Functions, code: str, limits: Limits) -> _Trial:
        while True:
            program = _PROGRAM.start(self.sandbox, limits, {"solution.py": code.encode("utf-8", "replace")})
            shared = self.trusted and self._graders.lifetime + limits.wall_seconds < _GRADER_LIMITS.wall_seconds
            if shared:
                grader, fresh = self._graders.acquire()
            else:
                longer = replace(limits, wall_seconds=limits.wall_seconds + MARGIN)
                grader, fresh = _GRADER.start(self.sandbox, longer), True
            trial = _Trial(program, grader, tests, limits)
            try:
                trial.run()
            finally:
                program.disconnect()
                if trial.end is _End.DONE and shared:
                    self._graders.release(grader)
                else:
                    grader.disconnect()
                program.wait()
            if trial.end is not _End.LOST:
                return trial
            if fresh:
                result = grader.wait_for(MARGIN)
                trial.end, trial.why = _End.BROKEN, last_error_line(result) if result is not None else ""
                return trial
            # A used session may have reached a limit meanwhile; try again with a new one.

    def _run_stdio(self, tests: Stdio, code: str, limits: Limits) -> ProgramVerdict:
        verdicts: list[CaseVerdict] = []
        files = {"main.py": code.encode("utf-8", "replace")}
        for given, expected in zip(tests.inputs, tests.outputs, strict=True):
            stdin = given.encode("utf-8", "replace")
            result = self.sandbox.run(SandboxCommand((*ISOLATED, "main.py"), files, stdin, limits))
            verdicts.append(_judge_output(result, expected, tests.any_case))
            if result.status.is_limit:
                # A program that exceeds a limit would do so for every input.
                verdicts += [verdicts[-1]] * (len(tests.inputs) - len(verdicts))
                break
        return ProgramVerdict(tuple(verdicts))


class _End(Enum):
    """How the tests of a program ended."""

    DONE = auto()
    FAULTY = auto()
    """The tests are wrong, regardless of what the program returns."""
    BROKEN = auto()
    """Their process sent an invalid message, or was killed."""
    LOST = auto()
    """Their process ended without a result."""


class _Trial:
    """Passes requests and answers between a program and its tests, and records the verdicts.

    At any time it reads from one side only. An unrequested message of the program is read as its next answer.

    Attributes:
        heard: the number of messages of the program that the tests received.
        why: the reason if the tests did not complete.
    """

    def __init__(self, program: ScriptSession, grader: ScriptSession, tests: Functions, limits: Limits) -> None:
        self.program, self.grader, self.tests, self.limits = program, grader, tests, limits
        self.verdicts: list[CaseVerdict] = []
        self.end, self.why, self.heard = _End.LOST, "", 0
        self._gone: CaseVerdict | None = None

    def run(self) -> None:
        """Run all tests."""
        for session in (self.program, self.grader):
            session.set_timeout(self.limits.wall_seconds + 2 * MARGIN)
        loaded = self._ask_program({"ask": {"what": "load", "name": "solution.py", "args": [], "kwargs": {}}})
        if loaded is None or "value" not in loaded:
            names, message = (loaded or {}).get("error"), (loaded or {}).get("message", "")
            name = names[0] if isinstance(names, list) and names else "Exception"
            self.verdicts.append(self._gone or _judge_error(_clean(f"{name}: {message}")))
            self.end = _End.DONE
            return
        wanted, seconds = self.tests.wanted, math.ceil(max(self.limits.cpu_seconds, MARGIN))
        job = {"tests": self.tests.code, "given": self.tests.given, "names": [wanted] if wanted else []}
        job["check"] = wanted if self.tests.takes_function else ""
        self.grader.send({**job, "seconds": seconds, "memory": _GRADER_LIMITS.memory})
        while self.end is _End.LOST:
            message = self.grader.receive()
            if message is None:
                if self.grader.too_long:
                    self.end, self.why = _End.FAULTY, "they pass a value to the program that is too large"
                return
            self._handle(message)

    def complete_verdicts(self) -> list[CaseVerdict]:
        """The verdicts; with a wrong answer in addition if all passed but some assertions did not run."""
        if self.verdicts and all(verdict.passed for verdict in self.verdicts):
            missing = count_assertions(self.tests) - len(self.verdicts)
            if missing > 0:
                return [*self.verdicts, CaseVerdict(CaseOutcome.WRONG_ANSWER, f"{missing} tests were not run")]
        return self.verdicts

    def _handle(self, message: Json) -> None:
        """Handle a message of the tests."""
        if "test" in message:
            self.verdicts.append(self._read_verdict(message["test"]))
        elif "done" in message:
            self.end = _End.DONE
        elif "broken" in message:
            self.end = _End.FAULTY if message.get("faulty") is True else _End.BROKEN
            self.why = _clean(message["broken"])
        elif request := _select_keys(message):
            answer = self._ask_program(request) if self._gone is None else None
            self.heard += 1
            self.grader.send({"gone": True} if answer is None else answer)
        else:
            self.end, self.why = _End.BROKEN, "they sent an invalid message"

    def _ask_program(self, message: Json) -> Json | None:
        """The program's reply to a message; None if it has ended or its reply is invalid."""
        self.program.send(message)
        reply = self.program.receive()
        if reply is not None and (answer := _select_keys(reply)):
            return answer
        if self.program.too_long:
            self._gone = CaseVerdict(CaseOutcome.OUTPUT, "the program returned a value that is too large")
        elif reply is not None or self.program.garbled:
            self._gone = CaseVerdict(CaseOutcome.RUNTIME_ERROR, "the program sent an invalid message")
        elif (result := self.program.wait_for(MARGIN)) is None:
            self._gone = CaseVerdict(CaseOutcome.RUNTIME_ERROR, "the program ended")
        else:
            self._gone = _judge_end(result)
        self.program.disconnect()
        return None

    def _read_verdict(self, report: object) -> CaseVerdict:
        """The verdict on one test. An invalid report is a wrong answer."""
        name, detail = (report.get("verdict"), _clean(report.get("detail"))) if isinstance(report, dict) else ("", "")
        if name == "gone" and self._gone is not None:
            return self._gone
        if name == "runtime_error":
            return _judge_error(detail)
        return CaseVerdict(CaseOutcome.PASSED if name == "passed" else CaseOutcome.WRONG_ANSWER, detail)


def count_assertions(tests: Functions) -> int:
    """The number of assertions that always run: those at the top level of the module and of `check`."""
    body = parse_program(tests.code).body if len(tests.code) <= 200_000 else []
    if tests.takes_function:
        checks = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"]
        body = body + (checks[-1].body if checks else [])
    return sum(isinstance(node, ast.Assert) for node in body)


def _judge_output(result: SandboxResult, expected: str, any_case: bool) -> CaseVerdict:
    if not result.ok:
        return _judge_end(result)
    if same_output(result.text, expected, any_case=any_case):
        return CaseVerdict(CaseOutcome.PASSED)
    return CaseVerdict(CaseOutcome.WRONG_ANSWER, first_difference(result.text, expected))


def _select_keys(message: Json) -> Json:
    """The request or answer in a message; empty if there is none."""
    return {key: message[key] for key in _MESSAGE_KEYS if key in message}


def _judge_end(result: SandboxResult) -> CaseVerdict:
    """The verdict on a program that ended too early."""
    if overrun := result.status.overrun:
        return CaseVerdict(CaseOutcome(overrun), result.status.value)
    return CaseVerdict(CaseOutcome.RUNTIME_ERROR, _clean(last_error_line(result)))


def _judge_error(detail: str) -> CaseVerdict:
    """The verdict on a program that raised an exception."""
    return CaseVerdict(CaseOutcome.MEMORY if detail.startswith("MemoryError") else CaseOutcome.RUNTIME_ERROR, detail)


def _clean(text: object) -> str:
    """A text from a sandbox, cleaned so that it can be stored."""
    return clean_text(text[:300]) if isinstance(text, str) else ""
