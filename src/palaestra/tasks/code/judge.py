"""Does a program do what was asked? It runs in one sandbox; what is expected of it never enters there.

A program that reads and prints is given one input at a time, and its output is compared here. For functions there
are two processes, each in a sandbox of its own: the program answers calls, one at a time, and the tests, which are
code too, run in the other, ask for calls and compare what came back. Between them go values and nothing else
(`inside/codec.py`). So a program can neither read its tests nor write its verdict.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause
from palaestra.sandbox.base import MIB, Limits, Result, Status, make_sandbox
from palaestra.sandbox.lines import Line
from palaestra.tasks.code.comparison import first_difference, same_output
from palaestra.tasks.code.formats import Functions, Stdio
from palaestra.tasks.code.verdicts import Judgement, Outcome, Verdict

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

OUTCOMES = {
    Status.WALL_TIME: Outcome.TIME, Status.CPU_TIME: Outcome.TIME, Status.MEMORY: Outcome.MEMORY,
    Status.OUTPUT: Outcome.OUTPUT,
}  # fmt: skip
LINE = 8 * MIB
"""Bytes of the largest value that a program may return."""
MARGIN = 5.0
"""Seconds that the tests may take beside the program's own time."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a program may use for one test, or, where tests call its functions, for all of them."""

    seconds: float = 10.0
    memory: int = 512 * MIB

    def of(self, seconds: float, memory: int, slack: float) -> Limits:
        """The limits for a problem that may have its own."""
        allowed = (seconds or self.seconds) * slack
        return Limits(
            wall_seconds=2 * allowed + 1, cpu_seconds=allowed, memory=max(memory or self.memory, 64 * MIB),
            processes=16, output=16 * MIB, disk=64 * MIB,
        )  # fmt: skip


class Judge:
    """Runs programs against their tests.

    Arguments:
        sandbox: where; by default bubblewrap, made when the first program comes.
        allowance: for problems that have no limits of their own.
        slack: by how much a problem's own time limit is stretched: those are for fast machines and compiled languages.
    """

    def __init__(self, sandbox: Sandbox | None = None, allowance: Allowance = Allowance(), slack: float = 2.0) -> None:
        self._sandbox, self.allowance, self.slack = sandbox, allowance, slack
        self._making = threading.Lock()

    @property
    def sandbox(self) -> Sandbox:
        with self._making:
            if self._sandbox is None:
                self._sandbox = make_sandbox()
        return self._sandbox

    def judge(self, tests: Stdio | Functions, code: str, seconds: float = 0.0, memory: int = 0) -> Judgement | Failure:
        """All tests of a program.

        Returns:
            A failure if the sandbox or the tests themselves broke: that says nothing about the program.
        """
        limits = self.allowance.of(seconds, memory, self.slack if seconds else 1.0)
        try:
            if isinstance(tests, Stdio):
                return self._stdio(tests, code, limits)
            return _Trial(self.sandbox, tests, code, limits).run()
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))

    def _stdio(self, tests: Stdio, code: str, limits: Limits) -> Judgement:
        verdicts: list[Verdict] = []
        for given, expected in zip(tests.inputs, tests.outputs, strict=True):
            result = self.sandbox.run(_python("main.py"), {"main.py": code}, given.encode(), limits)
            verdicts.append(_printed(result, expected))
            if result.status.is_limit:
                # What is over a limit once will be again, and each time costs all of it.
                verdicts += [verdicts[-1]] * (len(tests.inputs) - len(verdicts))
                break
        return Judgement(tuple(verdicts))


def _printed(result: Result, expected: str) -> Verdict:
    if result.status in OUTCOMES:
        return Verdict(OUTCOMES[result.status], result.status.value)
    if not result.ok:
        return Verdict(Outcome.RUNTIME_ERROR, _last_words(result))
    if same_output(result.text, expected):
        return Verdict(Outcome.PASSED)
    return Verdict(Outcome.WRONG_ANSWER, first_difference(result.text, expected))


def _last_words(result: Result) -> str:
    lines = [line for line in result.error_text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else f"{result.status.value}, exit code {result.exit_code}")[:300]


class _Trial:
    """A program under tests that call its functions: two processes, and the lines between them."""

    def __init__(self, sandbox: Sandbox, tests: Functions, code: str, limits: Limits) -> None:
        self.sandbox, self.tests, self.code, self.limits = sandbox, tests, code, limits
        self.verdicts: list[Verdict] = []
        self.ended: dict[str, Result | Exception] = {}

    def run(self) -> Judgement | Failure:
        program, tests = Line(LINE), Line(LINE)
        calm = replace(self.limits, wall_seconds=self.limits.wall_seconds + MARGIN)
        workers = [
            self._start("program", program, "program.py", {"solution.py": self.code}, self.limits),
            self._start("tests", tests, "grader.py", {}, calm),
        ]
        try:
            done = self._converse(program, tests, calm.wall_seconds + MARGIN)
        finally:
            program.close()
            tests.close()
            for worker in workers:
                worker.join()
        for error in self.ended.values():
            if isinstance(error, Exception):
                raise error
        if not done or not self.verdicts:
            return Failure(FailureCause.SCORER, f"the tests broke: {self._why()}")
        return Judgement(tuple(self.verdicts))

    def _start(self, name: str, line: Line, script: str, files: dict[str, str], limits: Limits) -> threading.Thread:
        def work() -> None:
            try:
                self.ended[name] = self.sandbox.run(
                    _python(script), {**_inside(script), **files}, stdin=line.theirs, limits=limits
                )
            except Exception as error:  # It is raised again where somebody waits for it.
                self.ended[name] = error
            finally:
                line.theirs.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def _converse(self, program: Line, tests: Line, patience: float) -> bool:
        """Carry requests and answers to and fro; returns whether the tests came to their end."""
        program.settle(patience)
        tests.settle(patience)
        program.send({"load": "solution.py"})
        loaded = program.receive()
        if loaded is None or "error" in loaded:
            self.verdicts.append(self._gone() if loaded is None else _raised(loaded))
            return True
        wanted = self.tests.wanted
        check = wanted if self.tests.takes_function else ""
        tests.send({"tests": self.tests.code, "check": check, "names": [wanted] if wanted else []})
        alive = True
        while (message := tests.receive()) is not None:
            if "test" in message:
                self.verdicts.append(_verdict(message["test"]))
            elif "ask" in message:
                answer = None
                if alive:
                    program.send(message["ask"])
                    answer = program.receive()
                if answer is None:
                    alive = False
                    answer = {"gone": self._gone().outcome.value}
                tests.send(answer)
            elif "done" in message:
                return True
        return False

    def _gone(self) -> Verdict:
        """Why the program gives no more answers."""
        result = self._wait_for("program")
        if isinstance(result, Result):
            if result.status in OUTCOMES:
                return Verdict(OUTCOMES[result.status], result.status.value)
            return Verdict(Outcome.RUNTIME_ERROR, _last_words(result))
        return Verdict(Outcome.RUNTIME_ERROR, "the program ended")

    def _wait_for(self, name: str) -> Result | Exception | None:
        import time

        until = time.monotonic() + self.limits.wall_seconds + MARGIN
        while name not in self.ended and time.monotonic() < until:
            time.sleep(0.002)
        return self.ended.get(name)

    def _why(self) -> str:
        result = self.ended.get("tests")
        return _last_words(result) if isinstance(result, Result) else "they gave no verdict"


def _raised(answer: dict[str, Any]) -> Verdict:
    outcome = Outcome.MEMORY if answer.get("error") == "MemoryError" else Outcome.RUNTIME_ERROR
    return Verdict(outcome, f"{answer.get('error')}: {answer.get('message', '')}"[:300])


def _verdict(told: dict[str, Any]) -> Verdict:
    detail, outcome = str(told.get("detail", ""))[:300], Outcome(told["verdict"])
    return Verdict(Outcome.MEMORY if detail.startswith("MemoryError") else outcome, detail)


def _python(script: str) -> Sequence[str]:
    """Python without the packages and the settings of anybody: that starts in half the time."""
    return ("python3", "-I", "-S", "-B", script)


@cache
def _inside(script: str) -> dict[str, str]:
    """What a sandbox is given beside the program or the tests: how to speak, and nothing of the problem."""
    folder = package_files("palaestra.tasks.code") / "inside"
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("codec.py", script)}
