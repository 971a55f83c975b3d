"""Episodes with several sequences: group methods compare episodes, and every sequence has the advantage of its own."""

import torch

from palaestra.engines.capture import CapturedSequence
from palaestra.learn.captured import make_captured_rollout, to_episodes
from palaestra.learn.rollouts import Rollout
from palaestra.learn.shares import join_rollouts
from palaestra.learn.turns import TurnEpisode


def make_sequence(own: int) -> CapturedSequence:
    return CapturedSequence(1, (), [7] * (own + 2), [*range(2, own + 2)], [-0.5] * own, [1, own], [0, 1])


def make_rollout(*episodes: tuple[int, float, str]) -> Rollout:
    """Episodes with a number of sequences, a reward and a failure; two episodes per group."""
    records = [
        record
        for number, (branches, reward, failure) in enumerate(episodes)
        for record in to_episodes(
            TurnEpisode(number, number // 2, 3, failure=failure),
            [make_sequence(k + 2) for k in range(branches)],
            reward,
        )
    ]
    return make_captured_rollout(records, limit=10, version=0)


def test_groups_are_of_episodes_and_values_reach_every_sequence() -> None:
    rollout = make_rollout((3, 1.0, ""), (1, 0.0, ""), (0, 0.0, "agent: it never called"), (2, 0.5, ""))
    assert rollout.episode_B is not None
    assert rollout.episode_B.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert rollout.first_sequences == [0, 3, 4, 5]
    returns_GK, valid_GK = rollout.group_returns(2)
    assert returns_GK.tolist() == [[1.0, 0.0], [0.0, 0.5]]
    assert valid_GK.tolist() == [[True, True], [False, True]]
    assert rollout.spread_over_sequences(returns_GK).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.5]
    assert rollout.episode_returns == [1.0, 0.0, 0.5]
    assert rollout.failures == ["agent: it never called"]
    assert rollout.episode_lengths == [2 + 3 + 4, 2, 2 + 3]
    assert rollout.rewards_BT[2].tolist() == [0.0, 0.0, 0.0, 1.0]  # at the last token


def test_rollouts_of_workers_are_joined_by_episode() -> None:
    whole = make_rollout((3, 1.0, ""), (1, 0.0, ""), (2, 0.5, ""), (1, 0.25, ""))
    parts = [make_rollout((3, 1.0, ""), (1, 0.0, "")), make_rollout((2, 0.5, ""), (1, 0.25, ""))]
    joined = join_rollouts(parts)
    assert whole.episode_B is not None and joined.episode_B is not None  # noqa: PT018
    assert joined.episode_B.tolist() == whole.episode_B.tolist()
    assert torch.equal(joined.group_returns(2)[0], whole.group_returns(2)[0])
