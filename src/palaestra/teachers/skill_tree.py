"""A teacher that grows a tree of subskills for every skill and allocates examples to them.

In each round every skill takes one action, with a reason:

- **explore**: open subskills without data;
- **exploit**: give data to open subskills.

A policy decides (`palaestra.teachers.tree.policies`), within limits that are enforced (`palaestra.teachers.tree.records`).
"""

from __future__ import annotations

import numpy as np

from palaestra.core.errors import SettingsError
from palaestra.core.records import Engine
from palaestra.envs.lesson.state import StudentState
from palaestra.tasks.base import Task
from palaestra.teachers.base import Order, PlanningTeacher, TaskWriter, Writer
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.tree.policies import TreePolicy, make_policy, propose
from palaestra.teachers.tree.records import TreeAction, TreeLimits, TreeState, build_tree, enforce


class SkillTree(PlanningTeacher):
    """Explores and exploits one tree of subskills per skill.

    Arguments:
        policy: a registered name, or a policy.
        engine: the language model of the policy `model` and of `proposals`; default: the writer's.
        prompts: the templates of its prompts; default: the writer's, or the built-in ones.
        cap: the maximum fraction of a lesson for one skill.
        open_at_once: the maximum number of subskills that a skill opens per round; 0: no limit; `None`: the policy's own.
        proposals: new subskills to request from the engine in each round, for every skill whose subskills are all open.
            Needs a language model as the writer.
        keep: for `response`, `ucb` and `thompson`: the fraction of a lesson for mastered skills.
        threshold: for `threshold`: the reward below which a skill explores.

    Example:
        >>> from palaestra.tasks.base import make_task
        >>> SkillTree(make_task("math-skills"), policy="ucb", cap=0.15).limits.cap
        0.15
    """

    def __init__(
        self,
        task: Task,
        skills: tuple[str, ...] = (),
        *,
        writer: Writer | None = None,
        policy: str | TreePolicy = "response",
        engine: Engine | None = None,
        prompts: TeacherPrompts | None = None,
        cap: float = 0.2,
        open_at_once: int | None = None,
        proposals: int = 0,
        keep: float | None = None,
        threshold: float | None = None,
    ) -> None:
        super().__init__(task, skills, writer=writer)
        if isinstance(engine, str):
            raise SettingsError(f"option 'engine': expected an engine, not its name; got '{engine}'")
        self.engine: Engine | None = engine if engine is not None else getattr(self.writer, "engine", None)
        self.proposals, self.reads_references = proposals, proposals > 0
        self.prompts: TeacherPrompts = prompts or getattr(self.writer, "prompts", None) or TeacherPrompts()
        options = {"keep": keep, "threshold": threshold}
        if isinstance(policy, str):
            asks = {"engine": self.engine, "prompts": self.prompts, "task": task.name} if policy == "model" else {}
            policy = make_policy(policy, **options, **asks)
        elif any(value is not None for value in options.values()):
            raise SettingsError("a policy object already has its options; pass them to its constructor")
        self.policy: TreePolicy = policy
        opens = policy.open_at_once if open_at_once is None else open_at_once
        self.limits = TreeLimits(cap, opens)
        if proposals and self.engine is None:
            raise SettingsError("proposals of subskills need a language model; pass an engine")
        if proposals and isinstance(self.writer, TaskWriter):
            raise SettingsError("the task's own generators cannot write proposals; set 'writer' to a language model")

    def decide(self, state: StudentState, size: int, generator: np.random.Generator) -> list[TreeAction]:
        """Decide the actions of a round and enforce the limits."""
        tree = build_tree(state, self.skills)
        if self.proposals and self.engine is not None:
            tree = build_tree(state, self.skills, self._propose(tree, self.engine, state, generator))
        return enforce(tree, self.policy.decide(tree, size, self.limits, generator), size, self.limits)

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        return [
            Order(action.skill, part, count, action.kind, action.reason)
            for action in self.decide(state, size, generator)
            for part, count in action.allocation.items()
        ]

    def _propose(
        self, tree: TreeState, engine: Engine, state: StudentState, generator: np.random.Generator
    ) -> dict[str, tuple[str, ...]]:
        wanted = [
            branch for branch in tree if not branch.mastered and (not branch.closed or branch.leaf("") is not None)
        ]
        wrong = [attempt for attempt in state.attempts if attempt.correct == "no"]
        return propose(engine, self.prompts, self.task.name, wanted, self.proposals, wrong, generator)
