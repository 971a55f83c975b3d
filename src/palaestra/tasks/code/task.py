"""Programming as tasks: a procedural family, and HumanEval, MBPP, CodeContests and LiveCodeBench by hub id or path.

A response is scored by running the program in it; see `judge`. The score is 1 for a program that passes all of its
tests, else 0; how many passed is in the evidence. A sandbox that broke is a failure and no score.
"""

from __future__ import annotations

import builtins
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import check_skills, split_of, take
from palaestra.tasks.code.extraction import extract_code
from palaestra.tasks.code.family import FAMILY, CodeDraft
from palaestra.tasks.code.formats import FORMATS, CodeProblem, Functions, Stdio
from palaestra.tasks.code.judge import Allowance, Judge
from palaestra.tasks.code.verdicts import Judgement, Outcome, Verdict
from palaestra.tasks.code.writing import BRIEF, CodeDatum, example_of
from palaestra.tasks.procedural import Family, ProceduralTask
from palaestra.tasks.sources import Source, locate, read_rows

FUNCTION = "Write a Python function `{name}` that {what}. Answer with the function in a fenced code block."
PROGRAM = "Write a Python program that {what}. Answer with the program in a fenced code block."
BEGUN = "Complete this Python function. Answer with the whole function in a fenced code block.\n\n```python\n{begun}```"
ASKED = "{question}\n\nAnswer with Python code in a fenced code block."


class CodeTask(ABC):
    """What all programming tasks share: how a response is judged.

    Arguments:
        sandbox: the name of the sandbox; see `palaestra.sandbox`.
        seconds: CPU time of a test (of all tests, where they call functions) for problems without a limit of their own.
    """

    name: str
    datum = CodeDatum
    concurrent_scoring = True

    def __init__(self, sandbox: str = "bubblewrap", seconds: float = 10.0) -> None:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or seconds <= 0:
            raise SettingsError(f"option 'seconds' of {self.name}: expected a number above 0; got {seconds!r}")
        from palaestra.sandbox.base import SANDBOXES, make_sandbox

        SANDBOXES.check(sandbox)
        self._judge = Judge(
            None if sandbox == "bubblewrap" else make_sandbox(sandbox), Allowance(float(seconds)), trusted=True
        )

    @abstractmethod
    def _find(self, problem: Problem) -> CodeProblem:
        """The problem with its tests."""

    def check_scoring(self) -> None:
        """Start the sandbox; raises `SandboxError` if there is none here."""
        _ = self._judge.sandbox

    def brief(self) -> str:
        return BRIEF

    def example_of(self, datum: CodeDatum, skill: str, subskill: str) -> Example:
        return example_of(datum, ASKED, skill, subskill)

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        """Run the program in a response against all tests of its problem."""
        found = self._find(problem)
        extracted = extract_code(completion.text, found.wanted, found.begun)
        if not extracted.code:
            missing = f"no program that defines {found.wanted}" if found.wanted else "no program"
            judgement: Judgement | Failure = Judgement((Verdict(Outcome.NO_CODE, missing),))
        else:
            judgement = self._judge.judge(
                found.tests, extracted.code, found.seconds, found.memory, reference=found.solution
            )
        if isinstance(judgement, Failure):
            return judgement
        tests = len(found.tests.inputs) if isinstance(found.tests, Stdio) else len(judgement.verdicts)
        evidence = {
            "outcome": judgement.outcome.value,
            "passed": f"{sum(v.passed for v in judgement.verdicts)} of {tests}",
            "detail": judgement.detail,
            "found": extracted.how,
        }
        return Score(float(judgement.passed), evidence)


class CodeSkills(CodeTask, ProceduralTask[CodeDraft]):
    """Programs put together from parts: thousands of problems, each with a solution and tests.

    Example:
        >>> task = CodeSkills()  # doctest: +SKIP
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["lists"])[0]  # doctest: +SKIP
    """

    name = "code-skills"
    max_tokens = 256

    def family(self) -> Family[CodeDraft]:
        return FAMILY

    def split_of(self, skill: str, draft: CodeDraft) -> Split:
        return split_of(f"{skill}|{draft.key}")

    def key(self, draft: CodeDraft) -> Hashable:
        return draft.key

    def problem(self, skill: str, subskill: str, draft: CodeDraft) -> Problem:
        digest = hashlib.blake2b(f"{draft.key}|{draft.name}|{draft.inputs}".encode(), digest_size=6).hexdigest()
        return Problem(
            id=f"{skill}/{subskill}/{digest}",
            messages=(Message("user", _question(draft)),),
            reference=draft.solution,
            skill=skill,
            subskill=subskill,
            metadata={"solution": draft.solution, "name": draft.name, "inputs": list(draft.inputs)},
        )

    def example(self, skill: str, subskill: str, draft: CodeDraft) -> Example:
        question = Message("user", _question(draft))
        return Example((question,), f"```python\n{draft.solution}```", skill, subskill)

    def _find(self, problem: Problem) -> CodeProblem:
        made = problem.metadata
        tests = _tests(made["solution"], made["name"], made["inputs"])
        return CodeProblem(problem.id, "", tests, solution=made["solution"])


class PublishedCode(CodeTask):
    """Problems of a published data set.

    Arguments:
        path: a folder or a hub id; empty for the folder below `PALAESTRA_DATA`, else the hub.

    The data is read when the first problem is asked for, and kept.
    """

    source: ClassVar[Source]
    published: ClassVar[tuple[str, ...]] = ("test",)
    on_hub: ClassVar[tuple[str, ...]] = ()
    """Its splits on the hub, where they are other than in a folder."""
    slices: ClassVar[Mapping[str, tuple[str, ...]]] = {"functions": ()}

    def __init__(self, path: str = "", sandbox: str = "bubblewrap", seconds: float = 10.0) -> None:
        super().__init__(sandbox, seconds)
        self.path = str(path)
        self._known: dict[str, CodeProblem] | None = None

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return self.slices

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        found = []
        for skill in skills or self.skills():
            own = [p for p in self._load().values() if p.split is split and p.skill == skill and self._is_asked(p)]
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(own))
            found += [self._problem(own[place]) for place in take(order.tolist(), per_skill, self, split, skill)]
        return found

    def shown(self, skill: str, count: int) -> list[Example]:
        """The first problems of the train split that come with a solution; most of these sets have none."""
        train = [p for p in self._load().values() if p.split is Split.TRAIN and p.solution]
        return [
            Example(self._problem(one).messages, f"```python\n{one.solution.strip()}\n```", one.skill, one.subskill)
            for one in train[:count]
        ]

    def _is_asked(self, problem: CodeProblem) -> bool:
        """Whether a problem of the set is among those of the task."""
        return True

    def _find(self, problem: Problem) -> CodeProblem:
        known = self._load()
        if problem.id not in known:
            raise TaskError(f"{self.name} has no problem {problem.id}; is it the same data?")
        return known[problem.id]

    def _problem(self, one: CodeProblem) -> Problem:
        asked = BEGUN.format(begun=one.begun) if one.begun else ASKED.format(question=one.question)
        level = {"level": one.subskill} if one.subskill else {}
        return Problem(one.id, (Message("user", asked),), one.solution, one.skill, one.subskill, level)

    def _load(self) -> dict[str, CodeProblem]:
        if self._known is None:
            read = FORMATS[self.name]
            known: dict[str, CodeProblem] = {}
            in_folder = isinstance(locate(self.source, self.path), Path)
            for published in self.published if in_folder or not self.on_hub else self.on_hub:
                for where, row in read_rows(self.source, self.path, published):
                    try:
                        problem = read(row, Split.TEST)
                    except TaskError as error:
                        raise TaskError(f"{where}: {error}") from None
                    known[problem.id] = problem
            self._known = known
        return self._known


class HumanEval(PublishedCode):
    """OpenAI's 164 functions to complete."""

    name = "humaneval"
    source = Source("humaneval", "openai/openai_humaneval")


class MBPP(PublishedCode):
    """Google's short functions; the sanitised 427 unless `whole`."""

    name = "mbpp"
    source = Source("mbpp", "google-research-datasets/mbpp", "sanitized")
    published = ("sanitized",)
    on_hub = ("train+validation+test+prompt",)  # the number of a problem tells its split

    def __init__(self, path: str = "", sandbox: str = "bubblewrap", seconds: float = 10.0, whole: bool = False) -> None:
        super().__init__(path, sandbox, seconds)
        if whole:
            self.published, self.source = ("mbpp",), Source("mbpp", self.source.hub, "full")  # type: ignore[misc]


class CodeContests(PublishedCode):
    """DeepMind's competition problems: programs that read and print.

    Arguments:
        undecided: also ask the problems that its stored outputs cannot decide: those that admit several answers, whose own
            example is not the stored output, or that are interactive. See `ambiguity`.
    """

    name = "code-contests"
    max_tokens = 2048
    source = Source("code_contests_test", "deepmind/code_contests")
    slices: ClassVar[Mapping[str, tuple[str, ...]]] = {"competition": ()}

    def __init__(
        self, path: str = "", sandbox: str = "bubblewrap", seconds: float = 10.0, undecided: bool = False
    ) -> None:
        super().__init__(path, sandbox, seconds)
        self.undecided = undecided

    def _is_asked(self, problem: CodeProblem) -> bool:
        return self.undecided or not problem.undecided


class LiveCodeBench(PublishedCode):
    """Competition problems with the date they were published on, programs and methods."""

    name = "livecodebench"
    max_tokens = 2048
    source = Source("livecodebench", "livecodebench/code_generation_lite")
    slices = dict.fromkeys(("leetcode", "codeforces", "atcoder"), ("easy", "medium", "hard"))


def _question(draft: CodeDraft) -> str:
    if not draft.name:
        return PROGRAM.format(what=draft.question)
    arguments = draft.solution[draft.solution.index("(") + 1 : draft.solution.index(")")]
    return FUNCTION.format(name=f"{draft.name}({arguments})", what=draft.question)


def _tests(solution: str, name: str, inputs: Sequence[Any]) -> Stdio | Functions:
    """Inputs with what our own solution makes of them."""
    if not name:
        return Stdio(tuple(inputs), tuple(_run(solution, text) for text in inputs))
    scope: dict[str, Any] = {}
    exec(solution, scope)
    lines = [f"assert {name}({', '.join(map(repr, given))}) == {scope[name](*given)!r}" for given in inputs]
    return Functions("\n".join(lines), name)


def _run(program: str, given: str) -> str:
    """What a program of ours prints. It is given an input and an output of its own; the process keeps its own."""
    printed: list[str] = []
    lines = iter(given.splitlines())
    system = SimpleNamespace(stdin=given.splitlines(keepends=True))
    own = {
        "input": lambda: next(lines),
        "print": lambda *words: printed.append(" ".join(map(str, words)) + "\n"),
        "__import__": lambda name, *rest: system if name == "sys" else builtins.__import__(name, *rest),
    }
    exec(program, {"__name__": "__main__", "__builtins__": {**vars(builtins), **own}})
    return "".join(printed)
