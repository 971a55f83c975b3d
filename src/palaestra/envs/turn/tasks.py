"""`palaestra/Task-v0`: the problems of any task, with several attempts and what the scorer says between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from palaestra.core.checks import check_integer
from palaestra.core.records import Completion, Failure, Message, Problem, Score
from palaestra.envs.problems import resolve_task, select_problems
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.records import Reply, StopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.scoring import score, scoring_slots

TOLD = 200
"""Characters of an answer that its feedback repeats."""


class ProblemSet:
    """Problems of a task, and its scorer: what many environments share.

    Arguments:
        task: a name (`palaestra list tasks`), or a task.
        split: which problems; the train split is disjoint from those that results are measured on.
        problems: how many a skill, 0 for all of a published data set; by default 200, or all that a skill has if those
            are fewer.
        skills: only these; all if none is given.
        problem_seed: which problems of the task are drawn.
        task_options: options of a task that is given by its name.
    """

    def __init__(
        self,
        task: str | Task = "math-skills",
        split: str = "train",
        problems: int | None = None,
        skills: str | Sequence[str] = (),
        problem_seed: int = 0,
        task_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.task = resolve_task(task, task_options)
        self.problems = select_problems(self.task, split, problems, skills, problem_seed)
        get_hooks(self.task).check_scoring()
        self._slots = scoring_slots(self.task)

    def score(self, problem: Problem, text: str) -> Score | Failure:
        """Score an answer. Several threads may call this; as many as the task allows score at once."""
        with self._slots:
            return score(self.task, problem, Completion(text))

    def close(self) -> None:
        """End what the task keeps running, such as a sandbox."""
        get_hooks(self.task).close()


class TaskEnv(TurnEnv):
    """A problem of a task an episode, with one or more attempts.

    A right answer ends the episode (`StopReason.SOLVED`), the last attempt as well (`StopReason.ATTEMPTS`). The reward
    is the score of the attempt that ends it, from 0 to 1, in the step of that attempt; before it is 0. Between attempts the scorer
    says what it made of the answer, and never what it expected: no reference, no test. A scorer that breaks ends the
    episode as a failure and not with a score of 0.

    `info` holds the `problem`'s id and its `skill`; after an attempt its `score` as well.

    Arguments:
        task, split, problems, skills, problem_seed, task_options: as of `ProblemSet`; or a `ProblemSet` as `task`.
        attempts: how many there are.

    Example:
        >>> env = TaskEnv("math-skills", skills="addition", problems=20, attempts=2)
        >>> observation, info = env.reset(seed=0)
        >>> env.step("Answer: 1")[0].messages[-1].text
        'That is not right: your answer was read as 1. Try again.'
    """

    held_out: ClassVar[Mapping[str, Any]] = {"split": "test"}

    def __init__(
        self,
        task: str | Task | ProblemSet = "math-skills",
        split: str = "train",
        attempts: int = 3,
        skills: str | Sequence[str] = (),
        problems: int | None = None,
        problem_seed: int = 0,
        task_options: Mapping[str, Any] | None = None,
        *,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(
            max_turns=check_integer("attempts", attempts, minimum=1), max_seconds=max_seconds, render_mode=render_mode
        )
        self._shared = isinstance(task, ProblemSet)
        self.problem_set = (
            task
            if isinstance(task, ProblemSet)
            else ProblemSet(task, split, problems, skills, problem_seed, task_options)
        )
        self.attempts = self.max_turns
        self._problem = self.problem_set.problems[0]

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        problems = self.problem_set.problems
        self._problem = problems[int(self.np_random.integers(len(problems)))]
        return self._problem.messages

    def opening_info(self) -> Mapping[str, Any]:
        return {"problem": self._problem.id, "skill": self._problem.skill}

    def respond(self, message: Message) -> Reply:
        about = self.opening_info()
        outcome = self.problem_set.score(self._problem, message.text)
        if isinstance(outcome, Failure):
            return Reply(failure=outcome, info=about)
        about = {**about, "score": outcome.value}
        if outcome.value >= 1.0:
            return Reply(reward=outcome.value, stop=StopReason.SOLVED, info=about)
        if self.turn >= self.attempts:
            return Reply(reward=outcome.value, stop=StopReason.ATTEMPTS, info=about)
        return Reply((Message("user", feedback(outcome)),), info=about)

    def close(self) -> None:
        if not self._shared:
            self.problem_set.close()


class TaskVectorEnv(TurnVectorEnv):
    """`TaskEnv` in slots that share one set of problems and one scorer.

    Arguments:
        num_envs: how many slots.
        group_size, autoreset, failures: as of `TurnVectorEnv`; the rest as of `TaskEnv`.
    """

    def __init__(
        self,
        task: str | Task | ProblemSet = "math-skills",
        split: str = "train",
        attempts: int = 3,
        skills: str | Sequence[str] = (),
        problems: int | None = None,
        problem_seed: int = 0,
        task_options: Mapping[str, Any] | None = None,
        *,
        num_envs: int = 1,
        max_seconds: float = 0.0,
        render_mode: str | None = None,
        group_size: int = 1,
        autoreset: bool = True,
        failures: str = "raise",
    ) -> None:
        self._owned = not isinstance(task, ProblemSet)
        self.problem_set = (
            task
            if isinstance(task, ProblemSet)
            else ProblemSet(task, split, problems, skills, problem_seed, task_options)
        )
        super().__init__(
            lambda: TaskEnv(self.problem_set, attempts=attempts, max_seconds=max_seconds, render_mode=render_mode),
            num_envs,
            group_size=group_size,
            autoreset=autoreset,
            failures=failures,
        )

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        if self._owned:
            self.problem_set.close()


def feedback(score: Score) -> str:
    """What a model is told of a wrong answer.

    Only what follows from its own answer: how it was read, what became of its program, how many tests passed. What a
    scorer writes down beside that (`expected`, `detail`, `note`) holds references and hidden tests.

    >>> feedback(Score(0.0, {"outcome": "wrong_answer", "passed": "2 of 5", "detail": "f(3) is 9"}))
    'That is not right: wrong answer, 2 of 5 tests passed. Try again.'
    """
    evidence, parts = score.evidence, []
    if "outcome" in evidence:
        parts.append(evidence["outcome"].replace("_", " "))
    if "passed" in evidence:
        parts.append(f"{evidence['passed']} tests passed")
    if "extracted" in evidence:
        read = " ".join(evidence["extracted"].split())[:TOLD]
        parts.append(f"your answer was read as {read}" if read else "no answer was found in it")
    if 0.0 < score.value < 1.0:
        parts.append(f"its score is {score.value:.2g}")
    return f"That is not right{': ' if parts else ''}{', '.join(parts)}. Try again."
