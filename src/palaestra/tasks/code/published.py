"""HumanEval, MBPP, CodeContests and LiveCodeBench, by hub id or path.

**Parts.** Published splits are kept. Data sets without them get train and validation parts (`parts="auto"`): LiveCodeBench
by date; HumanEval, and CodeContests with only its test file, by the hash of the problem's id (see
`palaestra.tasks.sources`). With `parts="published"` all these problems are test.

**Memory.** The data is scanned on first use. Questions and solutions are kept in memory. Tests, which may take gigabytes,
are read again from the file when an answer is scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Example, Message, Problem, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import check_choice, check_skills, get_split, part_by_date, part_by_hash, take
from palaestra.tasks.code.family import FAMILY, ask_as_method, ask_draft
from palaestra.tasks.code.formats import FORMATS, CodeProblem, Functions, Row, Stdio, contest_day, live_code_bench
from palaestra.tasks.code.task import ASKED, CodeTask
from palaestra.tasks.code.writing import Datum, Form, begin_function, make_example, read_datum
from palaestra.tasks.sources import Source, Table, has_split, locate_dataset, open_table

_STUB = "Complete this Python function. Answer with the whole function in a fenced code block.\n\n```python\n{begun}```"
_RECENT = 16
"""Number of problems whose tests are cached: several answers to one problem are often scored in a row."""


@dataclass(frozen=True, slots=True)
class _ProblemEntry:
    """A problem without its tests, and the location of its row."""

    problem: CodeProblem
    table: Table
    key: int


class PublishedCode(CodeTask):
    """Problems of a published data set.

    Arguments:
        path: a folder or a hub id; empty for the folder below `PALAESTRA_DATA`, else the hub.
        parts: `auto`, or `published`; see above.
    """

    source: ClassVar[Source]
    slices: ClassVar[Mapping[str, tuple[str, ...]]] = {"functions": ()}
    forms: ClassVar[dict[str, Form]] = {"functions": Form.FUNCTION}

    def __init__(self, path: str = "", sandbox: str = "bubblewrap", seconds: float = 10.0, parts: str = "auto") -> None:
        super().__init__(sandbox, seconds)
        check_choice(self.name, "parts", parts, ("auto", "published"))
        self.path, self.parts = str(path), parts
        self._tables: dict[str, dict[str, _ProblemEntry]] = {}
        self._recent = lru_cache(_RECENT)(self._read_problem)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return self.slices

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        asked = [entry.problem for entry in self._load(split).values() if self._is_asked(entry.problem)]
        problems = []
        for skill in skills or self.skills():
            own = [problem for problem in asked if problem.skill == skill]
            order = Seeds(seed).derive(self.name, split, skill).generator().permutation(len(own))
            problems += [self._problem(own[place]) for place in take(order.tolist(), per_skill, self, split, skill)]
        return problems

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """The first problems of the train part that have a solution. LiveCodeBench has none.

        A file that is not loaded is only read as far as necessary.
        """
        files = (self._tables.get(name, {}).values() or self._entries(name) for name in self._names(Split.TRAIN))
        train = (entry.problem for file in files for entry in file if entry.problem.split is Split.TRAIN)
        worked = islice((problem for problem in train if problem.solution and problem.skill == skill), count)
        return [
            Example(self._problem(p).messages, f"```python\n{p.solution.strip()}\n```", skill, p.subskill)
            for p in worked
        ]

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """Problems of `code-skills` of the same form: programs, functions or methods.

        They are generated without a language model and do not depend on `subskill`, which is only recorded.
        """
        check_skills(self, [skill], subskill)
        form = self.forms[skill]
        names = [name for name in FAMILY if (name == "programs") is (form is Form.PROGRAM)]
        drawers = [(name, draw) for name in names for draw in FAMILY[name].values()]
        examples: list[Example] = []
        while len(examples) < count:
            name, draw = drawers[len(examples) % len(drawers)]
            draft = draw(generator)
            if get_split(f"{name}|{draft.key}") is not Split.TRAIN:
                continue
            question, solution = ask_draft(draft), draft.solution
            if form is Form.METHOD:
                asked, solution = ask_as_method(draft)
                question = ASKED.format(question=asked)
            examples.append(Example((Message("user", question),), f"```python\n{solution}```", skill, subskill))
        return examples

    def read_all(self) -> Iterator[CodeProblem]:
        """Every problem with its tests, one at a time."""
        for name in self._names():
            for entry in self._index(name).values():
                yield self._complete(entry)

    def _is_asked(self, problem: CodeProblem) -> bool:
        """Whether the task includes a problem of the data set."""
        return True

    def _files_and_parts(self) -> Mapping[str, Split | None]:
        """The files (or splits on the hub) and their parts; `None` if the part depends on the problem."""
        return {"test": Split.TEST if self.parts == "published" else None}

    def _part(self, problem: CodeProblem, row: Row) -> Split:
        """The part of a problem in a file without a fixed part."""
        return part_by_hash(problem.id)

    def _describe(self, row: Row, split: Split) -> CodeProblem:
        """A problem without the data that only scoring needs."""
        return FORMATS[self.name](row, split)

    def _complete(self, entry: _ProblemEntry) -> CodeProblem:
        """A problem with its tests."""
        with _name_row(self.name, entry.problem.id):
            problem = FORMATS[self.name](entry.table.read(entry.key), entry.problem.split)
        return replace(problem, skill=entry.problem.skill, split=entry.problem.split)

    def _find(self, problem: Problem) -> CodeProblem:
        return self._recent(problem.id)

    def _read_problem(self, identity: str) -> CodeProblem:
        # Loaded files first: the others may be large.
        for name in sorted(self._names(), key=lambda name: name not in self._tables):
            if entry := self._index(name).get(identity):
                return self._complete(entry)
        expected = "expected the data set with which the problems were drawn"
        raise TaskError(f"{self.name} has no problem {identity}; {expected}")

    def _problem(self, problem: CodeProblem) -> Problem:
        asked = _STUB.format(begun=problem.begun) if problem.begun else ASKED.format(question=problem.question)
        cuts = {name: value for name, value in (("level", problem.subskill), ("type", problem.origin)) if value}
        return Problem(problem.id, (Message("user", asked),), problem.solution, problem.skill, problem.subskill, cuts)

    def _names(self, split: Split | None = None) -> list[str]:
        return [name for name, part in self._files_and_parts().items() if split is None or part in (None, split)]

    def _load(self, split: Split) -> dict[str, _ProblemEntry]:
        """The problems of a part by their ids."""
        indexes = [self._index(name) for name in self._names(split)]
        return {key: entry for index in indexes for key, entry in index.items() if entry.problem.split is split}

    def _index(self, name: str) -> dict[str, _ProblemEntry]:
        if name not in self._tables:
            self._tables[name] = {entry.problem.id: entry for entry in self._entries(name)}
        return self._tables[name]

    def _entries(self, name: str) -> Iterator[_ProblemEntry]:
        part, table = self._files_and_parts()[name], open_table(self.source, self.path, name)
        for key, where, row in table.scan():
            with _name_row(self.name, where):
                problem = self._describe(row, part or Split.TEST)
                problem = replace(problem, split=part or self._part(problem, row), tests=_without_cases(problem))
            yield _ProblemEntry(problem, table, key)


class HumanEval(PublishedCode):
    """OpenAI's 164 functions to complete: 35 train, 31 validation, 98 test; with `parts="published"` all are test."""

    name = "humaneval"
    source = Source("humaneval", "openai/openai_humaneval")

    def make_example(self, datum: Datum, skill: str, subskill: str) -> Example:
        _, solution, tree = read_datum(datum, tuple(self.forms.values()))
        begun = begin_function(tree, list(map(str, datum.tests)), datum.statement.strip())
        return make_example(_STUB.format(begun=begun), solution, datum, skill, subskill)


class MBPP(PublishedCode):
    """Google's short functions; the sanitised 427 unless `whole`. The number of a problem determines its published part."""

    name = "mbpp"
    source = Source("mbpp", "google-research-datasets/mbpp", "sanitized")

    def __init__(self, path: str = "", sandbox: str = "bubblewrap", seconds: float = 10.0, whole: bool = False) -> None:
        super().__init__(path, sandbox, seconds)
        self.whole = whole
        if whole:
            self.source = Source("mbpp", self.source.hub, "full")  # type: ignore[misc]

    def _files_and_parts(self) -> Mapping[str, Split | None]:
        if isinstance(locate_dataset(self.source, self.path), Path):
            return {"mbpp" if self.whole else "sanitized": None}
        return {"train+validation+test+prompt": None}

    def _part(self, problem: CodeProblem, row: Row) -> Split:
        return problem.split


class CodeContests(PublishedCode):
    """DeepMind's competition problems: programs that read and print.

    A folder may contain the published parts (`train`, `valid`, `test`). If it contains only the test part, that is divided.

    Arguments:
        undecided: also ask the problems that the stored outputs cannot judge: those that admit several answers, whose own
            example differs from the stored output, or that are interactive. See `why_undecided`.
    """

    name = "code-contests"
    max_tokens = 2048
    source = Source("code_contests_test", "deepmind/code_contests")
    slices: ClassVar[Mapping[str, tuple[str, ...]]] = {"competition": ()}
    forms: ClassVar[dict[str, Form]] = {"competition": Form.PROGRAM}

    def __init__(
        self,
        path: str = "",
        sandbox: str = "bubblewrap",
        seconds: float = 10.0,
        undecided: bool = False,
        parts: str = "auto",
    ) -> None:
        super().__init__(path, sandbox, seconds, parts)
        self.undecided = undecided

    def _is_asked(self, problem: CodeProblem) -> bool:
        return self.undecided or not problem.undecided

    def _files_and_parts(self) -> Mapping[str, Split | None]:
        own = {"test": Split.TEST, "valid": Split.VALIDATION, "validation": Split.VALIDATION, "train": Split.TRAIN}
        place = locate_dataset(self.source, self.path)
        if isinstance(place, str):
            return {name: own[name] for name in ("test", "valid", "train")}
        parts: dict[str, Split | None] = {name: part for name, part in own.items() if has_split(place, name)}
        if list(parts) in (["test"], []):
            return {"test": Split.TEST if self.parts == "published" else None}
        return parts


class LiveCodeBench(PublishedCode):
    """Competition problems with their publication dates: programs, and methods of a class.

    A folder contains any number of release files as published: `test.jsonl`, `test2.jsonl` and so on.

    Arguments:
        validation_from, test_from: the days on which the validation and the test part start; earlier problems are train. A problem
            without a date is assigned by the hash of its id.
    """

    name = "livecodebench"
    max_tokens = 2048
    source = Source("livecodebench", "livecodebench/code_generation_lite")
    slices: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("programs", "methods"), ("easy", "medium", "hard"))
    forms: ClassVar[dict[str, Form]] = {"programs": Form.PROGRAM, "methods": Form.METHOD}

    def __init__(
        self,
        path: str = "",
        sandbox: str = "bubblewrap",
        seconds: float = 10.0,
        parts: str = "auto",
        validation_from: str = "2023-09-01",
        test_from: str = "2024-01-01",
    ) -> None:
        super().__init__(path, sandbox, seconds, parts)
        self.validation_from = self._day("validation_from", validation_from)
        self.test_from = self._day("test_from", test_from)
        if self.validation_from > self.test_from:
            expected = f"expected a day not after test_from ({test_from}); got {validation_from}"
            raise SettingsError(f"option 'validation_from' of {self.name}: {expected}")

    def _day(self, option: str, given: object) -> date:
        try:
            return date.fromisoformat(str(given))
        except ValueError:
            expected = f"expected a day such as 2024-01-01; got {given!r}"
            raise SettingsError(f"option '{option}' of {self.name}: {expected}") from None

    def _files_and_parts(self) -> Mapping[str, Split | None]:
        place, names = locate_dataset(self.source, self.path), ["test"]
        if isinstance(place, Path):
            later = {int(match[1]) for file in place.iterdir() if (match := re.match(r"test(\d+)\.", file.name))}
            names = [*(["test"] if has_split(place, "test") or not later else []), *(f"test{k}" for k in sorted(later))]
        return dict.fromkeys(names, Split.TEST if self.parts == "published" else None)

    def _part(self, problem: CodeProblem, row: Row) -> Split:
        day = contest_day(row)
        return part_by_hash(problem.id) if day is None else part_by_date(day, self.validation_from, self.test_from)

    def _describe(self, row: Row, split: Split) -> CodeProblem:
        problem = live_code_bench(row, split, hidden=False)
        return replace(problem, skill="programs" if isinstance(problem.tests, Stdio) else "methods")


@contextmanager
def _name_row(dataset: str, where: str) -> Iterator[None]:
    """Convert errors of a row to a `TaskError` that names it."""
    try:
        yield
    except (TaskError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = str(error) if isinstance(error, TaskError) else f"not a valid row of {dataset}: {error!r}"
        raise TaskError(f"{where}: {why}") from None


def _without_cases(problem: CodeProblem) -> Stdio | Functions:
    """The tests of a problem without their content, but with the name that the program must define."""
    return Stdio((), ()) if isinstance(problem.tests, Stdio) else Functions("", problem.tests.wanted)
