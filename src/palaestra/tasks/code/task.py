"""`code-skills`: a procedural family of functions and programs. The published sets are in `published`."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import ClassVar

from palaestra.core.records import Example, Message, Problem, Split
from palaestra.tasks.base import get_split
from palaestra.tasks.code.base import CodeTask
from palaestra.tasks.code.drafts import ask_draft, make_tests
from palaestra.tasks.code.family import FAMILY, CodeDraft
from palaestra.tasks.code.formats import CodeProblem
from palaestra.tasks.code.published import MBPP, CodeContests, HumanEval, LiveCodeBench
from palaestra.tasks.code.writing import Form
from palaestra.tasks.procedural import Family, ProceduralTask

__all__ = ["MBPP", "CodeContests", "CodeSkills", "CodeTask", "HumanEval", "LiveCodeBench"]


class CodeSkills(CodeTask, ProceduralTask[CodeDraft]):
    """Programs put together from parts: thousands of problems, each with a solution and tests.

    Example:
        >>> task = CodeSkills()  # doctest: +SKIP
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["lists"])[0]  # doctest: +SKIP
    """

    name = "code-skills"
    max_tokens = 256
    forms: ClassVar[dict[str, Form]] = {
        skill: Form.PROGRAM if skill == "programs" else Form.FUNCTION for skill in FAMILY
    }

    def family(self) -> Family[CodeDraft]:
        return FAMILY

    def get_split(self, skill: str, draft: CodeDraft) -> Split:
        return get_split(f"{skill}|{draft.key}")

    def key(self, draft: CodeDraft) -> Hashable:
        return draft.key

    def problem(self, skill: str, subskill: str, draft: CodeDraft) -> Problem:
        digest = hashlib.blake2b(f"{draft.key}|{draft.name}|{draft.inputs}".encode(), digest_size=6).hexdigest()
        return Problem(
            id=f"{skill}/{subskill}/{digest}",
            messages=(Message("user", ask_draft(draft)),),
            reference=draft.solution,
            skill=skill,
            subskill=subskill,
            metadata={"solution": draft.solution, "name": draft.name, "inputs": list(draft.inputs)},
        )

    def example(self, skill: str, subskill: str, draft: CodeDraft) -> Example:
        question = Message("user", ask_draft(draft))
        return Example((question,), f"```python\n{draft.solution}```", skill, subskill)

    def _find(self, problem: Problem) -> CodeProblem:
        metadata = problem.metadata
        tests = make_tests(metadata["solution"], metadata["name"], metadata["inputs"])
        return CodeProblem(problem.id, "", tests, solution=metadata["solution"])
