"""Episodes with several sequences: group methods compare episodes, and every sequence has the advantage of its own."""

import torch

from palaestra.rl.agent_loop import make_captured_rollout, to_episodes
from palaestra.rl.collection import join_rollouts
from palaestra.rl.rollouts import Rollout
from palaestra.rl.turns import TurnEpisode
from palaestra.serving.capture import CapturedSequence


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
    assert rollout.get_episodes().number_B.tolist() == [0, 0, 0, 1, 2, 3, 3]
    assert rollout.get_episodes().first_sequences == [0, 3, 4, 5]
    returns_GK, valid_GK = rollout.group_returns(2)
    assert returns_GK.tolist() == [[1.0, 0.0], [0.0, 0.5]]
    assert valid_GK.tolist() == [[True, True], [False, True]]
    assert rollout.spread_over_sequences(returns_GK).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.5]
    assert rollout.stats.returns == [1.0, 0.0, 0.5]
    assert rollout.stats.failures == ["agent: it never called"]
    assert rollout.stats.lengths == [2 + 3 + 4, 2, 2 + 3]
    assert rollout.rewards_BT[2].tolist() == [0.0, 0.0, 0.0, 1.0]  # at the last token


def test_rollouts_of_workers_are_joined_by_episode() -> None:
    whole = make_rollout((3, 1.0, ""), (1, 0.0, ""), (2, 0.5, ""), (1, 0.25, ""))
    parts = [make_rollout((3, 1.0, ""), (1, 0.0, "")), make_rollout((2, 0.5, ""), (1, 0.25, ""))]
    joined = join_rollouts(parts)
    assert joined.get_episodes().number_B.tolist() == whole.get_episodes().number_B.tolist()
    assert torch.equal(joined.group_returns(2)[0], whole.group_returns(2)[0])
