"""`palaestra/Prompts-v0`: the prompts of a user's own data, with the user's reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.errors import EnvError
from palaestra.core.records import Split
from palaestra.envs.token.base import TokenEnv, TokenVectorEnv
from palaestra.envs.token.rewards import RewardLike
from palaestra.tasks.base import EVERY
from palaestra.tasks.data import DataTask


class _PromptData(DataTask):
    """Data whose rows need no answer."""

    is_scored = False


class PromptsVectorEnv(TokenVectorEnv):
    """Prompts of a file, a folder or a dataset on the hub; the reward is the weighted sum of reward functions.

    Training uses the train rows if the data has splits. Results are the mean reward on prompts that are held out.

    Arguments:
        prompts: the data, as for a task of own data (docs/data.md). Rows need no answer.
        reward, reward_weights: functions with the signature of TRL's; see `palaestra.envs.token.rewards`.
        task_kwargs: names of columns, `template` and `system`, as for a task of own data.
        arguments: arguments of `TokenVectorEnv`.
    """

    def __init__(
        self,
        prompts: str,
        reward: RewardLike | Sequence[RewardLike] | None = None,
        *,
        task_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int = 72,
        **arguments: Any,
    ) -> None:
        if not reward:
            raise EnvError(
                "prompts need a reward: pass reward=function, or --reward FILE.py:function; to score answers instead, pass "
                f"the data as the task: task={prompts!r}"
            )
        data = self.check_data(prompts, task_kwargs)
        splits = [Split.TRAIN] if any(row.split for row in data.rows) else list(Split)
        problems = [problem for split in splits for problem in data.problems(split, EVERY, seed=0)]
        super().__init__(problems, reward, max_tokens=max_tokens, **arguments)

    @staticmethod
    def check_data(prompts: str, task_kwargs: Mapping[str, Any] | None) -> DataTask:
        """Read the data. Raises for a row that cannot be used."""
        if "scorer" in (task_kwargs or {}):
            raise EnvError("the option 'scorer' has no effect on prompts; to score answers, pass the data as the task")
        data = _PromptData(prompts, scorer="exact", **(task_kwargs or {}))
        _ = data.rows
        return data


class PromptsEnv(TokenEnv):
    """The single-environment view of `PromptsVectorEnv`, for `gym.make("palaestra/Prompts-v0", **arguments)`."""

    vector_class = PromptsVectorEnv
