"""Rollouts: the actions of a policy with their rewards, and the selection of minibatches from them.

A sequence is one environment over many episodes (PPO in classic environments) or one episode (language models, group
methods). Axes: B sequences, T actions, G groups, K members of a group, S selected actions. `Policy` is the interface
between policies and algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import plan_batches
from palaestra.rl.distributed.ranks import rank, world_size
from palaestra.rl.losses import compute_returns_BT

INTERRUPTED = ("dropped_groups", "cut_groups", "continued_groups")
"""The metrics of a rollout by workers that count its overdue groups."""


@dataclass(slots=True)
class TokenInputs:
    """The exact tokens of a rollout.

    Arguments:
        prompts, responses: token ids by sequence; a response is everything after the prompt.
        legal: the allowed ids by sequence and action, `None` for all; empty if nothing was ever restricted.
        chosen: by sequence, the positions in the response that the policy chose, in order; empty if it chose all of
            them. The other tokens are the messages of tools and users.
    """

    prompts: list[tuple[int, ...]]
    responses: list[tuple[int, ...]]
    legal: list[list[np.ndarray | None]] = field(default_factory=list)
    chosen: list[np.ndarray] = field(default_factory=list)

    def get_actions(self, sequence: int) -> tuple[int, ...]:
        """The ids that the policy chose in a sequence."""
        response = self.responses[sequence]
        return tuple(response[place] for place in self.chosen[sequence].tolist()) if self.chosen else response

    def reach(self, sequences: Sequence[int], width: int) -> int:
        """The number of response tokens that contain the first `width` actions of some sequences."""
        return max(1, *(len(self.responses[sequence]) for sequence in sequences)) if self.chosen else width


@dataclass(slots=True)
class ControlInputs:
    """The observations of a rollout as the policy received them, and its actions.

    Arguments:
        last_BF: the observation after the last action of each sequence; `None` if episodes do not continue there.
        finals: by sequence and action, the last observation of an episode whose slot was reset.
    """

    observations_BTF: torch.Tensor
    actions_BT: torch.Tensor
    last_BF: torch.Tensor | None = None
    finals: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Episodes:
    """The episodes of a rollout whose sequences are whole episodes, or parts of one.

    Arguments:
        group_B: the group of each sequence.
        valid_B: sequences with a known reward; a failed one is excluded from the loss.
        truncated_B: sequences whose episode was truncated.
        number_B: the episode of each sequence, from 0 in order, if an episode may have several sequences: the
            conversations of an agent. They share a reward. `None` if each sequence is an episode.
        limit: the maximum number of actions of an episode.
        records: the source of each sequence, for the run's store.
        versions: the number of updates of the oldest weights that sampled each sequence; empty if nobody counts them.
        continued: by sequence, the actions from which newer weights continued it, with their versions.
    """

    group_B: torch.Tensor
    valid_B: torch.Tensor
    truncated_B: torch.Tensor
    number_B: torch.Tensor | None = None
    limit: int = 0
    records: list[Any] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    continued: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    @property
    def first_sequences(self) -> list[int]:
        """The first sequence of each episode."""
        numbers = list(range(len(self.group_B))) if self.number_B is None else self.number_B.tolist()
        return [k for k, number in enumerate(numbers) if k == 0 or numbers[k - 1] != number]


@dataclass(slots=True)
class EpisodeStats:
    """The episodes that ended in a rollout.

    Arguments:
        returns, lengths: of the episodes with a known reward.
        failures: the messages of the others.
        num_truncated: the number of truncated episodes.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    num_truncated: int = 0


@dataclass(slots=True)
class Importance:
    """Actions that an engine or other weights sampled: losses are weighted by a ratio of probabilities.

    Arguments:
        sampling_logprobs_BT: the log-probs when the actions were sampled; `Rollout.logprobs_BT` are the learner's.
        clip_max: the maximum of the ratio.
    """

    sampling_logprobs_BT: torch.Tensor
    clip_max: float


@dataclass(slots=True)
class Rollout:
    """Actions and their rewards.

    Arguments:
        mask_BT: entries that are actions; the rest is padding.
        ended_BT: the last actions of episodes, terminated or truncated.
        terminated_BT: those of them after which nothing follows: the value after them is 0. The others are truncated
            episodes of an environment with `bootstrap_truncated`; the critic estimates the value after them.
        inputs: what the policy needs to evaluate the actions again, for example `TokenInputs` or `ControlInputs`.
        turn_BT: the turn of each action in its sequence, from 0; `None` if a sequence is one turn.
        episodes: `None` if a sequence is an environment with one episode after another.
        stats: the returns, lengths and failures of episodes.
        entropy_BT: the entropy of the distributions that the actions were drawn from, if it was recorded.
        reference_BT: the log-probs of the actions under a reference model.
        importance: `None` if the current weights sampled the actions.
    """

    rewards_BT: torch.Tensor
    logprobs_BT: torch.Tensor
    mask_BT: torch.Tensor
    terminated_BT: torch.Tensor
    ended_BT: torch.Tensor
    inputs: Any
    turn_BT: torch.Tensor | None = None
    episodes: Episodes | None = None
    stats: EpisodeStats = field(default_factory=EpisodeStats)
    entropy_BT: torch.Tensor | None = None
    reference_BT: torch.Tensor | None = None
    importance: Importance | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        return int(self.rewards_BT.shape[0])

    @property
    def num_actions(self) -> int:
        return int(self.mask_BT.sum())

    @property
    def valid_B(self) -> torch.Tensor:
        """Sequences with a known reward."""
        return torch.ones_like(self.mask_BT[:, 0]) if self.episodes is None else self.episodes.valid_B

    @property
    def valid_BT(self) -> torch.Tensor:
        """The actions of valid sequences."""
        return self.mask_BT & self.valid_B[:, None]

    @property
    def returns_B(self) -> torch.Tensor:
        """The sum of the rewards of each sequence."""
        return (self.rewards_BT * self.mask_BT).sum(-1)

    def to(self, device: torch.device) -> Rollout:
        """The same rollout with its tensors on `device`. Token ids stay in lists."""
        moved: Rollout = self if self.rewards_BT.device == device else _move(self, device)
        return moved

    def get_episodes(self) -> Episodes:
        """Return the episodes.

        Raises:
            SettingsError: sequences are not episodes.
        """
        if self.episodes is None:
            raise SettingsError("group methods need whole episodes in groups; this rollout has no groups")
        return self.episodes

    def mark_version(self, version: int) -> Rollout:
        """Note that weights after `version` updates sampled all sequences."""
        self.get_episodes().versions = [version] * self.num_sequences
        self.get_episodes().continued = [()] * self.num_sequences
        return self

    def group_returns(self, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The returns of the episodes by group `[G, K]`, and which of them are valid.

        The return of an episode with several sequences is their mean return: they share a reward, and may differ in a
        penalty of their tokens.

        Raises:
            SettingsError: the episodes are not in groups of `group_size`.
        """
        episodes = self.get_episodes()
        returns_B, valid_B = self.returns_B, episodes.valid_B
        if episodes.number_B is not None:
            counts_E = torch.bincount(episodes.number_B)
            returns_B = torch.zeros_like(counts_E, dtype=returns_B.dtype).index_add(0, episodes.number_B, returns_B)
            returns_B, valid_B = returns_B / counts_E, valid_B[episodes.first_sequences]
        if len(returns_B) % group_size:
            raise SettingsError(f"{len(returns_B)} episodes cannot be divided into groups of {group_size}")
        return returns_B.view(-1, group_size), valid_B.view(-1, group_size)

    def group_turn_returns(self, turns: Turns, group_size: int, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The rewards from each turn to the end of its episode by group `[G, K, N]`, and which turns are of valid episodes.

        Arguments:
            gamma: discount per turn.

        Raises:
            SettingsError: an episode has several sequences, which share one reward.
        """
        if self.get_episodes().number_B is not None:
            raise SettingsError("credit per turn needs the reward of each turn; an agent's episode has one reward")
        rewards_BN, ends = (
            turns.sum_BN(self.rewards_BT),
            (turns.last_BN(self.terminated_BT), turns.last_BN(self.ended_BT)),
        )
        returns_BN = compute_returns_BT(rewards_BN, torch.zeros_like(rewards_BN), *ends, gamma)
        shape = (-1, group_size, returns_BN.shape[1])
        return returns_BN.view(shape), (turns.reached_BN & self.valid_B[:, None]).view(shape)

    def spread_over_sequences(self, values_GK: torch.Tensor) -> torch.Tensor:
        """The value of its episode for each sequence."""
        number_B = self.get_episodes().number_B
        return values_GK.flatten() if number_B is None else values_GK.flatten()[number_B]


class Turns:
    """The turns of sequences that are episodes: sums and first or last values of their actions, `[B, N]`.

    Arguments:
        rollout: of a turn environment.

    Raises:
        SettingsError: the rollout has no turns.
    """

    def __init__(self, rollout: Rollout) -> None:
        if rollout.turn_BT is None:
            raise SettingsError(
                "credit and loss aggregation per turn need a turn environment; this rollout has no turns"
            )
        self.index_BT, self.mask_BT = rollout.turn_BT, rollout.mask_BT
        self.count_BN = sum_by_turn(self.mask_BT.long(), self.index_BT, int(self.index_BT.max()) + 1)
        self._end_BN = self.count_BN.cumsum(1)

    @property
    def reached_BN(self) -> torch.Tensor:
        """The turns that exist; sequences with fewer turns are padded."""
        return self.count_BN > 0

    @property
    def is_first_BT(self) -> torch.Tensor:
        """The first action of each turn."""
        place_BT = torch.arange(self.mask_BT.shape[1], device=self.mask_BT.device)
        return self.mask_BT & (place_BT == self.spread_BT(self._end_BN - self.count_BN))

    @property
    def weights_BT(self) -> torch.Tensor:
        """Weights of the actions that add up to 1 in each turn."""
        return self.mask_BT / self.spread_BT(self.count_BN).clamp(min=1)

    def sum_BN(self, values_BT: torch.Tensor) -> torch.Tensor:
        return sum_by_turn(values_BT * self.mask_BT, self.index_BT, self.count_BN.shape[1])

    def first_BN(self, values_BT: torch.Tensor) -> torch.Tensor:
        return self._take(values_BT, self._end_BN - self.count_BN)

    def last_BN(self, values_BT: torch.Tensor) -> torch.Tensor:
        return self._take(values_BT, self._end_BN - 1)

    def spread_BT(self, values_BN: torch.Tensor) -> torch.Tensor:
        """The value of its turn for each action."""
        return values_BN.gather(1, self.index_BT)

    def _take(self, values_BT: torch.Tensor, place_BN: torch.Tensor) -> torch.Tensor:
        place_BN = place_BN.clamp(0, self.mask_BT.shape[1] - 1)
        return values_BT.gather(1, place_BN).masked_fill(~self.reached_BN, 0)


def sum_by_turn(values_BT: torch.Tensor, index_BT: torch.Tensor | None, num_turns: int) -> torch.Tensor:
    """The sum over the actions of each turn, or of all actions without an index. Padding must be 0."""
    if index_BT is None:
        return values_BT.sum(-1, keepdim=True)
    return values_BT.new_zeros(len(values_BT), num_turns).scatter_add(1, index_BT, values_BT)


def _move(value: Any, device: torch.device) -> Any:
    """The same value with its tensors, and those of its parts, on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _move(part, device) for name, part in value.items()}
    if isinstance(value, (Rollout, ControlInputs, Episodes, Importance)):
        return replace(value, **{field.name: _move(getattr(value, field.name), device) for field in fields(value)})
    return value


def make_episode_rollout(
    inputs: Any,
    *,
    logprobs: Sequence[Sequence[float]],
    rewards: Sequence[Sequence[float]],
    returns: Sequence[float],
    truncated: Sequence[bool],
    failures: Sequence[str],
    groups: Sequence[int],
    records: Sequence[Any],
    turns: Sequence[Sequence[float]] | None = None,
    entropies: Sequence[Sequence[float]] | None = None,
    bootstrapped: Sequence[bool] | None = None,
    limit: int = 0,
) -> Rollout:
    """Make a rollout whose sequences are whole episodes of different lengths.

    Arguments:
        logprobs, rewards, turns, entropies: one value for each action, by episode.
        returns, truncated, groups, records: one value for each episode; see `Episodes`.
        failures: by episode; empty for a valid one.
        bootstrapped: by episode, whether the critic estimates the value after its last action; by default it is 0.
    """
    lengths = [len(row) for row in logprobs]
    length_B1 = torch.tensor(lengths)[:, None]
    width = max(1, *lengths)
    place_BT = torch.arange(width)[None]
    last_BT = place_BT == length_B1 - 1
    return Rollout(
        rewards_BT=_to_table(rewards, width),
        logprobs_BT=_to_table(logprobs, width),
        mask_BT=place_BT < length_B1,
        terminated_BT=last_BT if bootstrapped is None else last_BT & ~torch.tensor(bootstrapped)[:, None],
        ended_BT=last_BT,
        inputs=inputs,
        turn_BT=None if turns is None else _to_table(turns, width).long(),
        episodes=Episodes(
            group_B=torch.tensor(groups),
            valid_B=torch.tensor([not failure for failure in failures]),
            truncated_B=torch.tensor(truncated),
            limit=limit,
            records=list(records),
        ),
        stats=EpisodeStats(
            returns=[value for value, failure in zip(returns, failures, strict=True) if not failure],
            lengths=lengths,
            failures=[failure for failure in failures if failure],
        ),
        entropy_BT=None if entropies is None else _to_table(entropies, width),
    )


@dataclass(slots=True)
class Selection:
    """Some sequences, cut to the longest of them, or some actions of all sequences.

    Arguments:
        padded: whether the last sequence is padding: it is evaluated and has no loss.
        rows: the rows of a microbatch in its minibatch.
    """

    index: torch.Tensor
    by_sequence: bool
    width: int = 0
    padded: bool = False
    rows: torch.Tensor | slice = field(default_factory=lambda: slice(None))

    def take(self, values_BT: torch.Tensor) -> torch.Tensor:
        """The selected entries: `[sequences, width]`, or `[actions]`."""
        if self.by_sequence:
            return values_BT[self.index, : self.width]
        return values_BT.flatten(0, 1)[self.index]

    def take_mask(self, mask_BT: torch.Tensor) -> torch.Tensor:
        """The selected entries of a mask, with zeros for padding."""
        mask = self.take(mask_BT)
        if self.padded:
            mask[-1] = False
        return mask

    def cut(self, rollout: Rollout) -> Selection:
        """The same sequences, cut to the longest of them."""
        return replace(self, width=select_sequences(rollout, self.index.tolist()).width)

    def __len__(self) -> int:
        return len(self.index)


def select_sequences(rollout: Rollout, sequences: Sequence[int]) -> Selection:
    index = torch.tensor(list(sequences), dtype=torch.long)
    return Selection(index, True, max(1, int(rollout.mask_BT[index].sum(-1).max())))


def select_all(rollout: Rollout, by_sequence: bool, max_size: int | None = None) -> list[Selection]:
    """All sequences or actions, in parts of at most `max_size`; sequences are sorted by length to avoid padding."""
    max_size = max_size or rollout.mask_BT.numel()
    if not by_sequence:
        flat_S = rollout.mask_BT.flatten().nonzero()[:, 0]
        return [Selection(part, False) for part in torch.split(flat_S, max_size)]
    return _select_sorted(rollout, max_size, slice(None))


def select_share(rollout: Rollout, max_size: int) -> list[Selection]:
    """This process's share of the sequences, in parts of at most `max_size`, sorted by length."""
    return _select_sorted(rollout, max_size, slice(rank(), None, world_size()))


def _select_sorted(rollout: Rollout, max_size: int, share: slice) -> list[Selection]:
    order = rollout.mask_BT.sum(-1).argsort(stable=True).tolist()[share]
    return [select_sequences(rollout, order[k : k + max_size]) for k in range(0, len(order), max_size)]


def make_minibatches(
    rollout: Rollout, by_sequence: bool, batch_size: int, generator: np.random.Generator
) -> list[Selection]:
    """The minibatches of one epoch: `batch_size` sequences of similar length, or about `batch_size` random actions."""
    if not by_sequence:
        flat_S = rollout.valid_BT.flatten().nonzero()[:, 0]
        order_S = flat_S[torch.from_numpy(generator.permutation(len(flat_S)))]
        # Parts of equal size: a remainder of a few actions would be a noisy step.
        count = max(1, round(len(order_S) / batch_size))
        return [Selection(part, False) for part in order_S.tensor_split(count)]
    sequences = [int(sequence) for sequence in rollout.valid_B.nonzero()[:, 0]]
    lengths = rollout.mask_BT.sum(-1)
    plan = plan_batches([int(lengths[sequence]) for sequence in sequences], batch_size, generator)
    return [select_sequences(rollout, [sequences[k] for k in batch]) for batch in plan]


def make_group_minibatches(
    rollout: Rollout, sequences: Sequence[int], num_minibatches: int, generator: np.random.Generator
) -> list[Selection]:
    """The minibatches of one epoch of a group method: a random partition of `sequences`.

    Each minibatch is sorted so that microbatches need little padding, and so that the members of a group, which share a
    prompt, stay together.
    """
    groups, lengths = rollout.get_episodes().group_B.tolist(), rollout.mask_BT.sum(-1).tolist()
    order = generator.permutation(len(sequences))
    size = -(-len(sequences) // num_minibatches)
    minibatches = []
    for start in range(0, len(order), size):
        chosen = [sequences[k] for k in order[start : start + size]]
        longest: dict[int, int] = {}
        for k in chosen:
            longest[groups[k]] = max(longest.get(groups[k], 0), lengths[k])
        chosen.sort(key=lambda k: (longest[groups[k]], groups[k], lengths[k]))
        minibatches.append(select_sequences(rollout, chosen))
    return minibatches


def split_microbatches(minibatch: Selection, max_size: int) -> list[Selection]:
    """Split this process's share of a minibatch into microbatches that fit into memory.

    Every process has the same number of microbatches of the same size, because a sharded model computes in all processes
    at once. A share that is one sequence too short is padded. Single actions are never split.
    """
    processes, number = world_size(), rank()
    if not minibatch.by_sequence or (processes == 1 and len(minibatch) <= max_size):
        return [minibatch]
    # Sequences are sorted by length, so every process gets the same work.
    rows_S = torch.arange(number, len(minibatch), processes)
    size = -(-len(minibatch) // processes)
    padded = len(rows_S) < size
    if padded:
        rows_S = torch.cat([rows_S, torch.zeros(1, dtype=torch.long)])
    parts = rows_S.tensor_split(-(-size // max_size))
    return [
        Selection(minibatch.index[rows], True, minibatch.width, padded and k + 1 == len(parts), rows)
        for k, rows in enumerate(parts)
    ]


@dataclass(slots=True)
class ActionEvaluation:
    """Actions of a rollout, evaluated under the current weights with gradients.

    Arguments:
        logprobs: the log-prob of each action, in the shape of the selection.
        entropy: the entropy of each action's distribution; `None` if not requested.
        values: the critic's value of the state before each action; `None` without a critic.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Policy(Protocol):
    """An actor and, if the algorithm needs one, its critic."""

    by_sequence: bool
    """Whether minibatches are whole sequences (language models) or single actions."""
    has_critic: bool
    microbatch_size: int
    """Number of sequences in one pass with gradients; 0 if the policy derives it. It is halved if memory is short."""

    @property
    def device(self) -> torch.device:
        """Where the policy computes. An update moves the rollout there."""
        ...

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Evaluate the selected actions of a rollout under the current weights."""
        ...

    def max_microbatch_size(self, rollout: Rollout) -> int:
        """The maximum number of sequences in one pass with gradients."""
        ...

    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of all states, and of the states after them; without gradients."""
        ...

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        """Parameter groups for an optimizer."""
        ...


def _to_table(rows: Sequence[Sequence[float]], width: int) -> torch.Tensor:
    """Rows of different lengths, padded with zeros to `[rows, width]`."""
    table = np.zeros((len(rows), width), dtype=np.float32)
    for k, row in enumerate(rows):
        table[k, : len(row)] = row
    return torch.from_numpy(table)
