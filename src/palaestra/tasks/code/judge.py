"""Does a program do what was asked? It runs in one sandbox; what is expected of it never enters there.

A program that reads and prints is given one input at a time, and its output is compared here. For functions there
are two processes, each in a sandbox of its own: the program answers calls, one at a time, and the tests, which are
code too, run in the other, ask for calls and compare what came back. Between them go values and nothing else
(`inside/codec.py`). So a program can neither read its tests nor write its verdict.
"""

from __future__ import annotations

import py_compile
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError
from palaestra.core.records import Failure, FailureCause
from palaestra.sandbox.base import MIB, Limits, Result, Status, make_sandbox
from palaestra.sandbox.conversation import Conversation, Pool, last_words, python
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
GRADER = Limits(wall_seconds=180.0, cpu_seconds=60.0, memory=512 * MIB, processes=16, output=64 * MIB, disk=64 * MIB)
"""Of tests that serve many programs: all of its time together, and the memory of one."""


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
        trusted: the tests are not written by a model. Then the sandbox that they run in serves many programs, one after
            the other; else each has its own, as every program has in any case.
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
        self._graders = Pool(lambda: self._talk("grader", GRADER))

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
            return self._functions(tests, code, limits)
        except SandboxError as error:
            return Failure(FailureCause.SANDBOX, str(error))

    def _functions(self, tests: Functions, code: str, limits: Limits) -> Judgement | Failure:
        calm = replace(limits, wall_seconds=limits.wall_seconds + MARGIN)
        while True:
            program = self._talk("program", limits, {"solution.py": code})
            grader, fresh = self._graders.take() if self.trusted else (self._talk("grader", calm), True)
            trial, done = _Trial(program, grader, tests, limits), False
            try:
                done = trial.run()
            finally:
                program.hang_up()
                if done and self.trusted:
                    self._graders.give(grader)
                else:
                    grader.hang_up()
                program.wait()
            if done and trial.verdicts:
                return Judgement(tuple(trial.verdicts))
            if fresh or done:
                result = None if done else grader.ended(MARGIN)
                why = last_words(result) if result is not None else "they gave no verdict"
                return Failure(FailureCause.SCORER, f"the tests broke: {why}")
            # One that served others before may have come to its end meanwhile.

    def _talk(self, script: str, limits: Limits, files: Mapping[str, str] = {}) -> Conversation:
        own, name = _scripts(script, self.sandbox)
        return Conversation(self.sandbox, {**own, **files}, name, limits, _line)

    def _stdio(self, tests: Stdio, code: str, limits: Limits) -> Judgement:
        verdicts: list[Verdict] = []
        for given, expected in zip(tests.inputs, tests.outputs, strict=True):
            result = self.sandbox.run(python("main.py"), {"main.py": code}, given.encode(), limits)
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
        return Verdict(Outcome.RUNTIME_ERROR, last_words(result))
    if same_output(result.text, expected):
        return Verdict(Outcome.PASSED)
    return Verdict(Outcome.WRONG_ANSWER, first_difference(result.text, expected))


class _Trial:
    """A program under tests that call its functions: two conversations, and what goes between them."""

    def __init__(self, program: Conversation, grader: Conversation, tests: Functions, limits: Limits) -> None:
        self.program, self.grader, self.tests, self.limits = program, grader, tests, limits
        self.verdicts: list[Verdict] = []

    def run(self) -> bool:
        """Carry requests and answers to and fro; returns whether the tests came to their end."""
        patience = self.limits.wall_seconds + 2 * MARGIN
        self.program.line.settle(patience)
        self.grader.line.settle(patience)
        self.program.send({"load": "solution.py"})
        loaded = self.program.receive()
        if loaded is None or "error" in loaded:
            self.verdicts.append(self._gone() if loaded is None else _raised(loaded))
            return True
        wanted = self.tests.wanted
        check = wanted if self.tests.takes_function else ""
        self.grader.send({"tests": self.tests.code, "check": check, "names": [wanted] if wanted else []})
        alive = True
        while (message := self.grader.receive()) is not None:
            if "test" in message:
                self.verdicts.append(_verdict(message["test"]))
            elif "ask" in message:
                answer = None
                if alive:
                    self.program.send(message["ask"])
                    answer = self.program.receive()
                if answer is None:
                    alive = False
                    answer = {"gone": self._gone().outcome.value}
                self.grader.send(answer)
            elif "done" in message:
                return True
            elif "broken" in message:
                return False
        return False

    def _gone(self) -> Verdict:
        """Why the program gives no more answers."""
        result = self.program.ended(self.limits.wall_seconds + MARGIN)
        if result is None:
            return Verdict(Outcome.RUNTIME_ERROR, "the program ended")
        if result.status in OUTCOMES:
            return Verdict(OUTCOMES[result.status], result.status.value)
        return Verdict(Outcome.RUNTIME_ERROR, last_words(result))


def _raised(answer: dict[str, Any]) -> Verdict:
    outcome = Outcome.MEMORY if answer.get("error") == "MemoryError" else Outcome.RUNTIME_ERROR
    return Verdict(outcome, f"{answer.get('error')}: {answer.get('message', '')}"[:300])


def _verdict(told: dict[str, Any]) -> Verdict:
    detail, outcome = str(told.get("detail", ""))[:300], Outcome(told["verdict"])
    return Verdict(Outcome.MEMORY if detail.startswith("MemoryError") else outcome, detail)


def _line() -> Line:
    return Line(LINE)


def _scripts(name: str, sandbox: Sandbox) -> tuple[dict[str, bytes | str], str]:
    """What a sandbox is given beside the program or the tests, nothing of the problem, and which of it runs."""
    # Compiled where it is our own Python that runs there: compiling takes as long as starting.
    kind = "pyc" if sandbox.name == "bubblewrap" else "py"
    return dict(_inside(name, kind)), f"{name}.{kind}"


@cache
def _inside(script: str, kind: str) -> dict[str, bytes | str]:
    folder = package_files("palaestra.tasks.code") / "inside"
    found: dict[str, bytes | str] = {}
    for name in ("codec", script):
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        found[f"{name}.{kind}"] = _compiled(source, f"{name}.py") if kind == "pyc" else source
    return found


def _compiled(source: str, name: str) -> bytes:
    """A module as Python would keep it in its cache."""
    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder) / name, Path(folder) / f"{name}c"
        plain.write_text(source, encoding="utf-8")
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(plain), str(made), dfile=name, doraise=True, invalidation_mode=unchecked)
        return made.read_bytes()
