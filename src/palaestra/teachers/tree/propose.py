"""Ask a language model for new subskills: an exact number, without duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, Field

from palaestra.core.records import Failure
from palaestra.engines.base import Engine, Request, Sampling
from palaestra.engines.structured import ask
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.tree.records import Branch

if TYPE_CHECKING:
    # Types only: listing the teachers must not import torch.
    from palaestra.envs.lesson.state import ValidationAttempt

SHOWN = 6
"""Wrong answers of a skill in the prompt."""
SAMPLING = Sampling(max_tokens=512, temperature=0.7)


class Proposal(BaseModel):
    """The schema of the model's answer."""

    subskills: list[str] = Field(description="names of subskills, each a few words")


def propose(
    engine: Engine,
    prompts: TeacherPrompts,
    task: str,
    branches: Sequence[Branch],
    count: int,
    wrong: Sequence[ValidationAttempt],
    generator: np.random.Generator,
) -> dict[str, tuple[str, ...]]:
    """Ask for `count` new subskills of each branch. Skills without a valid answer are left out.

    Arguments:
        wrong: the student's wrong answers of all skills.
    """
    questions = []
    for branch in branches:
        errors = [attempt for attempt in wrong if attempt.skill == branch.name]
        picked = [errors[int(place)] for place in generator.permutation(len(errors))[:SHOWN]]
        messages = prompts.messages(
            "skill_tree/propose", task=task, skill=branch.name, count=count, existing=_names(branch), errors=picked
        )
        questions.append(Request(messages, SAMPLING, int(generator.integers(2**31))))

    def check(index: int, answer: Proposal) -> str:
        return wrong_with(answer.subskills, count, _names(branches[index]))

    answers = ask(engine, questions, Proposal, check=check)
    return {
        branch.name: tuple(name.strip() for name in answer.subskills)
        for branch, answer in zip(branches, answers, strict=True)
        if not isinstance(answer, Failure)
    }


def wrong_with(names: Sequence[str], count: int, existing: Sequence[str]) -> str:
    """Describe the error of proposed names; empty if they are valid.

    >>> wrong_with(["Sums ", "sums"], 2, [])
    "'sums' is there twice"
    """
    if len(names) != count:
        return f"expected exactly {count} subskills, got {len(names)}"
    seen = {_plain(name) for name in existing}
    proposed: set[str] = set()
    for name in names:
        if not _plain(name):
            return "a subskill needs a name"
        if _plain(name) in seen:
            return f"'{name}' exists already"
        if _plain(name) in proposed:
            return f"'{name}' is there twice"
        proposed.add(_plain(name))
    return ""


def _names(branch: Branch) -> list[str]:
    return [leaf.name for leaf in branch.leaves if leaf.name]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())
