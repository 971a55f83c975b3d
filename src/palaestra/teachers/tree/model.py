"""A language model in a skill tree: the policy `model`, which decides with reasons, and proposals of new subskills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, Field

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure
from palaestra.engines.base import Engine, Request, Sampling
from palaestra.engines.structured import ask
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.policies import TreeResponse
from palaestra.teachers.tree.records import Branch, Leaf, TreeAction, TreeState

if TYPE_CHECKING:
    from palaestra.envs.lesson.state import ValidationAttempt


SAMPLING = Sampling(max_tokens=4096, temperature=0.0)


class Share(BaseModel):
    """Examples of one subskill."""

    subskill: str
    examples: int


class SkillAction(BaseModel):
    """The action of one skill."""

    skill: str
    action: Literal["explore", "exploit"]
    reason: str = Field(min_length=1, description="why, in one or two sentences")
    allocation: list[Share]


class Decided(BaseModel):
    """The actions of a round."""

    actions: list[SkillAction] = Field(min_length=1)


class TreeModel:
    """Asks a language model once per round. Without a valid answer the policy `response` decides.

    Arguments:
        engine: returns the language model.
        prompts: the templates of its prompts.
        task: the name of the task in the prompt.
    """

    open_at_once = 2

    def __init__(self, engine: Callable[[], Engine | None], prompts: TeacherPrompts, task: str) -> None:
        if engine() is None:
            raise SettingsError(
                "the tree policy 'model' needs a language model; pass an engine, or choose a language model as the writer"
            )
        self.engine, self.prompts, self.task = engine, prompts, task

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        messages = self.prompts.messages(
            "skill_tree/decide",
            task=self.task,
            tree=tree,
            size=size,
            limits=limits,
            most=limits.most(tree, size),
            most_of_subskill=limits.most_of_subskill(size),
            counts=_counts,
            points=_points,
        )
        question = Request(messages, SAMPLING, int(generator.integers(2**31)))
        engine = self.engine()
        assert engine is not None
        (answer,) = ask(engine, [question], Decided)
        if isinstance(answer, Failure):
            return [
                replace(action, reason=f"{action.reason} (by 'response': the model had no answer: {answer.message})")
                for action in TreeResponse().decide(tree, size, limits, generator)
            ]
        return [_action(decision) for decision in answer.actions]


def _action(decision: SkillAction) -> TreeAction:
    allocation: dict[str, int] = {}
    for share in decision.allocation:
        allocation[share.subskill] = allocation.get(share.subskill, 0) + share.examples
    reason = " ".join(decision.reason.split())
    return TreeAction(decision.skill, allocation, reason, decision.action)


def _counts(node: Branch | Leaf) -> str:
    return ", ".join(f"{score.correct}/{score.count}" for score in node.measured)


def _points(branch: Branch) -> str:
    return ", ".join("unknown" if reward is None else f"{100 * reward:+.0f}" for reward in branch.rewards)


SHOWN = 6
"""Maximum number of wrong answers of a skill in the prompt."""
PROPOSAL_SAMPLING = Sampling(max_tokens=512, temperature=0.7)


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
        questions.append(Request(messages, PROPOSAL_SAMPLING, int(generator.integers(2**31))))

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
    "'sums' exists already"
    """
    if len(names) != count:
        return f"expected exactly {count} subskills, got {len(names)}"
    seen = {_plain(name) for name in existing} | {""}
    for name in names:
        if _plain(name) in seen:
            return f"'{name}' exists already" if _plain(name) else "a subskill needs a name"
        seen.add(_plain(name))
    return ""


def _names(branch: Branch) -> list[str]:
    return [leaf.name for leaf in branch.leaves if leaf.name]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())
