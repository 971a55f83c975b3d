"""A policy that samples whole responses from an engine, and the correction of its log-probs.

`EnginePolicy` takes the place of a `LanguageModelPolicy` in `collect_responses` and `collect_turns`. The learner evaluates
the sampled tokens with its own weights; `correct_importance` compares both log-probs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from palaestra.core.errors import EngineError, EnvError
from palaestra.core.records import Failure, Request, Sampling
from palaestra.engines.base import RolloutEngine, require_exact
from palaestra.models.families import unwrap_adapter
from palaestra.rl.distributed.ranks import gather_tensor
from palaestra.rl.losses import compute_importance_weights
from palaestra.rl.rollouts import Importance, Rollout


class EnginePolicy:
    """Samples with an engine. A fresh slot requests a whole response; `act` returns it token by token.

    All slots that start together are one batch of the engine. An entropy is estimated by the negative log-prob of the
    sampled token, whose mean over samples is the entropy.

    Arguments:
        engine: an engine with the learner's weights whose log-probs are those of the sampled distribution.
        temperature: the sampling temperature.
        vocabulary: number of the model's outputs that are tokens. An engine may sample other outputs; they are sampled
            again.
        max_tokens: maximum number of tokens of a response or message.
        context: maximum number of tokens of prompt and response together.
        stop: strings that end a response.
    """

    kept = None
    has_cache = False
    """A slot is given its whole conversation before each message."""

    def __init__(
        self,
        engine: RolloutEngine,
        temperature: float,
        vocabulary: int,
        max_tokens: int,
        context: int,
        stop: Sequence[str] = (),
    ) -> None:
        self.engine, self.temperature, self.vocabulary = engine, temperature, vocabulary
        self.max_tokens, self.context, self.stop = max_tokens, context, tuple(stop)
        self._version: int | None = None
        self.begin(0)

    def update_weights(self, model: torch.nn.Module, version: int) -> None:
        """Pass the learner's weights to the engine unless it has this version of them."""
        if version != self._version:
            self.engine.update_weights(iterate_weights(model))
            self._version = version

    def begin(self, slots: int) -> None:
        """Drop all sequences. The next `act` starts `slots` new ones."""
        self._ids: list[list[int]] = [[] for _ in range(slots)]
        self._prompt = [0] * slots
        self._ahead: list[deque[tuple[int, float]]] = [deque() for _ in range(slots)]

    def act(
        self,
        tokens_SL: np.ndarray,
        length_S: np.ndarray,
        fresh_S: np.ndarray,
        active_S: np.ndarray,
        uniform_S: np.ndarray,
        mask_SV: np.ndarray | None = None,
        waiting_S: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the next token of each slot with its log-prob and entropy; see `LanguageModelPolicy.act`.

        Arguments:
            uniform_S: the seeds of the requests of fresh slots.
        """
        if mask_SV is not None and not mask_SV.all():
            raise EnvError("the environment restricts the next token, which engines cannot do; use --rollout step")
        acting = np.flatnonzero(active_S if waiting_S is None else active_S & ~waiting_S).tolist()
        for slot in acting:
            if fresh_S[slot]:
                self._ids[slot] = tokens_SL[slot, : length_S[slot]].tolist()
                self._prompt[slot] = len(self._ids[slot])
                self._ahead[slot].clear()
        while empty := [slot for slot in acting if not self._ahead[slot]]:
            self._request(empty, uniform_S)
        chosen_S, logprobs_S = np.zeros(len(active_S), dtype=np.int64), np.zeros(len(active_S), dtype=np.float32)
        for slot in acting:
            chosen_S[slot], logprobs_S[slot] = self._ahead[slot].popleft()
            self._ids[slot].append(int(chosen_S[slot]))
        return chosen_S, logprobs_S, -logprobs_S

    def _request(self, slots: Sequence[int], uniform_S: np.ndarray) -> None:
        """Request the rest of some responses."""
        requests = []
        for slot in slots:
            ids = self._ids[slot]
            room = min(self.max_tokens - (len(ids) - self._prompt[slot]), self.context - len(ids))
            sampling = Sampling(max_tokens=max(1, room), temperature=self.temperature, stop=self.stop)
            # Integers of 53 bits: the precision of a uniform number.
            requests.append(Request((), sampling, int(uniform_S[slot] * 2**53), prompt_ids=tuple(ids)))
        for slot, (answer,) in zip(slots, self.engine.generate(requests), strict=True):
            if isinstance(answer, Failure):
                raise EngineError(f"the rollout engine failed ({answer.cause}): {answer.message}")
            require_exact(answer, self.engine.name)
            for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
                if token >= self.vocabulary:
                    # The rest is requested again with another seed, which samples from the other outputs.
                    uniform_S[slot] = (uniform_S[slot] + 0.618) % 1.0
                    break
                self._ahead[slot].append((token, logprob))


def iterate_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a model under the names of its checkpoint. A LoRA adapter is added to copies of its layers.

    The processes of a sharded model gather one tensor at a time; all of them must iterate.
    """
    base = unwrap_adapter(model)
    for name, tensor in base.state_dict().items():
        layer, adapted, leaf = name.rpartition(".base_layer.")
        if ".lora_" in name:
            continue
        if adapted and leaf == "weight":
            module = base.get_submodule(layer)
            for adapter in module.active_adapters:
                tensor = tensor + module.get_delta_weight(adapter).to(tensor.dtype)
        yield name.replace(".base_layer.", "."), gather_tensor(tensor.detach())


def correct_importance(rollout: Rollout, logprobs_BT: torch.Tensor, clip_max: float) -> dict[str, float]:
    """Prepare a rollout that was sampled by an engine or with other weights: the algorithm weights its actions.

    The weight of an action is the ratio of its probabilities under both, truncated at `clip_max` (truncated importance
    sampling, Yao et al. 2025; `vllm_importance_sampling_mode="token_truncate"` of TRL).

    Arguments:
        logprobs_BT: the log-probs of the actions under the learner's current weights.

    Returns:
        The mean and maximum absolute difference of the log-probs, and the mean weight.
    """
    sampling_BT = rollout.logprobs_BT
    rollout.logprobs_BT, rollout.importance = logprobs_BT, Importance(sampling_BT, clip_max)
    difference = (logprobs_BT - sampling_BT)[rollout.valid_BT].abs()
    if not difference.numel():
        return {}
    weights_BT = compute_importance_weights(logprobs_BT, sampling_BT, clip_max)
    return {
        "sampling_logprob_difference": float(difference.mean()),
        "sampling_logprob_difference_max": float(difference.max()),
        "importance_weight": float(weights_BT[rollout.valid_BT].mean()),
    }
