"""`palaestra/RLHF-v0`: responses to prompts, scored by a reward model or a function, with a KL penalty to a reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from palaestra.core.errors import EnvError, RewardError, TaskError
from palaestra.core.records import Message, Problem
from palaestra.core.registry import Registry
from palaestra.core.settings import short_repr
from palaestra.envs.token.base import RewardFunction, TokenEnv, TokenVectorEnv
from palaestra.envs.token.prompts import Prompt, PromptLike, Response
from palaestra.envs.token.rewards import RewardLike
from palaestra.tasks.sources import ENDINGS, Row, file_rows

_REWARDS = Registry("reward", "palaestra.rewards")
"""Functions that load a `ResponseScorer` from a folder."""


def prefer_brief(response: Response) -> float:
    """The default reward: 0 for a truncated response, otherwise higher for a shorter one.

    It lets `palaestra/RLHF-v0` run without a reward model.
    """
    return 0.0 if response.truncated else 1.0 / (1.0 + 0.05 * len(response.token_ids))


@runtime_checkable
class ResponseScorer(Protocol):
    """Scores responses in a batch, as `palaestra.rewards.model.RewardModel` does."""

    def score_responses(self, prompts: Sequence[str | tuple[Message, ...]], responses: Sequence[str]) -> list[float]:
        """Return one score per response. A prompt is a text or a conversation."""
        ...


class RLHFVectorEnv(TokenVectorEnv):
    """Prompts with a reward model or reward function.

    Arguments:
        prompts: a sequence of prompts, or a file: JSON lines or another file of data with a `prompt` in each row, or a
            text file with one prompt per line. Default: the questions of `math-skills`.
        reward: a function of the `Response` or of two texts (prompt and response), the folder of a reward model
            trained by `train_reward`, a `ResponseScorer` such as a loaded `RewardModel`, or a list of functions as for
            `TokenVectorEnv`. Default: `prefer_brief`.
        kl_coef: weight of the KL divergence from the reference model, see `TokenEnvContract`. Training applies
            it per token (`palaestra.rl.policies.language_model`); it is not part of this environment's reward.
        reference: name of the reference model. Empty means the policy before training; with a LoRA adapter that is the
            same weights with the adapter disabled.
        reward_device: device of the reward model.
        arguments: arguments of `TokenVectorEnv`.
    """

    def __init__(
        self,
        prompts: Sequence[PromptLike] | str | Path | None = None,
        reward: RewardFunction
        | Callable[[str, str], float]
        | Sequence[RewardLike]
        | str
        | Path
        | ResponseScorer
        | None = None,
        *,
        kl_coef: float = 0.05,
        reference: str = "",
        reward_device: str = "",
        max_tokens: int = 64,
        **arguments: Any,
    ) -> None:
        if kl_coef < 0:
            raise EnvError(f"kl_coef must be at least 0; got {kl_coef}")
        self.kl_coef, self.reference = kl_coef, reference
        self._model: ResponseScorer | None = None
        function: RewardFunction | Sequence[RewardLike] | None = None
        if isinstance(reward, (str, Path)):
            self._model = _REWARDS.get("model")(str(reward), reward_device)
        elif isinstance(reward, ResponseScorer):
            self._model = reward
        elif isinstance(reward, list | tuple):
            function = reward
        elif callable(reward):
            function = _to_response_function(reward)
        elif reward is None:
            function = prefer_brief
        else:
            raise EnvError(
                f"reward must be a function, the folder of a reward model or a RewardModel; got {type(reward).__name__}"
            )
        if isinstance(prompts, (str, Path)):
            prompts = _read_prompts(Path(prompts))
        super().__init__(_questions() if prompts is None else prompts, function, max_tokens=max_tokens, **arguments)
        if self._functions is None:
            self._in_batch = self._model is not None

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        if self._model is None:
            return super().rewards(responses)
        return self._model.score_responses(
            [_to_scorer_prompt(r.prompt) for r in responses], [r.text for r in responses]
        )


class RLHFEnv(TokenEnv):
    """The single-environment view of `RLHFVectorEnv`, for `gym.make("palaestra/RLHF-v0", **arguments)`."""

    vector_class = RLHFVectorEnv


def _read_prompts(path: Path) -> list[str]:
    """Read prompts from a file of data, as tasks read it, with a `prompt` in each row, or from a file with one per line.

    Blank lines are skipped.

    Raises:
        EnvError: the file or one of its rows cannot be read, or it has no prompts.
    """
    path = path.expanduser()
    try:
        if path.name.endswith(ENDINGS):
            prompts = [_read_prompt(where, row) for where, row in file_rows(path)]
        else:
            text = path.read_text(encoding="utf-8-sig")
            prompts = [line.strip("\r") for line in text.split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError, TaskError) as error:
        raise EnvError(f"cannot read the prompts in {path}: {error}") from error
    if not prompts:
        raise EnvError(f"{path} has no prompts: expected at least one line")
    return prompts


def _read_prompt(where: str, row: Row) -> str:
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise TaskError(f"{where}: expected an object with a text 'prompt'; got {short_repr(row)}")
    return prompt


def _to_scorer_prompt(prompt: Prompt) -> str | tuple[Message, ...]:
    """Return the prompt for a reward model: a text, or the conversation if it is more than one user message."""
    source = prompt.source.messages if isinstance(prompt.source, Problem) else prompt.source
    if not isinstance(source, Sequence) or not all(isinstance(message, Message) for message in source):
        return prompt.text
    return prompt.text if len(source) == 1 and source[0].role == "user" else tuple(source)


def _to_response_function(function: Callable[..., float]) -> RewardFunction:
    """Wrap a function of two texts as a function of the response. Other functions are returned unchanged."""
    import inspect

    try:
        needed = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return function
    if len(needed) != 2:
        return function

    @functools.wraps(function)  # Errors then have the user's file and line.
    def score_response(response: Response) -> float:
        return function(response.prompt.text, response.text)

    return score_response


def _questions() -> Sequence[PromptLike]:
    from palaestra.core.records import Split
    from palaestra.tasks.base import make_task

    return make_task("math-skills").problems(Split.TRAIN, 20, 0)
