"""`vision-skills`: questions about pictures that we draw, in 18 skills, with worked reasoning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from palaestra.core.errors import TaskError, UnknownNameError
from palaestra.core.records import Completion, Example, Failure, ImagePart, Message, Problem, Score, Split, TextPart
from palaestra.core.seeding import Seeds
from palaestra.runs.records import to_data
from palaestra.tasks.base import check_skills
from palaestra.tasks.vision.answers import judge
from palaestra.tasks.vision.charts import CHARTS_READ, CHARTS_SEEN
from palaestra.tasks.vision.drafts import Draft, Skill
from palaestra.tasks.vision.objects import OBJECTS
from palaestra.tasks.vision.relations import RELATIONS
from palaestra.tasks.vision.render import png_url, render
from palaestra.tasks.vision.scene import scene_split

SKILLS: Mapping[str, Skill] = {s.name: s for s in (*OBJECTS, *CHARTS_SEEN, *RELATIONS, *CHARTS_READ)}

MAX_DRAWS_A_PROBLEM = 500
"""How often a drawer may miss the split, or repeat itself, before its problems count as used up."""


class VisionSkills:
    """Procedural questions about pictures of shapes and charts.

    The picture decides the split: no scene of one split is ever shown in another, whatever is asked.

    Example:
        >>> task = VisionSkills()
        >>> problem = task.problems(Split.TEST, per_skill=1, seed=0, skills=["colour"])[0]
        >>> task.score(problem, Completion(text=f"Answer: {problem.reference}")).value
        1.0
    """

    name = "vision-skills"

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(skill.subskills) for name, skill in SKILLS.items()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        check_skills(self, skills)
        found: list[tuple[str, str, Draft]] = []
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
                found.append((name, subskill, draft))
        return [_problem(*parts) for parts in found]  # Drawn only once all are there.

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        right, given = judge(completion.text, problem.reference, problem.metadata["choices"])
        return Score(float(right), {"extracted": given, "expected": problem.reference})

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        check_skills(self, [skill])
        names = [subskill] if subskill else list(SKILLS[skill].subskills)
        if subskill and subskill not in SKILLS[skill].subskills:
            raise UnknownNameError(f"subskill of {skill}", subskill, SKILLS[skill].subskills)
        examples: list[Example] = []
        while len(examples) < count:
            name = names[len(examples) % len(names)]
            draft = SKILLS[skill].subskills[name](generator)
            if scene_split(draft.scene) is Split.TRAIN:
                examples.append(Example((message(draft),), draft.response, skill, name))
        return examples

    def _distinct(self, skill: Skill, split: Split, generator: np.random.Generator) -> Iterator[tuple[str, Draft]]:
        """Drafts of `split`, none asked twice of one scene, the subskills in turn; ends when one is used up."""
        asked: set[tuple[str, str]] = set()
        while True:
            for name, draw in skill.subskills.items():
                for _ in range(MAX_DRAWS_A_PROBLEM):
                    draft = draw(generator)
                    key = (draft.scene.canonical(), draft.question)
                    if scene_split(draft.scene) is split and key not in asked:
                        break
                else:
                    return
                asked.add(key)
                yield name, draft


def message(draft: Draft) -> Message:
    """The picture, then the question."""
    return Message("user", (ImagePart(png_url(render(draft.scene))), TextPart(draft.question)))


def _problem(skill: str, subskill: str, draft: Draft) -> Problem:
    # Of what is shown and asked, not of the file: another version of Pillow may pack the same pixels differently.
    canonical = f"{skill}|{subskill}|{draft.question}|{draft.scene.exact()}"
    digest = hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()
    return Problem(
        id=f"{skill}/{subskill}/{digest}",
        messages=(message(draft),),
        reference=draft.answer,
        skill=skill,
        subskill=subskill,
        metadata={"worked": draft.response, "choices": list(draft.choices), "scene": to_data(draft.scene)},
    )
