"""The base class of procedural tasks, which generate their problems.

A family has skills with subskills. Each subskill is a function from a random generator to a draft. A draft belongs to
one fixed split; drafts are drawn until one belongs to the requested split. So the same arguments give the same problems,
and the splits do not overlap for any seed. The number of problems of a skill is finite: from dozens to thousands.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from palaestra.core.errors import TaskError, TooFewProblemsError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import TaskHooks, check_skills

D = TypeVar("D")
Family = Mapping[str, Mapping[str, Callable[[np.random.Generator], D]]]
"""Skill -> subskill -> function that draws a draft."""
MAX_DRAWS_PER_PROBLEM = 500
"""Draws without a new problem of the split after which a subskill counts as exhausted."""
MAX_DRAWS_PER_FOUND = 60
"""The same for each problem drawn so far: the last of many problems takes many draws."""


def between(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return int(rng.integers(low, high + 1))


def pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def phrase(rng: np.random.Generator, wordings: Sequence[str], **values: object) -> str:
    """One of the wordings with the values inserted."""
    return pick(rng, wordings).format(**values)


def format_response(steps: Iterable[str], answer: str) -> str:
    """The reasoning and the answer, as a student should write them.

    >>> format_response(["3+4=7", "7+1=8."], "8")
    '3+4=7. 7+1=8. Answer: 8'
    """
    return "".join(f"{step.strip().removesuffix('.')}. " for step in steps) + f"Answer: {answer}"


def make_problem(
    skill: str, subskill: str, identity: str, question: Message, reference: str, metadata: Mapping[str, Any]
) -> Problem:
    """A problem whose id is the hash of an identity."""
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    return Problem(f"{skill}/{subskill}/{digest}", (question,), reference, skill, subskill, metadata)


class ProceduralTask(TaskHooks, ABC, Generic[D]):
    """A task whose problems and examples are generated. Subclasses define the drafts."""

    name: str
    is_procedural = True
    family: Family[D]
    """The functions that draw drafts, by skill and subskill."""

    @abstractmethod
    def get_split(self, skill: str, draft: D) -> Split | None:
        """The split of a draft; None to exclude it, because another split has a draft that is too similar."""

    @abstractmethod
    def key(self, draft: D) -> Hashable:
        """The identity of a problem. No two drawn problems have the same key."""

    def content(self, draft: D) -> Hashable:
        """The identity of a problem under any wording. Problems with the same content count as one in an interval."""
        return self.key(draft)

    @abstractmethod
    def problem(self, skill: str, subskill: str, draft: D) -> Problem:
        """The problem of a draft."""

    @abstractmethod
    def example(self, skill: str, subskill: str, draft: D) -> Example:
        """The training example of a draft."""

    @abstractmethod
    def score(self, problem: Problem, completion: Completion) -> Score | Failure: ...

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(parts) for name, parts in self.family.items()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        if per_skill < 1:
            raise TaskError(f"{self.name} generates its problems; expected at least 1 per skill; got {per_skill}")
        drafted: list[tuple[str, str, D]] = []
        for name in skills or self.family:
            drafts = self._distinct(name, split, Seeds(seed).derive(self.name, split, name).generator())
            for drawn in range(per_skill):
                try:
                    subskill, draft = next(drafts)
                except StopIteration:
                    raise TooFewProblemsError(
                        f"skill '{name}' of {self.name} has fewer than {per_skill} {split} problems: it has {drawn}, with "
                        "its subskills in equal parts; request fewer",
                        drawn,
                    ) from None
                drafted.append((name, subskill, draft))
        return [
            self._with_content(*parts) for parts in drafted
        ]  # After all drafts are drawn, because rendering images is slow.

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        check_skills(self, [skill], subskill)
        parts = self.family[skill]
        names = [subskill] if subskill else list(parts)
        # Lessons may repeat a problem, because small skills have few problems.
        examples: list[Example] = []
        while len(examples) < count:
            name = names[len(examples) % len(names)]
            draft = parts[name](generator)
            if self.get_split(skill, draft) is Split.TRAIN:
                examples.append(self.example(skill, name, draft))
        return examples

    def get_shots(self, skill: str, count: int) -> list[Example]:
        """Worked examples of the skill, always the same."""
        return self.write_examples(skill, "", count, Seeds(0).derive(self.name, "shown", skill).generator())

    def _with_content(self, skill: str, subskill: str, draft: D) -> Problem:
        problem = self.problem(skill, subskill, draft)
        content = hashlib.blake2b(f"{skill}|{self.content(draft)}".encode(), digest_size=8).hexdigest()
        return replace(problem, metadata={**problem.metadata, "content": content})

    def _distinct(self, skill: str, split: Split, generator: np.random.Generator) -> Iterator[tuple[str, D]]:
        """Distinct drafts of `split`, with the subskills in turn; ends when a subskill is exhausted."""
        asked: set[Hashable] = set()
        for turn in itertools.count():
            for name, draw in self.family[skill].items():
                for _ in range(max(MAX_DRAWS_PER_PROBLEM, turn * MAX_DRAWS_PER_FOUND)):
                    draft = draw(generator)
                    if self.get_split(skill, draft) is split and self.key(draft) not in asked:
                        break
                else:
                    return
                asked.add(self.key(draft))
                yield name, draft
