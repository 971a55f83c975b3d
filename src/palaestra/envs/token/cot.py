"""`palaestra/CoT-v0`: chain-of-thought responses with a verifiable reward, on any task of `palaestra.tasks`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Completion, Failure, Problem, Score
from palaestra.envs.base import Options, resolve_task, select_problems
from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.token.prompts import Response
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.evaluate import score, score_all

_FORMATS = {
    "answer": r"(?s).*\bAnswer: \S.*",
    "tags": r"(?s)\s*<think>.+?</think>\s*<final_answer>.+?</final_answer>\s*",
}
"""Regular expressions of the format reward: a line `Answer: ...`, or tags around reasoning and answer."""


class CoTVectorEnv(TokenVectorEnv):
    """Problems of a task; the reward is the task's score of the response, from 0 to 1.

    With a format reward `f` it is `(1 - f) * score + f * (the response has the format and ended)`. If scoring fails,
    the response has a failure instead of a reward.

    Arguments:
        task: a name (`palaestra list tasks`), or a task.
        split: the split of the problems. Results are measured on the test split, which is disjoint.
        problems: number of problems per skill, 0 for all of a published data set; by default 200, or all
            problems of a skill that has fewer.
        skills: names of skills; all if empty.
        format_reward: the fraction `f`, from 0 to 1.
        format: `"answer"`, `"tags"`, or a regular expression that the whole response must match.
        problem_seed: seed of the choice of problems.
        task_kwargs: options of a task that is given by its name, for example `{"path": "data"}`.
        arguments: arguments of `TokenVectorEnv`. With `reward` the functions are the reward of training; results are
            measured with the task's score.
    """

    task: Task

    def __init__(
        self,
        task: str | Task = "math-skills",
        *,
        split: str = "train",
        problems: int | None = None,
        skills: str | Sequence[str] = (),
        format_reward: float = 0.0,
        format: str = "answer",
        problem_seed: int = 0,
        task_kwargs: Options | None = None,
        max_tokens: int = 72,
        **arguments: Any,
    ) -> None:
        if not 0.0 <= format_reward <= 1.0:
            raise EnvError(f"format_reward must be from 0 to 1; got {format_reward}")
        self.task = resolve_task(task, task_kwargs)
        get_hooks(self.task).check_scoring()
        drawn = select_problems(self.task, split, problems, skills, problem_seed)
        self.format_reward = format_reward
        try:
            self._format = re.compile(_FORMATS.get(format, format))
        except re.error as error:
            raise EnvError(f"format must be answer, tags or a regular expression; got {format!r}: {error}") from error
        super().__init__(drawn, max_tokens=max_tokens, **arguments)
        if self._functions is None:  # A subclass that overrides `reward` is called once per response.
            self._in_batch = get_hooks(self.task).concurrent_scoring and type(self).reward is CoTVectorEnv.reward

    def reward(self, response: Response) -> float:
        value = self._to_reward(response, score(self.task, *_answer(response)))
        if isinstance(value, RewardError):
            raise value
        return value

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        """Score several responses in parallel, if the task allows it."""
        if len(responses) == 1:
            return [self.reward(responses[0])]
        outcomes = score_all(self.task, [_answer(response) for response in responses])
        return list(map(self._to_reward, responses, outcomes))

    def _to_reward(self, response: Response, outcome: Score | Failure) -> float | RewardError:
        if isinstance(outcome, Failure):
            return RewardError(f"{outcome.cause}: {outcome.message}")
        if not self.format_reward:
            return outcome.value
        formed = not response.truncated and self._format.fullmatch(response.text) is not None
        return (1.0 - self.format_reward) * outcome.value + self.format_reward * formed


def _answer(response: Response) -> tuple[Problem, Completion]:
    problem = response.prompt.source
    if not isinstance(problem, Problem):
        raise EnvError("this prompt is not a problem of the task, so its response cannot be scored")
    return problem, Completion(response.text, response.token_ids, stop_reason=response.stop_reason)


class CoTEnv(TokenEnv):
    """The single-environment view of `CoTVectorEnv`, for `gym.make("palaestra/CoT-v0", **arguments)`."""

    vector_class = CoTVectorEnv
