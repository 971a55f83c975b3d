r"""The base class of GSM8K and MATH: published problems with worked solutions.

- TEST is the published test split. VALIDATION is a part of the published train split, selected by a hash of the
  question, so it is the same everywhere and does not overlap TRAIN. A question that is in both published splits is only
  in TEST.
- All models get the same instruction, `INSTRUCTION`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.core.errors import TaskError, UnknownNameError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TaskHooks, check_skills, take
from palaestra.tasks.math.equivalence.compare import AnswerVerdict
from palaestra.tasks.math.extraction import ExtractedAnswer, extract
from palaestra.tasks.math.writing import WORKED_BRIEF, MathDatum, plain
from palaestra.tasks.sources import Source, read_rows

INSTRUCTION = "Reason step by step, and put your final answer within \\boxed{}."
VALIDATION_SHARE = 15
"""Percentage of the published train problems that are validation problems."""

_ASKS_PERCENT = re.compile(r"\b(?:percent|percentage|per cent|%)", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:\\?%|\bpercent(?:age)?\b|\bper cent\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WorkedProblem:
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

    def __init__(self, path: str = "") -> None:
        self.path = str(path)
        self._items: dict[Split, list[WorkedProblem]] | None = None

    @abstractmethod
    def skills(self) -> Mapping[str, tuple[str, ...]]: ...

    @abstractmethod
    def _item(self, row: Mapping[str, Any], where: str) -> WorkedProblem:
        """The problem of a row; raises `TaskError` with a message that starts with `where`."""

    def _cuts(self, item: WorkedProblem) -> Mapping[str, str]:
        """Metadata for slices of the report, across the skills."""
        return {}

    @abstractmethod
    def _compare(self, answer: str | None, reference: str) -> AnswerVerdict | Failure:
        """Whether an answer equals a reference."""

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """`per_skill` problems of each skill, with its subskills in turn."""
        check_skills(self, skills)
        problems = []
        for skill in skills or self.skills():
            chosen = list(
                _in_turn(self._select(split, skill), self.skills()[skill], Seeds(seed).derive(self.name, split, skill))
            )
            problems += [self._problem(item) for item in take(chosen, per_skill, self, split, skill)]
        return problems

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        extracted = extract(completion.text)
        verdict = self._verdict(extracted, problem)
        if isinstance(verdict, Failure):
            return verdict
        evidence = {
            "extracted": extracted.text if extracted else "",
            "expected": problem.reference,
            "found": extracted.evidence.value if extracted else "no answer",
            "compared": verdict.method,
        }
        return Score(float(verdict.equal), evidence | ({"note": verdict.note} if verdict.note else {}))

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """`count` worked solutions of TRAIN with the prompts of an evaluation. They repeat once all are used."""
        check_skills(self, [skill])
        if subskill and subskill not in self.skills()[skill]:
            raise UnknownNameError(f"subskill of {skill}", subskill, self.skills()[skill])
        names = (subskill,) if subskill else self.skills()[skill]
        items = [item for item in self._select(Split.TRAIN, skill) if item.subskill in names]
        if not items:
            raise TaskError(
                f"{self.name} has no train problems of {skill}{f' / {subskill}' if subskill else ''} to teach from"
            )
        examples: list[Example] = []
        while len(examples) < count:
            for item in _in_turn(items, names, Seeds(int(generator.integers(1 << 62)))):
                examples.append(_example(item))
                if len(examples) == count:
                    break
        return examples

    def brief(self) -> str:
        return WORKED_BRIEF

    def make_example(self, datum: MathDatum, skill: str, subskill: str) -> Example:
        answer = plain(datum.answer)
        worked = f"{datum.reasoning.strip()}\nThe answer is \\boxed{{{answer}}}."
        return _example(WorkedProblem(datum.question, worked, answer, skill, subskill))

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """Worked problems of all skills in turn, whatever the skill, so that they do not reveal the difficulty of a question."""
        train = sorted(self._load()[Split.TRAIN], key=lambda item: item.digest)
        return [_example(item) for item in list(_in_turn(train, tuple(self.skills()), None, by_skill=True))[:count]]

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

    def _problem(self, item: WorkedProblem) -> Problem:
        return Problem(
            id=f"{self.name}/{item.skill}/{item.subskill}/{item.digest}",
            messages=_messages(item),
            reference=item.answer,
            skill=item.skill,
            subskill=item.subskill,
            metadata={"worked": item.worked, "question": item.question} | dict(self._cuts(item)),
        )

    def _select(self, split: Split, skill: str) -> list[WorkedProblem]:
        return [item for item in self._load()[split] if item.skill == skill]

    def _load(self) -> dict[Split, list[WorkedProblem]]:
        if self._items is None:
            self._items = {}
            seen: set[str] = set()
            test = self._unseen("test", seen)
            train = self._unseen("train", seen)
            held = [int(item.digest, 16) % 100 < VALIDATION_SHARE for item in train]
            self._items = {
                Split.TEST: test,
                Split.VALIDATION: [item for item, out in zip(train, held, strict=True) if out],
                Split.TRAIN: [item for item, out in zip(train, held, strict=True) if not out],
            }
        return self._items

    def _unseen(self, published: str, seen: set[str]) -> list[WorkedProblem]:
        items = []
        for where, row in read_rows(self.source, self.path, published):
            item = self._item(row, where)
            if item.digest not in seen:
                seen.add(item.digest)
                items.append(item)
        return items


def text_field(row: Mapping[str, Any], name: str, where: str) -> str:
    """The text in field `name` of a row."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where}: expected a text in the field '{name}'; got {value!r:.60}")
    return value


def _messages(item: WorkedProblem) -> tuple[Message, ...]:
    return (Message("user", f"{item.question.strip()}\n\n{INSTRUCTION}"),)


def _example(item: WorkedProblem) -> Example:
    return Example(_messages(item), item.worked, item.skill, item.subskill, item.answer)


def _asking(question: str) -> str:
    """The question of a problem: its text from the last sentence with a question mark on, else its last sentence."""
    sentences = re.split(r"(?<=[.?!])\s+", question.strip())
    last = max((index for index, sentence in enumerate(sentences) if "?" in sentence), default=len(sentences) - 1)
    return " ".join(sentences[last:])


def _in_turn(
    items: Sequence[WorkedProblem], names: Sequence[str], seeds: Seeds | None, *, by_skill: bool = False
) -> Iterator[WorkedProblem]:
    """`items` with the subskills (or skills) in turn, shuffled within each if `seeds` are given."""
    queues = []
    for name in names:
        own = [item for item in items if (item.skill if by_skill else item.subskill) == name]
        order = seeds.derive(name).generator().permutation(len(own)) if seeds else range(len(own))
        queues.append([own[int(index)] for index in order])
    for turn in range(max(map(len, queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))
