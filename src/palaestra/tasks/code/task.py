"""Programming tasks: their base class, and `code-skills`, whose problems are generated. `published` has the data sets.

A response is scored by running its program (see `judge`). The score is 1 if the program passes all tests, else 0; the
evidence contains the number of passed tests. An error of the sandbox is a failure, not a score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar

from pydantic import BaseModel

from palaestra.core.errors import SettingsError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.settings import check_number
from palaestra.tasks.base import TaskHooks, get_split
from palaestra.tasks.code.extraction import extract_code
from palaestra.tasks.code.family import FAMILY, CodeDraft, ask_draft, make_tests
from palaestra.tasks.code.formats import CodeProblem, Stdio
from palaestra.tasks.code.judge import CaseOutcome, CaseVerdict, ProgramJudge, ProgramVerdict
from palaestra.tasks.code.writing import Datum, Form, brief_for, datum_for, datum_to_example
from palaestra.tasks.procedural import Family, ProceduralTask, make_problem

ASKED = "{question}\n\nAnswer with Python code in a fenced code block."


class CodeTask(TaskHooks, ABC):
    """The base class of programming tasks.

    Arguments:
        sandbox: the name of the sandbox; see `palaestra.sandbox`.
        seconds: CPU time of a test (of all tests if they call functions) for problems without their own limit.
    """

    name: str
    forms: ClassVar[dict[str, Form]] = {}
    """The form of the problems of each skill. The data of a writer may have any of these forms."""
    concurrent_scoring = True
    student = "nano-coder"

    def __init__(self, sandbox: str = "bubblewrap", seconds: float = 10.0) -> None:
        check_number(f"option 'seconds' of {self.name}", seconds, 0.01, error=SettingsError)
        from palaestra.sandbox.base import SANDBOXES, make_sandbox

        SANDBOXES.check(sandbox)
        self._judge = ProgramJudge(None if sandbox == "bubblewrap" else make_sandbox(sandbox), seconds, trusted=True)

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

    def make_example(self, datum: Datum, skill: str, subskill: str) -> Example:
        """The training example of a datum.

        Raises:
            UnusableError: its program is not valid Python, its tests are of the wrong form, or they cannot fail.
        """
        return datum_to_example(datum, ASKED, skill, subskill, tuple(dict.fromkeys(self.forms.values())))

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Run the program in a response against all tests of its problem."""
        code_problem = self._find(problem)
        extracted = extract_code(completion.text, code_problem.wanted, code_problem.begun)
        tests = code_problem.tests
        if not extracted.code:
            missing = f"no program that defines {code_problem.wanted}" if code_problem.wanted else "no program"
            verdict: ProgramVerdict | Failure = ProgramVerdict((CaseVerdict(CaseOutcome.NO_CODE, missing),))
        else:
            verdict = self._judge.judge(
                tests, extracted.code, code_problem.seconds, code_problem.memory, code_problem.solution
            )
        if isinstance(verdict, Failure):
            return verdict
        return verdict.score(len(tests.inputs) if isinstance(tests, Stdio) else 0, found=extracted.how)


class CodeSkills(CodeTask, ProceduralTask[CodeDraft]):
    """Programs composed of parts: thousands of problems, each with a solution and tests.

    Example:
        >>> task = CodeSkills()  # doctest: +SKIP
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["lists"])[0]  # doctest: +SKIP
    """

    name = "code-skills"
    max_tokens = 256
    family: Family[CodeDraft] = FAMILY
    forms: ClassVar[dict[str, Form]] = {
        skill: Form.PROGRAM if skill == "programs" else Form.FUNCTION for skill in FAMILY
    }

    def get_split(self, skill: str, draft: CodeDraft) -> Split:
        return get_split(f"{skill}|{draft.key}")

    def key(self, draft: CodeDraft) -> Hashable:
        return draft.key

    def problem(self, skill: str, subskill: str, draft: CodeDraft) -> Problem:
        identity = f"{draft.key}|{draft.name}|{draft.inputs}"
        metadata = {"solution": draft.solution, "name": draft.name, "inputs": list(draft.inputs)}
        return make_problem(skill, subskill, identity, Message("user", ask_draft(draft)), draft.solution, metadata)

    def example(self, skill: str, subskill: str, draft: CodeDraft) -> Example:
        question = Message("user", ask_draft(draft))
        return Example((question,), f"```python\n{draft.solution}```", skill, subskill)

    def _find(self, problem: Problem) -> CodeProblem:
        metadata = problem.metadata
        tests = make_tests(metadata["solution"], metadata["name"], metadata["inputs"])
        return CodeProblem(problem.id, "", tests, solution=metadata["solution"])
