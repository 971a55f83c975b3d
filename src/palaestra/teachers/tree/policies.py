"""The policies of a skill tree, which decide what to explore and exploit, and with how many examples."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, Field

from palaestra.chat.structured import ask
from palaestra.core.errors import SettingsError
from palaestra.core.records import Engine, Failure, Request, Sampling
from palaestra.core.registry import Registry
from palaestra.core.settings import check_options
from palaestra.envs.lesson.state import ValidationAttempt
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.simple import share_out
from palaestra.teachers.tree.records import Branch, Leaf, TreeAction, TreeLimits, TreeState

POLICIES = Registry("tree policy", "palaestra.tree_policies")
for _name, _place, _help in (
    ("response", "policies:TreeResponse", "by the gap to full accuracy, and by how much of it data has closed so far"),
    ("ucb", "bandits:UpperConfidence", "by an upper confidence bound of the gain of every further example"),
    ("thompson", "bandits:Thompson", "by the gains of learning curves that are sampled from their posterior"),
    ("alternating", "policies:Alternating", "explores in one round, exploits in the next"),
    ("balanced", "policies:Balanced", "opens subskills, then balances their examples"),
    ("random", "policies:Random", "explores or exploits at random"),
    ("threshold", "policies:Threshold", "explores a skill with a small last reward, exploits the others"),
    ("model", "policies:TreeModel", "a language model reads the history and decides, with reasons"),
):
    POLICIES.register(_name, f"palaestra.teachers.tree.{_place}", _help)


class TreePolicy(Protocol):
    """Decides the actions of a round.

    Arguments of `decide`:
        tree: the skills with their history.
        size: examples in the lesson.
        limits: the limits, which are enforced afterwards; a policy may exceed them.
        generator: the only source of randomness.

    A policy keeps no state between rounds. `open_at_once` is its default limit of that name.
    """

    open_at_once: int

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        """Return at most one action per skill."""
        ...


def make_policy(name: str, **options: object) -> TreePolicy:
    """Build the policy that is registered under `name`. An option of `None` uses the policy's default.

    Raises:
        SettingsError: the policy does not take one of the options; the message lists its options.
    """
    kind = POLICIES.get(name)
    given = {option: value for option, value in options.items() if value is not None}
    check_options(f"tree policy '{name}'", given, list(inspect.signature(kind).parameters))
    policy: TreePolicy = kind(**given)
    return policy


class RoundPlan(NamedTuple):
    """What the actions of a round depend on in addition to the skill: finished rounds, limits and randomness."""

    round: int
    limits: TreeLimits
    generator: np.random.Generator


class _EvenShares(ABC):
    """A policy that gives every skill the same number of examples. Subclasses implement `act`."""

    open_at_once = 2

    @abstractmethod
    def act(self, branch: Branch, share: int, plan: RoundPlan) -> TreeAction:
        """Decide the action of one skill with `share` examples."""

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        # A random order, so that the remainder goes to other skills in each round.
        order = [tree.branches[int(place)] for place in generator.permutation(len(tree.branches))]
        shares = share_out(size, {branch.name: 1.0 for branch in order})
        plan = RoundPlan(tree.round, limits, generator)
        return [self.act(branch, shares[branch.name], plan) for branch in tree if shares[branch.name]]


class Alternating(_EvenShares):
    """Explores in the first round, exploits in the second, and so on; a skill without closed subskills exploits."""

    def act(self, branch: Branch, share: int, plan: RoundPlan) -> TreeAction:
        if plan.round % 2 == 0 and plan.limits.room(branch):
            return explore(branch, share, plan.limits, "a round of exploration")
        turn = "a round of exploitation" if plan.round % 2 else "no subskill to open"
        return exploit(branch, share, plan.limits, turn)


class Balanced(_EvenShares):
    """Opens subskills, and gives examples to those with the least data."""

    def act(self, branch: Branch, share: int, plan: RoundPlan) -> TreeAction:
        new = branch.closed[: plan.limits.room(branch)]
        leaves = (*branch.opened, *new)
        given = {leaf.name: leaf.total for leaf in leaves}
        allocation = level(share, given)
        counts = f"{len(leaves)} of {len(branch.leaves)} subskills open"
        if any(allocation[leaf.name] for leaf in new):
            reason = f"{counts}: open more, and fill evenly"
            return TreeAction(branch.name, allocation, reason, "explore")
        return TreeAction(branch.name, allocation, f"{counts}: fill evenly, from {min(given.values())} examples up")


class Random(_EvenShares):
    """Explores or exploits at random, with random allocations."""

    def act(self, branch: Branch, share: int, plan: RoundPlan) -> TreeAction:
        room = plan.limits.room(branch)
        explores = room > 0 and (not branch.opened or plan.generator.random() < 0.5)
        if explores:
            count = int(plan.generator.integers(1, room + 1))
            chosen = [
                branch.closed[int(place)].name for place in plan.generator.permutation(len(branch.closed))[:count]
            ]
            reason = f"at random: open {', '.join(chosen) or 'it'}"
        else:
            chosen, reason = [leaf.name for leaf in branch.opened], "at random: open subskills"
        weights = plan.generator.dirichlet([1.0] * len(chosen)).tolist() if chosen else []
        allocation = share_out(share, dict(zip(chosen, weights, strict=True)))
        return TreeAction(branch.name, allocation, reason, "explore" if explores else "exploit")


class Threshold(_EvenShares):
    """Explores a skill whose last reward is below a threshold or missing; exploits the others.

    Arguments:
        threshold: a change of the skill's validation accuracy in a round, from -1 to 1.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        self.threshold = threshold

    def act(self, branch: Branch, share: int, plan: RoundPlan) -> TreeAction:
        last = branch.rewards[-1] if branch.rewards else None
        reason = "no reward yet" if last is None else f"the last round gained {100 * last:+.0f} points"
        if plan.limits.room(branch) and (last is None or last < self.threshold):
            return explore(branch, share, plan.limits, reason)
        return exploit(branch, share, plan.limits, reason)


def explore(branch: Branch, share: int, limits: TreeLimits, why: str) -> TreeAction:
    """Open the weakest subskills and divide the examples evenly."""
    new = [leaf.name for leaf in branch.closed[: limits.room(branch)]]
    reason = f"{why}: open {', '.join(new) or 'it'}"
    return TreeAction(branch.name, share_out(share, dict.fromkeys(new, 1.0)), reason, "explore")


def exploit(branch: Branch, share: int, limits: TreeLimits, why: str) -> TreeAction:
    """Divide the examples among open subskills by their gaps; explore if none is open."""
    if not branch.opened:
        return explore(branch, share, limits, f"{why}, but no subskill is open")
    weights = {leaf.name: max(1e-3, 1.0 - branch.estimate_accuracy(leaf)) for leaf in branch.opened}
    return TreeAction(branch.name, share_out(share, weights), f"{why}: by the gaps of the open subskills")


def level(total: int, given: dict[str, int]) -> dict[str, int]:
    """Distribute `total` so that the final numbers are as even as possible.

    >>> level(6, {"a": 5, "b": 1, "c": 0})
    {'a': 0, 'b': 3, 'c': 3}
    """
    has = dict(given)
    for _ in range(total):
        has[min(has, key=lambda name: has[name])] += 1
    return {name: has[name] - given[name] for name in given}


_PRIOR_RESPONSE = 0.5
"""The expected response of a skill without data."""
_EVIDENCE = 10.0
"""The weight of the prior in examples."""


class TreeResponse:
    """Allocates a lesson by gap times response.

    Both are estimated from validation: the gap to full accuracy, and the fraction of it that data has closed so far (the
    *response*). A skill that does not respond to data gets less in each round. Mastered skills get a few examples against
    forgetting.

    Arguments:
        keep: the fraction of a lesson for mastered skills.
    """

    open_at_once = 2

    def __init__(self, keep: float = 0.12) -> None:
        self.keep = keep

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        mastered = {branch.name: 1.0 for branch in tree if branch.mastered}
        weak = {
            branch.name: (1.0 - branch.accuracy) * response(branch.accuracy, branch.before, branch.total)
            for branch in tree.weak
        }
        # A mastered skill never gets more than half of what an average weak one gets.
        keep = min(self.keep, 0.5 * len(mastered) / len(tree.branches))
        kept = round(size * keep) if weak else size
        shares = share_out(size - kept, weak, limits.most(tree, size)) | share_out(kept if mastered else 0, mastered)
        return [_act(branch, shares[branch.name], limits) for branch in tree if shares.get(branch.name)]


def response(accuracy: float, before: float, given: int) -> float:
    """Estimate the fraction of the gap that data has closed, between 0.05 and 1.

    Evidence counts by the number of examples; with few of them the prior dominates. If accuracy fell below that before the
    first round, the response is at least that accuracy.
    """
    closed = max(0.0, accuracy - before) / max(1e-9, 1.0 - before)
    evidence = given / _EVIDENCE
    answered = (_PRIOR_RESPONSE + evidence * closed) / (1.0 + evidence)
    lost = before if accuracy < before else 0.0
    return min(1.0, max(0.05, answered, lost))


def _act(branch: Branch, share: int, limits: TreeLimits) -> TreeAction:
    """Decide the action of one skill."""
    now = {leaf.name: branch.estimate_accuracy(leaf) for leaf in branch.leaves}
    if branch.mastered:
        reason = f"{branch.accuracy:.0%} on validation: a few examples against forgetting"
        return TreeAction(branch.name, share_out(share, dict.fromkeys(now, 1.0)), reason)
    opened, closed = [leaf.name for leaf in branch.opened], [leaf.name for leaf in branch.closed]
    room = limits.room(branch)
    if room and (not opened or 1.0 - now[closed[0]] >= 0.1):
        new = closed[:room]
        allocation = share_out(share, _positive({name: 1.0 - now[name] for name in (*opened, *new)}))
        names = ", ".join(f"{name} ({now[name]:.0%})" for name in new if allocation[name])
        if names:
            return TreeAction(branch.name, allocation, f"open {names}", "explore")
    weights = {
        leaf.name: (1.0 - now[leaf.name]) * response(now[leaf.name], branch.estimate_accuracy(leaf, 0), leaf.total)
        for leaf in branch.opened or branch.leaves
    }
    gained = branch.accuracy - branch.before
    reason = f"{branch.total} examples gained {100 * gained:+.0f} points; by the gap and the response"
    return TreeAction(branch.name, share_out(share, _positive(weights)), reason)


def _positive(weights: Mapping[str, float]) -> dict[str, float]:
    """Raise zero weights, so that all examples are allocated."""
    return {name: max(weight, 1e-3) for name, weight in weights.items()}


# A language model as the policy, and its proposals of new subskills

_DECISION_SAMPLING = Sampling(max_tokens=4096, temperature=0.0)


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
        engine: the language model.
        prompts: the templates of its prompts.
        task: the name of the task in the prompt.
    """

    open_at_once = 2

    def __init__(self, prompts: TeacherPrompts, task: str, engine: Engine | None = None) -> None:
        if engine is None:
            raise SettingsError(
                "the tree policy 'model' needs a language model; set 'planner' or 'writer' to one, or pass an engine"
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
            counts=_counts,
            points=_points,
        )
        question = Request(messages, _DECISION_SAMPLING, int(generator.integers(2**31)))
        (answer,) = ask(self.engine, [question], Decided)
        if isinstance(answer, Failure):
            return [
                replace(action, reason=f"{action.reason} (by 'response': the model had no answer: {answer.message})")
                for action in TreeResponse().decide(tree, size, limits, generator)
            ]
        actions = []
        for decision in answer.actions:
            allocation: dict[str, int] = {}
            for share in decision.allocation:
                allocation[share.subskill] = allocation.get(share.subskill, 0) + share.examples
            actions.append(TreeAction(decision.skill, allocation, " ".join(decision.reason.split()), decision.action))
        return actions


def _counts(node: Branch | Leaf) -> str:
    return ", ".join(f"{score.correct}/{score.count}" for score in node.measured)


def _points(branch: Branch) -> str:
    return ", ".join("unknown" if reward is None else f"{100 * reward:+.0f}" for reward in branch.rewards)


_MAX_SHOWN = 6
"""Maximum number of wrong answers of a skill in the prompt."""
_PROPOSAL_SAMPLING = Sampling(max_tokens=512, temperature=0.7)


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
        picked = [errors[int(place)] for place in generator.permutation(len(errors))[:_MAX_SHOWN]]
        messages = prompts.messages(
            "skill_tree/propose", task=task, skill=branch.name, count=count, existing=_names(branch), errors=picked
        )
        questions.append(Request(messages, _PROPOSAL_SAMPLING, int(generator.integers(2**31))))

    def check(index: int, answer: Proposal) -> str:
        return _wrong_with(answer.subskills, count, _names(branches[index]))

    answers = dict(
        zip((branch.name for branch in branches), ask(engine, questions, Proposal, check=check), strict=True)
    )
    answered = {name: answer.subskills for name, answer in answers.items() if not isinstance(answer, Failure)}
    return {name: tuple(part.strip() for part in parts) for name, parts in answered.items()}


def _wrong_with(names: Sequence[str], count: int, existing: Sequence[str]) -> str:
    """Describe the error of proposed names; empty if they are valid.

    >>> _wrong_with(["Sums ", "sums"], 2, [])
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
