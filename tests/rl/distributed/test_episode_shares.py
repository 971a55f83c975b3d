"""Episodes and minibatches are divided among processes, and their rollouts are joined."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from palaestra.core.errors import SettingsError
from palaestra.rl import collection as shares
from palaestra.rl import rollouts
from palaestra.rl.collection import join_rollouts, split_episodes
from palaestra.rl.rollouts import Selection, TokenInputs, make_episode_rollout, split_microbatches


def set_processes(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    for module in (rollouts, shares):
        monkeypatch.setattr(module, "rank", lambda: rank)
        monkeypatch.setattr(module, "world_size", lambda: world_size)


@pytest.mark.parametrize(("sequences", "processes", "max_size"), [(7, 3, 2), (2, 3, 8), (9, 2, 2), (8, 4, 1)])
def test_microbatches_of_all_processes_cover_a_minibatch(
    monkeypatch: pytest.MonkeyPatch, sequences: int, processes: int, max_size: int
) -> None:
    mask_BT = torch.ones(sequences, 3, dtype=torch.bool)
    minibatch, seen, sizes = Selection(torch.arange(sequences), True, 3), torch.zeros(sequences), []
    for rank in range(processes):
        set_processes(monkeypatch, rank, processes)
        parts = split_microbatches(minibatch, max_size)
        sizes.append([len(part) for part in parts])
        for part in parts:
            assert torch.equal(minibatch.index[part.rows], part.index)
            seen.index_add_(0, part.index, part.take_mask(mask_BT).any(-1).float())
    assert torch.equal(seen, torch.ones(sequences))
    assert all(own == sizes[0] for own in sizes)
    assert max(sizes[0]) <= max_size


def test_processes_play_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    for rank in range(3):
        set_processes(monkeypatch, rank, 3)
        first, count = split_episodes(40, 20, group_size=4)
        assert first % 4 == count % 4 == 0
        played += range(first, first + count)
    assert played == list(range(40, 60))
    with pytest.raises(SettingsError, match="3 processes; got 2"):
        split_episodes(0, 8, group_size=4)


def test_joined_rollouts_keep_their_episodes() -> None:
    parts = []
    for k, lengths in enumerate(([2, 1], [4])):
        rows = [[float(k + 1)] * length for length in lengths]
        ids: list[tuple[int, ...]] = [(7,) * length for length in lengths]
        flags = [False] * len(lengths)
        inputs = TokenInputs([(1,)] * len(lengths), ids, [[np.array([7])] * 4] if k else [])
        parts.append(
            make_episode_rollout(
                inputs,
                logprobs=rows,
                rewards=rows,
                returns=[sum(row) for row in rows],
                truncated=flags,
                failures=[""] * len(lengths),
                groups=[k] * len(lengths),
                records=lengths,
                limit=4,
            )
        )
        parts[-1].metrics = {"seconds_model": float(k), "turns": float(k)}
    rollout = join_rollouts(parts)
    assert rollout.mask_BT.sum(-1).tolist() == [2, 1, 4]
    assert rollout.stats.returns == [2.0, 1.0, 8.0]
    assert rollout.get_episodes().records == [2, 1, 4]
    assert [len(allowed) for allowed in rollout.inputs.legal] == [0, 0, 4]
    assert rollout.get_episodes().group_B.tolist() == [0, 0, 1]
    assert rollout.metrics == {"seconds_model": 1.0, "turns": pytest.approx(1 / 3)}
