"""`palaestra/Task-v0`: the problems of any task, with several attempts and scorer feedback between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from palaestra.core.records import Completion, Failure, Message, Problem, Score
from palaestra.core.settings import check_integer
from palaestra.envs.base import Options, resolve_task, select_problems
from palaestra.envs.turn.base import Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.vector import TurnVectorEnv
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.evaluate import score, scoring_slots

_MAX_ANSWER = 200
"""Maximum characters of an answer that are repeated in the feedback."""


_PROBLEM_ARGUMENTS = ("split", "problems", "skills", "problem_seed", "task_kwargs")


class ProblemSet:
    """The problems and the scorer of a task, shared by many environments.

    Arguments:
        task: a task, or its name (`palaestra list tasks`).
        split: the problems to use; the train split is disjoint from the held-out splits.
        problems: the number of problems per skill, 0 for all of a published data set; by default 200, or fewer if a
            skill has fewer.
        skills: restrict to these skills; all if empty.
        problem_seed: the seed of the problem sample.
        task_kwargs: options of a task that is given by name.
    """

    def __init__(
        self,
        task: str | Task = "math-skills",
        split: str = "train",
        problems: int | None = None,
        skills: str | Sequence[str] = (),
        problem_seed: int = 0,
        task_kwargs: Options | None = None,
    ) -> None:
        self.task = resolve_task(task, task_kwargs)
        self.problems = select_problems(self.task, split, problems, skills, problem_seed)
        get_hooks(self.task).check_scoring()
        self._slots = scoring_slots(self.task)

    def score(self, problem: Problem, text: str) -> Score | Failure:
        """Score an answer. Thread-safe; the task limits how many answers are scored at once."""
        with self._slots:
            return score(self.task, problem, Completion(text))

    def close(self) -> None:
        """Release the task's resources, such as a sandbox."""
        get_hooks(self.task).close()


class TaskEnv(TurnEnv):
    """One problem of a task per episode, with one or more attempts.

    A right answer ends the episode (`TurnStopReason.SOLVED`), and so does the last attempt (`TurnStopReason.ATTEMPTS`).
    The reward is the score of the final attempt, from 0 to 1; earlier steps have 0. Between attempts the environment
    reports how the answer was read, but never the reference or the tests. A failing scorer ends the episode as a
    failure, not with a score of 0.

    `info` contains the `problem`'s id and its `skill`; after an attempt also its `score`.

    Arguments:
        task, split, problems, skills, problem_seed, task_kwargs: as for `ProblemSet`; `task` may be a `ProblemSet`.
        attempts: the number of attempts.

    Example:
        >>> env = TaskEnv("math-skills", skills="addition", problems=20, attempts=2)
        >>> observation, info = env.reset(seed=0)
        >>> env.step("Answer: 1")[0].messages[-1].text
        'That is not right: your answer was read as 1. Try again.'
    """

    held_out: ClassVar[Options] = {"split": "test"}

    def __init__(
        self,
        task: str | Task | ProblemSet = "math-skills",
        split: str = "train",
        attempts: int = 3,
        skills: str | Sequence[str] = (),
        problems: int | None = None,
        problem_seed: int = 0,
        task_kwargs: Options | None = None,
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
            else ProblemSet(task, split, problems, skills, problem_seed, task_kwargs)
        )
        self.attempts = self.max_turns
        self._problem = self.problem_set.problems[0]

    def opening(self, options: Options) -> Sequence[Message]:
        problems = self.problem_set.problems
        self._problem = problems[int(self.np_random.integers(len(problems)))]
        return self._problem.messages

    def opening_info(self) -> Options:
        return {"problem": self._problem.id, "skill": self._problem.skill}

    def respond(self, message: Message) -> Reply:
        about = self.opening_info()
        outcome = self.problem_set.score(self._problem, message.text)
        if isinstance(outcome, Failure):
            return Reply(failure=outcome, info=about)
        about = {**about, "score": outcome.value}
        if outcome.value >= 1.0:
            return Reply(reward=outcome.value, stop=TurnStopReason.SOLVED, info=about)
        if self.turn >= self.attempts:
            return Reply(reward=outcome.value, stop=TurnStopReason.ATTEMPTS, info=about)
        return Reply((Message("user", feedback(outcome)),), info=about)

    def close(self) -> None:
        super().close()
        if not self._shared:
            self.problem_set.close()


class TaskVectorEnv(TurnVectorEnv):
    """A vector of `TaskEnv`s that share one set of problems and one scorer.

    Arguments:
        num_envs: the number of slots.
        arguments: as for `TurnVectorEnv`; the others as for `TaskEnv`.
    """

    def __init__(
        self, task: str | Task | ProblemSet = "math-skills", *, num_envs: int = 1, attempts: int = 3, **arguments: Any
    ) -> None:
        self._owned = not isinstance(task, ProblemSet)
        own = {name: arguments.pop(name) for name in _PROBLEM_ARGUMENTS if name in arguments}
        self.problem_set = task if isinstance(task, ProblemSet) else ProblemSet(task, **own)
        super().__init__(partial(TaskEnv, self.problem_set, attempts=attempts), num_envs, **arguments)

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        if self._owned:
            self.problem_set.close()


def feedback(score: Score) -> str:
    """Describe a wrong answer to the model.

    The text contains only what follows from the answer itself: how it was read, what its program did, how many tests
    passed. Other evidence of the scorer (`expected`, `detail`, `note`) contains references and hidden tests.

    >>> feedback(Score(0.0, {"outcome": "wrong_answer", "passed": "2 of 5", "detail": "f(3) is 9"}))
    'That is not right: wrong answer, 2 of 5 tests passed. Try again.'
    """
    evidence, parts = score.evidence, []
    if "outcome" in evidence:
        parts.append(evidence["outcome"].replace("_", " "))
    if "passed" in evidence:
        parts.append(f"{evidence['passed']} tests passed")
    if "extracted" in evidence:
        read = " ".join(evidence["extracted"].split())[:_MAX_ANSWER]
        parts.append(f"your answer was read as {read}" if read else "no answer was found in it")
    if 0.0 < score.value < 1.0:
        parts.append(f"its score is {score.value:.2g}")
    return f"That is not right{': ' if parts else ''}{', '.join(parts)}. Try again."
