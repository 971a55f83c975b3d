"""The base class of programming tasks.

A response is scored by running its program (see `judge`). The score is 1 if the program passes all tests, else 0; the
evidence contains the number of passed tests. An error of the sandbox is a failure, not a score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel

from palaestra.core.errors import SettingsError
from palaestra.core.records import Completion, Example, Failure, Problem, Score
from palaestra.tasks.base import TaskHooks
from palaestra.tasks.code.extraction import extract_code
from palaestra.tasks.code.formats import CodeProblem, Stdio
from palaestra.tasks.code.judge import Allowance, ProgramJudge
from palaestra.tasks.code.verdicts import CaseOutcome, CaseVerdict, ProgramVerdict
from palaestra.tasks.code.writing import Form, brief_for, datum_for, datum_to_example

ASKED = "{question}\n\nAnswer with Python code in a fenced code block."


class CodeTask(TaskHooks, ABC):
    """The base class of programming tasks.

    Arguments:
        sandbox: the name of the sandbox; see `palaestra.sandbox`.
        seconds: CPU time of a test (of all tests if they call functions) for problems without their own limit.
    """

    name: str
    forms: ClassVar[dict[str, Form]] = {}
    """The form of the problems of each skill. The writer is told; its data may have any of these forms."""
    concurrent_scoring = True

    def __init__(self, sandbox: str = "bubblewrap", seconds: float = 10.0) -> None:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
            raise SettingsError(f"option 'seconds' of {self.name}: expected a number above 0; got {seconds!r}")
        from palaestra.sandbox.base import SANDBOXES, make_sandbox

        SANDBOXES.check(sandbox)
        self._judge = ProgramJudge(
            None if sandbox == "bubblewrap" else make_sandbox(sandbox), Allowance(float(seconds)), trusted=True
        )

    @abstractmethod
    def _find(self, problem: Problem) -> CodeProblem:
        """The problem with its tests."""

    def check_scoring(self) -> None:
        """Start the sandbox; raises `SandboxError` if it is not available."""
        _ = self._judge.sandbox

    @property
    def datum(self) -> type[BaseModel]:
        """The schema of a datum."""
        return datum_for(self.forms)

    def brief(self) -> str:
        return brief_for(self.forms)

    def make_example(self, datum: Any, skill: str, subskill: str) -> Example:
        """The training example of a datum.

        Raises:
            UnusableError: its program is no Python, its tests are of the wrong form, or they could not tell a wrong program.
        """
        return datum_to_example(datum, ASKED, skill, subskill, tuple(dict.fromkeys(self.forms.values())))

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Run the program in a response against all tests of its problem."""
        code_problem = self._find(problem)
        extracted = extract_code(completion.text, code_problem.wanted, code_problem.begun)
        if not extracted.code:
            missing = f"no program that defines {code_problem.wanted}" if code_problem.wanted else "no program"
            judgement: ProgramVerdict | Failure = ProgramVerdict((CaseVerdict(CaseOutcome.NO_CODE, missing),))
        else:
            judgement = self._judge.judge(
                code_problem.tests,
                extracted.code,
                code_problem.seconds,
                code_problem.memory,
                reference=code_problem.solution,
            )
        if isinstance(judgement, Failure):
            return judgement
        tests = len(code_problem.tests.inputs) if isinstance(code_problem.tests, Stdio) else len(judgement.verdicts)
        evidence = {
            "outcome": judgement.outcome.value,
            "passed": f"{sum(v.passed for v in judgement.verdicts)} of {tests}",
            "detail": judgement.detail,
            "found": extracted.how,
        }
        return Score(float(judgement.passed), evidence)
