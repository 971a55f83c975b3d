r"""Published problems with worked solutions: GSM8K (Cobbe et al., 2021) and MATH (Hendrycks et al., 2021).

- TEST is the published test split. VALIDATION is a part of the published train split, selected by a hash of the
  question, so it is the same everywhere and does not overlap TRAIN. A question that is in both published splits is only
  in TEST.
- All models get the same instruction, `INSTRUCTION`.
- GSM8K has no skills of its own. Its slices follow from the published solutions: the skill is the number of steps, the
  subskill the operations of the calculator annotations (`<<16-3=13>>`). In MATH they are the type and the level.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TaskHooks, check_skills, take
from palaestra.tasks.content import read_brief
from palaestra.tasks.math.base import MathDatum, plain
from palaestra.tasks.math.equivalence.compare import NO_NUMBER, TIMEOUT, AnswerVerdict, compare_answers, compare_numbers
from palaestra.tasks.math.equivalence.sympy_process import get_client
from palaestra.tasks.math.extraction import ExtractedAnswer, extract_worked, find_boxed, numbers_in
from palaestra.tasks.math.solving import solve_question
from palaestra.tasks.sources import Row, Source, get_text, read_rows

INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
_VALIDATION_SHARE = 15
"""Percentage of the published train problems that are validation problems."""

_ASKS_PERCENT = re.compile(r"\b(?:percent|percentage|per cent|%)", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:\\?%|\bpercent(?:age)?\b|\bper cent\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _WorkedProblem:
    """One published problem."""

    question: str
    worked: str
    """The worked solution, which ends with the answer in a box."""
    answer: str
    skill: str
    subskill: str

    @property
    def digest(self) -> str:
        return hashlib.blake2b(" ".join(self.question.split()).encode(), digest_size=8).hexdigest()


class WorkedTask(TaskHooks, ABC):
    """A task of published problems with worked solutions.

    Arguments:
        path: a folder or a hub id; empty for the folder below `PALAESTRA_DATA`, else the hub (see `sources`).

    The data is read on first use and kept in memory.
    """

    name: str
    source: Source
    datum = MathDatum
    kinds: Sequence[str]
    """The skills."""
    parts: tuple[str, ...]
    """The subskills of every skill."""
    slice: str
    """The metadata key of the subskill, for slices of the report across the skills."""

    def __init__(self, path: str = "") -> None:
        self.path = str(path)
        self._items: dict[Split, list[_WorkedProblem]] | None = None

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return dict.fromkeys(self.kinds, self.parts)

    @abstractmethod
    def _item(self, row: Row, where: str) -> _WorkedProblem:
        """The problem of a row; raises `TaskError` with a message that starts with `where`."""

    @abstractmethod
    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        """Whether an answer equals a reference."""

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` problems of each skill, with its subskills in turn."""
        check_skills(self, skills)
        problems = []
        for skill in skills or self.kinds:
            seeds = Seeds(seed).derive(self.name, split, skill)
            chosen = list(_in_turn(self._select(split, skill), self.parts, seeds))
            problems += [self._problem(item) for item in take(chosen, per_skill, self, split, skill)]
        return problems

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        extracted = extract_worked(completion.text)
        verdict = self._verdict(extracted, problem)
        if isinstance(verdict, Failure):
            return verdict
        evidence = {
            "extracted": extracted.text if extracted else "",
            "expected": problem.reference,
            "found": extracted.evidence.value if extracted else "no answer",
            "compared": verdict.method,
        }
        if verdict.note:
            evidence["note"] = verdict.note
        return Score(float(verdict.equal), evidence)

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """`count` worked solutions of TRAIN with the prompts of an evaluation. They repeat once all are used."""
        check_skills(self, [skill], subskill)
        names = (subskill,) if subskill else self.parts
        items = [item for item in self._select(Split.TRAIN, skill) if item.subskill in names]
        if not items:
            raise TaskError(f"{self.name} has no train problems of {f'{skill} {subskill}'.strip()} to teach from")
        examples: list[Example] = []
        while len(examples) < count:
            seeds = Seeds(int(generator.integers(1 << 62)))
            examples += [_example(item) for item in _in_turn(items, names, seeds)]
        return examples[:count]

    def brief(self) -> str:
        return read_brief("math-worked")

    def make_example(self, datum: MathDatum, skill: str, subskill: str) -> Example:
        answer = plain(datum.answer)
        worked = f"{datum.reasoning.strip()}\nThe answer is \\boxed{{{answer}}}."
        return _example(_WorkedProblem(datum.question, worked, answer, skill, subskill))

    def solve(self, example: Example) -> str | None:
        """The answer to a plain calculation. Word problems have no solver."""
        solution = solve_question(example.messages[-1].text.removesuffix(INSTRUCTION))
        return None if solution is None else solution.answer

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """Worked problems of all skills in turn, independent of `skill`, so that they do not reveal the difficulty of a question."""
        train = sorted(self._load()[Split.TRAIN], key=lambda item: item.digest)
        return [_example(item) for item in list(_in_turn(train, self.kinds, None, by_skill=True))[:count]]

    def _verdict(self, extracted: ExtractedAnswer | None, problem: Problem) -> AnswerVerdict | Failure:
        given, expected = extracted.text if extracted else None, problem.reference
        verdict = self._compare(given, expected)
        if given is None or isinstance(verdict, Failure) or verdict.equal:
            return verdict
        # 10 % is 0.1. But for "what percentage ...?" 10 and 10 % are equal, because the sign is the requested unit.
        asked = problem.metadata.get("question", "")
        one_sign = bool(_PERCENT.search(given)) != bool(_PERCENT.search(expected))
        if one_sign and _ASKS_PERCENT.search(_asking(asked)):
            again = self._compare(_PERCENT.sub("", given), _PERCENT.sub("", expected))
            if isinstance(again, AnswerVerdict) and again.equal:
                return AnswerVerdict(True, again.method, "the question asks for a percentage")
        return verdict

    def _problem(self, item: _WorkedProblem) -> Problem:
        return Problem(
            id=f"{self.name}/{item.skill}/{item.subskill}/{item.digest}",
            messages=_messages(item),
            reference=item.answer,
            skill=item.skill,
            subskill=item.subskill,
            metadata={"worked": item.worked, "question": item.question, self.slice: item.subskill},
        )

    def _select(self, split: Split, skill: str) -> list[_WorkedProblem]:
        return [item for item in self._load()[split] if item.skill == skill]

    def _load(self) -> dict[Split, list[_WorkedProblem]]:
        if self._items is None:
            items: dict[Split, list[_WorkedProblem]] = {split: [] for split in Split}
            seen: set[str] = set()
            for published in ("test", "train"):
                for where, row in read_rows(self.source, self.path, published):
                    item = self._item(row, where)
                    if item.digest in seen:
                        continue
                    seen.add(item.digest)
                    held_out = int(item.digest, 16) % 100 < _VALIDATION_SHARE
                    train = Split.VALIDATION if held_out else Split.TRAIN
                    items[Split.TEST if published == "test" else train].append(item)
            self._items = items
        return self._items


def _messages(item: _WorkedProblem) -> tuple[Message, ...]:
    return (Message("user", f"{item.question.strip()}\n\n{INSTRUCTION}"),)


def _example(item: _WorkedProblem) -> Example:
    return Example(_messages(item), item.worked, item.skill, item.subskill, item.answer)


def _asking(question: str) -> str:
    """The question of a problem: its text from the last sentence with a question mark on, else its last sentence."""
    sentences = re.split(r"(?<=[.?!])\s+", question.strip())
    last = max((index for index, sentence in enumerate(sentences) if "?" in sentence), default=len(sentences) - 1)
    return " ".join(sentences[last:])


def _in_turn(
    items: Sequence[_WorkedProblem], names: Sequence[str], seeds: Seeds | None, *, by_skill: bool = False
) -> Iterator[_WorkedProblem]:
    """`items` with the subskills (or skills) in turn, shuffled within each if `seeds` are given."""
    queues = []
    for name in names:
        own = [item for item in items if (item.skill if by_skill else item.subskill) == name]
        order = seeds.derive(name).generator().permutation(len(own)) if seeds else range(len(own))
        queues.append([own[int(index)] for index in order])
    for turn in range(max(map(len, queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))


STEPS = ("two_steps", "three_steps", "four_steps", "five_steps", "more_steps")
OPERATIONS = ("additive", "multiplicative", "mixed")

_CALCULATION = re.compile(r"<<([^<>]*)>>")
_PROSE = re.compile(r"(?<!\\)[A-Za-z]{3,}")


class GSM8K(WorkedTask):
    r"""Grade-school mathematics by hub id or path; needs no extra to score.

    Example:
        >>> task = GSM8K(path="data/gsm8k")                              # doctest: +SKIP
        >>> problem = task.problems(Split.TEST, per_skill=10, seed=0)[0] # doctest: +SKIP
    """

    name = "gsm8k"
    source = Source("gsm8k", "openai/gsm8k", "main")
    kinds, parts, slice = STEPS, OPERATIONS, "type"

    def _item(self, row: Row, where: str) -> _WorkedProblem:
        question, answer = get_text(row, "question", where), get_text(row, "answer", where)
        solution, mark, final = answer.rpartition("####")
        if not mark or not final.strip():
            raise TaskError(f"{where}: expected an answer that ends with '#### NUMBER'; got ...{answer[-40:]!r}")
        lines = [line for line in solution.strip().splitlines() if line.strip()]
        reference = final.strip()
        worked = f"{_CALCULATION.sub('', solution).strip()}\nThe answer is \\boxed{{{reference}}}."
        return _WorkedProblem(question, worked, reference, STEPS[min(max(len(lines), 2), 6) - 2], _operations(solution))

    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        verdict = compare_numbers(answer, reference)
        if answer and verdict == NO_NUMBER and _PROSE.search(answer) and len(numbers := numbers_in(answer)) == 1:
            return compare_numbers(numbers[0], reference)  # A sentence in the box, with one number in it.
        return verdict


def _operations(solution: str) -> str:
    calculations = _CALCULATION.findall(solution) or re.findall(r"[^=\n]*=", solution)
    formulas = " ".join(calculation.rpartition("=")[0] or calculation for calculation in calculations)
    sums, products = bool(re.search(r"[\d)]\s*[-+]", formulas)), bool(re.search(r"[*/x×÷%]", formulas))
    return "mixed" if sums == products else "additive" if sums else "multiplicative"


TYPES = {
    name: name.lower().replace("&", "and").replace(" ", "_")
    for name in ("Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra", "Precalculus")
}  # fmt: skip
LEVELS = ("level_1", "level_2", "level_3", "level_4", "level_5")


class MATH(WorkedTask):
    """Competition mathematics by hub id or path; the skill is the type, the subskill the level.

    A few published problems have no level; they are left out. Problems of a type are drawn from its levels in
    turn, so a subset is balanced as far as the dataset is.

    Arguments:
        limit: time limit of a comparison in seconds.
    """

    name = "math"
    source = Source("math", "DigitalLearningGmbH/MATH-lighteval")
    max_tokens = 1024
    kinds, parts, slice = tuple(TYPES.values()), LEVELS, "level"

    def __init__(self, path: str = "", limit: float = TIMEOUT) -> None:
        super().__init__(path)
        if not isinstance(limit, int | float) or limit <= 0:
            raise SettingsError(f"option 'limit' of {self.name}: expected a number of seconds above 0; got {limit!r}")
        self.limit = float(limit)

    def _load(self) -> dict[Split, list[_WorkedProblem]]:
        if self._items is None:
            get_client().server.start()  # It takes a second or two, while the data and the model are loaded.
        return super()._load()

    def _item(self, row: Row, where: str) -> _WorkedProblem:
        kind, level = get_text(row, "type", where), get_text(row, "level", where)
        if kind not in TYPES and kind not in TYPES.values():
            raise TaskError(f"{where}: expected 'type' to be one of {', '.join(TYPES)}; got {kind!r}")
        problem, solution = get_text(row, "problem", where), get_text(row, "solution", where)
        box = find_boxed(solution)
        if box is None:
            raise TaskError(f"{where}: expected a solution with its answer in \\boxed{{}}; got ...{solution[-40:]!r}")
        digits = re.sub(r"\D", "", level)
        subskill = f"level_{digits}" if digits else ""
        return _WorkedProblem(problem, solution.strip(), box.text, TYPES.get(kind, kind), subskill)

    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        return compare_answers(answer, reference, limit=self.limit)
