"""What a policy did, ready to learn from: sequences of decisions.

A sequence is one environment over many episodes (PPO in classic environments) or one episode (language
models, group methods). Axes: B sequences, T decisions, S a selection of decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.learn.batches import batch_plan


@dataclass(slots=True)
class TokenInputs:
    """The exact tokens of a rollout.

    Arguments:
        prompts, responses: ids by sequence; the responses are everything behind the prompt.
        legal: by sequence and decision the ids that were allowed, `None` for all; empty where nothing was ever
            restricted.
        chosen: by sequence the places in the response that the policy chose, in order; empty where it chose all of them.
            What stands between them was given: the answers of tools and users.
    """

    prompts: list[tuple[int, ...]]
    responses: list[tuple[int, ...]]
    legal: list[list[np.ndarray | None]] = field(default_factory=list)
    chosen: list[np.ndarray] = field(default_factory=list)

    def decisions(self, sequence: int) -> tuple[int, ...]:
        """The ids that the policy chose in a sequence."""
        response = self.responses[sequence]
        return tuple(response[place] for place in self.chosen[sequence].tolist()) if self.chosen else response

    def reach(self, sequences: Sequence[int], width: int) -> int:
        """How many tokens of the responses of some sequences hold their first `width` decisions, and what follows them."""
        return max(1, *(len(self.responses[sequence]) for sequence in sequences)) if self.chosen else width


@dataclass(slots=True)
class ControlInputs:
    """The observations of a rollout as the policy saw them, and the actions that it took."""

    observations_BTF: torch.Tensor
    actions_BT: torch.Tensor


@dataclass(slots=True)
class Rollout:
    """Decisions with what they brought.

    Arguments:
        mask_BT: which entries are decisions; the rest is padding.
        terminated_BT, ended_BT: the episode was over for good, or over at all, after this decision.
        inputs: what the policy needs to judge the decisions again.
        last_inputs: for sequences that are environments: the observation after the last decision.
        final_inputs: by sequence and decision, the last observation of an episode whose slot has moved on.
        entropy_BT: of the distributions that the decisions were drawn from, where it was noted.
        reference_BT: the log-probs of the decisions under a reference.
        group_B: which sequences started alike; only where sequences are whole episodes.
        valid_B: sequences whose reward is known; a failed one teaches nothing.
        cut_B: episodes that were cut rather than over.
        limit: the most decisions that an episode may have; 0 where sequences are no episodes.
        records: what the sequences were made from, for whoever keeps them.
    """

    rewards_BT: torch.Tensor
    logprobs_BT: torch.Tensor
    mask_BT: torch.Tensor
    terminated_BT: torch.Tensor
    ended_BT: torch.Tensor
    inputs: Any
    last_inputs: torch.Tensor | None = None
    final_inputs: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    entropy_BT: torch.Tensor | None = None
    reference_BT: torch.Tensor | None = None
    group_B: torch.Tensor | None = None
    valid_B: torch.Tensor | None = None
    cut_B: torch.Tensor | None = None
    limit: int = 0
    episode_returns: list[float] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        return int(self.rewards_BT.shape[0])

    @property
    def decisions(self) -> int:
        return int(self.mask_BT.sum())

    def sequence_returns(self) -> list[float]:
        """The returns of sequences that are whole episodes, without those that failed."""
        returns_B = (self.rewards_BT * self.mask_BT).sum(-1)
        return [float(value) for value in (returns_B if self.valid_B is None else returns_B[self.valid_B])]

    @property
    def counted_BT(self) -> torch.Tensor:
        """The decisions that may be learned from: those of sequences that did not fail."""
        return self.mask_BT if self.valid_B is None else self.mask_BT & self.valid_B[:, None]


@dataclass(slots=True)
class Selection:
    """Some sequences, cut to the longest of them, or some decisions of all sequences."""

    index: torch.Tensor
    by_sequence: bool
    width: int = 0

    def of(self, values_BT: torch.Tensor) -> torch.Tensor:
        if self.by_sequence:
            return values_BT[self.index, : self.width]
        return values_BT.flatten(0, 1)[self.index]

    def __len__(self) -> int:
        return len(self.index)


def select(rollout: Rollout, by_sequence: bool, size: int, generator: np.random.Generator) -> list[Selection]:
    """One epoch in minibatches of `size` sequences of like length, or of `size` random decisions."""
    if not by_sequence:
        flat_S = rollout.counted_BT.flatten().nonzero()[:, 0]
        order_S = flat_S[torch.from_numpy(generator.permutation(len(flat_S)))]
        return [Selection(part, False) for part in _even_parts(order_S, size)]
    sequences = _teaching(rollout)
    lengths = rollout.mask_BT.sum(-1)
    plan = batch_plan([int(lengths[sequence]) for sequence in sequences], size, generator)
    return [select_sequences(rollout, [sequences[k] for k in batch]) for batch in plan]


def select_sequences(rollout: Rollout, sequences: Sequence[int]) -> Selection:
    index = torch.tensor(list(sequences), dtype=torch.long)
    return Selection(index, True, max(1, int(rollout.mask_BT[index].sum(-1).max())))


def everything(rollout: Rollout, by_sequence: bool, size: int) -> list[Selection]:
    """All sequences or decisions once, in parts of at most `size`; sequences sorted by length, to save padding."""
    if not by_sequence:
        flat_S = rollout.mask_BT.flatten().nonzero()[:, 0]
        return [Selection(part, False) for part in torch.split(flat_S, size)]
    order = rollout.mask_BT.sum(-1).argsort(stable=True).tolist()
    return [select_sequences(rollout, order[k : k + size]) for k in range(0, len(order), size)]


def _teaching(rollout: Rollout) -> list[int]:
    if rollout.valid_B is None:
        return list(range(rollout.num_sequences))
    return [int(sequence) for sequence in rollout.valid_B.nonzero()[:, 0]]


def _even_parts(order_S: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Parts of about `size`, none of which is a small rest: a rest of three decisions is a noisy step."""
    count = max(1, round(len(order_S) / size))
    return list(order_S.tensor_split(count))


def split_microbatches(selection: Selection, most: int) -> list[Selection]:
    """A minibatch in microbatches that fit in memory; their gradients add up to the minibatch's."""
    if not selection.by_sequence or len(selection) <= most:
        return [selection]
    count = -(-len(selection) // most)
    return [Selection(part, True, selection.width) for part in selection.index.tensor_split(count)]
