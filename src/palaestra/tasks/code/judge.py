"""Judge programs by their tests. The program runs in a sandbox that never contains its tests.

A program that reads and prints gets one input at a time, and its output is compared here. For functions there are two
processes, each in its own sandbox. One contains the program and answers calls. The other contains the tests, which are
code too; it requests calls and compares the results. They exchange values and references to objects
(`inside/codec.py`, `inside/peer.py`), and every message is validated here (`messages`). So a program can neither read
its tests nor forge its verdict.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause
from palaestra.sandbox.base import MIB, Limits, SandboxResult, make_sandbox
from palaestra.sandbox.rpc import ISOLATED, Script, SessionPool, last_error_line
from palaestra.tasks.code.comparison import first_difference, same_output
from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.code.trial import MARGIN, OUTCOMES, End, Trial
from palaestra.tasks.code.verdicts import CaseOutcome, CaseVerdict, ProgramVerdict

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

MAX_BYTES = 8 * MIB
"""Largest value that a program may return."""
MAX_COMMAS = 4_000_000
PROGRAM = Script("palaestra.tasks.code.inside", ("codec", "peer", "program"), MAX_BYTES, MAX_COMMAS)
GRADER = Script("palaestra.tasks.code.inside", ("codec", "peer", "grader"), MAX_BYTES, MAX_COMMAS)
GRADER_LIMITS = Limits(
    wall_seconds=180.0, cpu_seconds=60.0, memory=512 * MIB, processes=16, output=64 * MIB, disk=64 * MIB
)
"""Limits of a grader that serves many programs: the time of all of them, and the memory of one."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Default limits of a program: for each test, or for all tests together if they call its functions."""

    seconds: float = 10.0
    memory: int = 512 * MIB

    def make_limits(self, seconds: float, memory: int, slack: float) -> Limits:
        """The limits for a problem, which may define its own."""
        allowed = (seconds or self.seconds) * slack
        return Limits(
            wall_seconds=2 * allowed + 1, cpu_seconds=allowed, memory=max(memory or self.memory, 64 * MIB),
            processes=16, output=16 * MIB, disk=64 * MIB,
        )  # fmt: skip


class ProgramJudge:
    """Runs programs against their tests.

    Arguments:
        sandbox: where programs run; by default bubblewrap, started on first use.
        allowance: limits for problems without their own.
        slack: factor for a problem's own time limit, which assumes fast machines and compiled languages.
        trusted: the tests are not written by a model. Then one sandbox for tests serves many programs, one after the
            other. Otherwise each run of tests has its own. Every program has its own sandbox in any case.
    """

    def __init__(
        self,
        sandbox: Sandbox | None = None,
        allowance: Allowance = Allowance(),
        slack: float = 2.0,
        *,
        trusted: bool = False,
    ) -> None:
        self._sandbox, self.allowance, self.slack, self.trusted = sandbox, allowance, slack, trusted
        self._making = threading.Lock()
        self._graders = SessionPool(lambda: GRADER.start(self.sandbox, GRADER_LIMITS))

    @property
    def sandbox(self) -> Sandbox:
        with self._making:
            if self._sandbox is None:
                self._sandbox = make_sandbox()
        return self._sandbox

    def judge(
        self, tests: Stdio | Functions, code: str, seconds: float = 0.0, memory: int = 0, reference: str = ""
    ) -> ProgramVerdict | Failure:
        """Run all tests of a program.

        Arguments:
            reference: a correct program, if known. If the tests fail with an error, they are run on it to see whether the
                program is at fault.

        Returns:
            A failure if the sandbox or the tests themselves failed, which says nothing about the program.
        """
        limits = self.allowance.make_limits(seconds, memory, self.slack if seconds else 1.0)
        try:
            if isinstance(tests, Stdio):
                return self._stdio(tests, code, limits)
            return self._functions(tests, code, limits, reference)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))

    def _functions(self, tests: Functions, code: str, limits: Limits, reference: str) -> ProgramVerdict | Failure:
        trial = self._try(tests, code, limits)
        if trial.end is End.DONE and (verdicts := trial.complete_verdicts()):
            return ProgramVerdict(tuple(verdicts))
        why = f"the tests broke: {trial.why or 'they gave no verdict'}"[:500]
        if trial.heard and trial.end is not End.DONE and self._is_to_blame(trial, reference):
            return ProgramVerdict((*trial.verdicts, CaseVerdict(CaseOutcome.WRONG_ANSWER, why)))
        return Failure(FailureCause.SCORER, why)

    def _is_to_blame(self, trial: Trial, reference: str) -> bool:
        """Whether the program made the tests end early: with the reference they complete."""
        if not reference:
            return trial.end is End.BROKEN
        again = self._try(trial.tests, reference, trial.limits)
        return again.end is End.DONE and ProgramVerdict(tuple(again.complete_verdicts())).passed

    def _try(self, tests: Functions, code: str, limits: Limits) -> Trial:
        calm = replace(limits, wall_seconds=limits.wall_seconds + MARGIN)
        while True:
            program = PROGRAM.start(self.sandbox, limits, {"solution.py": code.encode("utf-8", "replace")})
            if self.trusted:
                grader, fresh = self._graders.acquire()
            else:
                grader, fresh = GRADER.start(self.sandbox, calm), True
            trial = Trial(program, grader, tests, limits)
            try:
                trial.run()
            finally:
                program.channel.close()
                if trial.end is End.DONE and self.trusted:
                    self._graders.release(grader)
                else:
                    grader.channel.close()
                program.wait()
            if trial.end is not End.LOST:
                return trial
            if fresh:
                result = grader.wait_for(MARGIN)
                trial.end, trial.why = (
                    End.BROKEN,
                    last_error_line(result) if result is not None else "they gave no verdict",
                )
                return trial
            # A used session may have reached a limit meanwhile; try again with a new one.

    def _stdio(self, tests: Stdio, code: str, limits: Limits) -> ProgramVerdict:
        verdicts: list[CaseVerdict] = []
        for given, expected in zip(tests.inputs, tests.outputs, strict=True):
            result = self.sandbox.run(
                (*ISOLATED, "main.py"),
                {"main.py": code.encode("utf-8", "replace")},
                given.encode("utf-8", "replace"),
                limits,
            )
            verdicts.append(_judge_output(result, expected, tests.any_case))
            if result.status.is_limit:
                # A program that exceeds a limit would do so for every input.
                verdicts += [verdicts[-1]] * (len(tests.inputs) - len(verdicts))
                break
        return ProgramVerdict(tuple(verdicts))


def _judge_output(result: SandboxResult, expected: str, any_case: bool) -> CaseVerdict:
    if result.status in OUTCOMES:
        return CaseVerdict(OUTCOMES[result.status], result.status.value)
    if not result.ok:
        return CaseVerdict(CaseOutcome.RUNTIME_ERROR, last_error_line(result))
    if same_output(result.text, expected, any_case=any_case):
        return CaseVerdict(CaseOutcome.PASSED)
    return CaseVerdict(CaseOutcome.WRONG_ANSWER, first_difference(result.text, expected))
