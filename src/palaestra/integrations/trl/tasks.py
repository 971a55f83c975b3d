"""Tasks as reward functions for TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.turn.tasks import ProblemSet
from palaestra.integrations.trl.environments import load_datasets
from palaestra.tasks.base import Task


class TaskReward:
    """The reward function of a task: the score of the last message of a completion.

    A failing scorer gives `None`, which TRL leaves out of the baseline; `failures` counts them. The function needs the
    column `problem` of `make_dataset`.

    Arguments:
        task: a task, or its name (`palaestra list tasks`).
        arguments: arguments of `ProblemSet`: `split`, `problems`, `skills`, `problem_seed`, `task_options`.

    Example:
        >>> reward = TaskReward("math-skills", skills="addition", problems=8)
        >>> dataset = reward.make_dataset()  # doctest: +SKIP
        >>> trainer = GRPOTrainer(model, reward_funcs=reward, train_dataset=dataset)  # doctest: +SKIP
    """

    def __init__(self, task: str | Task = "math-skills", **arguments: Any) -> None:
        self.problem_set = ProblemSet(task, **arguments)
        self.problems = {problem.id: problem for problem in self.problem_set.problems}
        self.__name__ = self.problem_set.task.name  # The name of the metric in TRL.

    def make_dataset(self) -> Any:
        """Make the `datasets.Dataset` of the problems: `prompt`, `problem` and `skill`."""
        rows = [
            {"prompt": to_chat_messages(problem.messages), "problem": problem.id, "skill": problem.skill}
            for problem in self.problems.values()
        ]
        return load_datasets().Dataset.from_list(rows)

    def __call__(
        self,
        completions: Sequence[str | Sequence[Mapping[str, Any]]],
        problem: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        outcomes = [self._score(name, completion) for name, completion in zip(problem, completions, strict=True)]
        if log_metric is not None:
            log_metric("failures", float(sum(outcome is None for outcome in outcomes)))
        return outcomes

    def _score(self, name: str, completion: str | Sequence[Mapping[str, Any]]) -> float | None:
        if name not in self.problems:
            raise TaskError(f"there is no problem {name!r}; make the data set with make_dataset of the same TaskReward")
        text = completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
        outcome = self.problem_set.score(self.problems[name], text)
        return None if isinstance(outcome, Failure) else outcome.value
