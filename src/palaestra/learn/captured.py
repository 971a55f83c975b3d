"""Turn the recorded calls of agents into episodes that algorithms learn from.

An episode has one sequence per conversation of its agent. All of them get the return of the episode, at their last token:
the environment's rewards belong to the agent's actions, which need not be single answers of the model. For the same reason
no end is bootstrapped: the value of a later state would count the return again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch

from palaestra.engines.capture import CapturedSequence
from palaestra.learn.rollouts import Rollout
from palaestra.learn.turns import TurnEpisode, make_turn_rollout


def to_episodes(episode: TurnEpisode, sequences: Sequence[CapturedSequence], reward: float) -> list[TurnEpisode]:
    """Return one record per sequence of an episode. A failed episode without calls has one empty record.

    Arguments:
        episode: the number, group, seed and end of the episode; it has no tokens.
        reward: the return of the episode.
    """
    if not sequences:
        return [episode]
    return [
        replace(
            episode,
            branch=branch,
            opening=sequence.opening,
            messages=sequence.messages,
            ids=list(sequence.ids),
            prompt=sequence.chosen[0],
            chosen=list(sequence.chosen),
            logprobs=list(sequence.logprobs),
            # As in `EnginePolicy`: the mean of the negative log-probs is the entropy.
            entropies=[-logprob for logprob in sequence.logprobs],
            ends=list(sequence.ends),
            rewards=[0.0] * (len(sequence.ends) - 1) + [reward],
            cut_messages=sequence.cut_messages,
            calls=sequence.calls,
        )
        for branch, sequence in enumerate(sequences)
    ]


def make_captured_rollout(records: Sequence[TurnEpisode], limit: int, version: int) -> Rollout:
    """Make a rollout from the records of some episodes, in order of their numbers.

    Arguments:
        limit: maximum number of decisions of a sequence.
        version: the number of updates of the oldest weights that sampled a token.
    """
    rollout = make_turn_rollout(records, limit)
    episodes = [list(group) for _, group in groupby(records, key=lambda record: record.number)]
    rollout.episode_B = torch.tensor([k for k, branches in enumerate(episodes) for _ in branches])
    valid = [branches for branches in episodes if not branches[0].failure]
    rollout.episode_returns = [branches[0].reward for branches in valid]
    rollout.episode_lengths = [sum(len(record.chosen) for record in branches) for branches in valid]
    rollout.failures = [branches[0].failure for branches in episodes if branches[0].failure]
    rollout.version = version
    return rollout
