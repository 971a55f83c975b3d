"""`RLHFEnv-v0`: responses to prompts, judged by a reward model or a function, held near a reference."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Message, Problem
from palaestra.envs.token.base import RewardFunction, TokenVectorEnv
from palaestra.envs.token.prompts import Prompt, PromptLike, Response
from palaestra.envs.token.single import TokenEnv

if TYPE_CHECKING:
    from palaestra.learn.reward_model import RewardModel


def prefer_brief(response: Response) -> float:
    """The preference that stands in where none is given: a response that ends, the sooner the better.

    From 0 (cut at the limit) to 1, so that `RLHFEnv-v0` can be tried without a reward model.
    """
    return 0.0 if response.truncated else 1.0 / (1.0 + 0.05 * len(response.token_ids))


class RLHFVectorEnv(TokenVectorEnv):
    """Prompts and a preference.

    Arguments:
        prompts: a sequence of prompts, or a file: JSON lines with a `prompt` (`.jsonl`), or a text with a
            prompt a line. Without any, the questions of `math-skills`.
        reward: a function of the `Response` (or of prompt and response, two texts), the folder of a reward
            model made by `train_reward`, or a loaded `RewardModel` (anything with its `score_responses`). Without
            any, `prefer_brief`.
        kl_coefficient: how much a nat of divergence from the reference costs. Whoever trains takes it from here
            and subtracts it token by token, from the log-probs that the policy *had when it chose the token*
            (`palaestra.learn.reference`); the environment's own reward is the preference alone.
        reference: the model that the policy is held to; empty means the policy as it was before training
            (with an adapter: the same weights, the adapter off).
        reward_device: where a reward model computes.
        arguments: of `TokenVectorEnv`.
    """

    def __init__(
        self,
        prompts: Sequence[PromptLike] | str | Path | None = None,
        reward: RewardFunction | Callable[[str, str], float] | str | Path | RewardModel | None = None,
        *,
        kl_coefficient: float = 0.05,
        reference: str = "",
        reward_device: str = "",
        max_tokens: int = 64,
        **arguments: Any,
    ) -> None:
        if kl_coefficient < 0:
            raise EnvError(f"kl_coefficient is at least 0; got {kl_coefficient}")
        self.kl_coefficient, self.reference = kl_coefficient, reference
        self._model: RewardModel | None = None
        function: RewardFunction | None = None
        if isinstance(reward, (str, Path)):
            from palaestra.learn.reward_model import load_reward_model

            self._model = load_reward_model(str(reward), reward_device)
        elif hasattr(reward, "score_responses"):
            self._model = cast("RewardModel", reward)
        elif callable(reward):
            function = _of_response(reward)
        elif reward is None:
            function = prefer_brief
        else:
            raise EnvError(
                f"reward is a function, the folder of a reward model or a RewardModel; got {type(reward).__name__}"
            )
        if isinstance(prompts, (str, Path)):
            prompts = read_prompts(Path(prompts))
        super().__init__(_questions() if prompts is None else prompts, function, max_tokens=max_tokens, **arguments)
        self._in_batch = self._model is not None

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        if self._model is None:
            return super().rewards(responses)
        return self._model.score_responses([_asked(r.prompt) for r in responses], [r.text for r in responses])


class RLHFEnv(TokenEnv):
    """The single view of `RLHFVectorEnv`, made by `gym.make("RLHFEnv-v0", **arguments)`."""

    vector_class = RLHFVectorEnv


def read_prompts(path: Path) -> list[str]:
    """Prompts of a file: JSON lines with a `prompt` each, or one prompt a line; blank lines are passed over.

    Raises:
        EnvError: the file cannot be read, a line of it cannot (named by its number), or it has no prompt.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvError(f"cannot read the prompts in {path}: {error}") from error
    # Not `splitlines`: it also breaks at signs that a JSON string may hold as they are.
    lines = [(number, line.strip("\r")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise EnvError(f"{path} has no prompts: expected at least one line")
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        return [line for _, line in lines]
    found = []
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise EnvError(f"{path}, line {number}: expected JSON with a 'prompt'; got {line[:40]!r}") from error
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise EnvError(f"{path}, line {number}: expected an object with a text 'prompt'; got {line[:40]!r}")
        found.append(row["prompt"])
    return found


def _asked(prompt: Prompt) -> str | tuple[Message, ...]:
    """What a reward model reads as the prompt: the whole conversation, where it is more than one question."""
    source = prompt.source.messages if isinstance(prompt.source, Problem) else prompt.source
    if not isinstance(source, Sequence) or not all(isinstance(one, Message) for one in source):
        return prompt.text
    return prompt.text if len(source) == 1 and source[0].role == "user" else tuple(source)


def _of_response(function: Callable[..., float]) -> RewardFunction:
    """A function of two texts as a function of the response; one of the response as it is."""
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

    @functools.wraps(function)  # So that errors name the user's file and line.
    def of_response(response: Response) -> float:
        return function(response.prompt.text, response.text)

    return of_response


def _questions() -> Sequence[PromptLike]:
    from palaestra.core.records import Split
    from palaestra.tasks.base import make_task

    return make_task("math-skills").problems(Split.TRAIN, 20, 0)
