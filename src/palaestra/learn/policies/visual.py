"""Vision-language models as policies: they sample through their engine and evaluate whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.learn.batches import IGNORE, Encoded, collate, split_by_shape
from palaestra.learn.policies.base import ActionEvaluation
from palaestra.learn.rollouts import Rollout, Selection, select_all

MICROBATCH_SIZE = 16
"""Answers in one pass with gradients."""


@dataclass(slots=True)
class VisualInputs:
    """The exact tokens of a rollout with their images, by sequence."""

    rows: list[Encoded]


class VisualPolicy:
    """A vision-language model as the policy of a group method, at temperature 1.

    Arguments:
        model: an image-text-to-text model of transformers, or peft's wrapper of one.
    """

    by_sequence, has_critic = True, False

    def __init__(self, model: Any, pad_id: int, microbatch_size: int = MICROBATCH_SIZE) -> None:
        self.model, self.pad_id, self.microbatch_size = model, pad_id, microbatch_size

    def train(self, mode: bool = True) -> VisualPolicy:
        """Keep dropout off while learning: see `LanguageModelPolicy.train`."""
        self.model.eval()
        return self

    def eval(self) -> VisualPolicy:
        return self.train(False)

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Log-probs and entropies at the tokens of the selected sequences, `[sequences, width]`."""
        rows = [rollout.inputs.rows[sequence] for sequence in selection.index.tolist()]
        logprobs: list[torch.Tensor] = [torch.zeros(0)] * len(rows)
        entropies = list(logprobs)
        for part in split_by_shape(range(len(rows)), rows):
            batch = collate([rows[place] for place in part], self.pad_id, self.model.device)
            labels_BT = batch.pop("labels")[:, 1:]
            logp_BTV = self.model(**batch).logits[:, :-1].float().log_softmax(-1)
            chosen_BT = logp_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
            for place, labels_T, chosen_T, logp_TV in zip(part, labels_BT, chosen_BT, logp_BTV, strict=True):
                is_response_T = labels_T != IGNORE
                logprobs[place] = _pad(chosen_T[is_response_T], selection.width)
                if entropy:
                    entropies[place] = _pad(-(logp_TV.exp() * logp_TV).sum(-1)[is_response_T], selection.width)
        return ActionEvaluation(torch.stack(logprobs).cpu(), torch.stack(entropies).cpu() if entropy else None)

    def max_microbatch_size(self, rollout: Rollout) -> int:
        return self.microbatch_size

    @torch.no_grad()
    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of all tokens under the current weights."""
        self.model.eval()
        logprobs_BT = torch.zeros_like(rollout.rewards_BT)
        with select_matmul_kernels():
            for selection in select_all(rollout, True, self.microbatch_size):
                logprobs_BT[selection.index, : selection.width] = self.evaluate_actions(rollout, selection).logprobs
        return logprobs_BT * rollout.mask_BT

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        return [{"params": [p for p in self.model.parameters() if p.requires_grad], "lr": learning_rate}]


def _pad(values_T: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values_T, (0, width - len(values_T)))
