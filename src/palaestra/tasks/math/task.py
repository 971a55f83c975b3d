"""`math-skills`: procedural mathematics in 18 skills, with worked reasoning for every problem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from palaestra.core.errors import TaskError, UnknownNameError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.tasks.base import check_skills, split_of
from palaestra.tasks.math.advanced import ADVANCED
from palaestra.tasks.math.answers import equal, extract
from palaestra.tasks.math.arithmetic import ARITHMETIC
from palaestra.tasks.math.drafts import Draft, Skill
from palaestra.tasks.math.reasoning import REASONING

SKILLS: Mapping[str, Skill] = {skill.name: skill for skill in (*ARITHMETIC, *REASONING, *ADVANCED)}

MAX_DRAWS_A_PROBLEM = 500
"""How often a drawer may miss the split, or repeat itself, before its problems count as used up."""


def draft_split(skill: str, draft: Draft) -> Split:
    """The split of a drafted problem: the same under any wording, and in every subskill."""
    return split_of(f"{skill}|{draft.key}")


class MathSkills:
    """Procedural mathematics.

    Example:
        >>> task = MathSkills()
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["addition"])[0]
        >>> task.score(problem, Completion(text=f"Answer: {problem.reference}")).value
        1.0
    """

    name = "math-skills"

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(skill.subskills) for name, skill in SKILLS.items()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        found = []
        for name in skills or SKILLS:
            generator = Seeds(seed).derive(self.name, split, name).generator()
            drafts = self._distinct(SKILLS[name], split, generator)
            for _ in range(per_skill):
                try:
                    subskill, draft = next(drafts)
                except StopIteration:
                    raise TaskError(
                        f"skill '{name}' of {self.name} has fewer than {per_skill} {split} problems; ask for fewer"
                    ) from None
                found.append(_problem(name, subskill, draft))
        return found

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        kind = SKILLS[problem.skill].kind
        given = extract(completion.text, kind)
        right = given is not None and equal(given, problem.reference, kind)
        return Score(float(right), {"extracted": given or "", "expected": problem.reference})

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        check_skills(self, [skill])
        names = [subskill] if subskill else list(SKILLS[skill].subskills)
        if subskill and subskill not in SKILLS[skill].subskills:
            raise UnknownNameError(f"subskill of {skill}", subskill, SKILLS[skill].subskills)
        # Lessons may repeat a problem in other words: small skills have only so many problems.
        examples: list[Example] = []
        while len(examples) < count:
            name = names[len(examples) % len(names)]
            draft = SKILLS[skill].subskills[name](generator)
            if draft_split(skill, draft) is Split.TRAIN:
                question = Message("user", draft.question)
                examples.append(Example((question,), draft.response, skill, name))
        return examples

    def _distinct(self, skill: Skill, split: Split, generator: np.random.Generator) -> Iterator[tuple[str, Draft]]:
        """Drafts of `split` with no question twice, the subskills in turn; ends when one is used up."""
        asked: set[str] = set()
        while True:
            for name, draw in skill.subskills.items():
                for _ in range(MAX_DRAWS_A_PROBLEM):
                    draft = draw(generator)
                    if draft_split(skill.name, draft) is split and draft.question not in asked:
                        break
                else:
                    return
                asked.add(draft.question)
                yield name, draft


def _problem(skill: str, subskill: str, draft: Draft) -> Problem:
    digest = hashlib.blake2b(f"{skill}|{subskill}|{draft.question}".encode(), digest_size=6).hexdigest()
    return Problem(
        id=f"{skill}/{subskill}/{digest}",
        messages=(Message("user", draft.question),),
        reference=draft.answer,
        skill=skill,
        subskill=subskill,
        metadata={"worked": draft.response},
    )
