"""The values of stored tokens: which episodes are stored, and what is known about each of their tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from palaestra.core.records import Segment, Trajectory
from palaestra.core.seeding import Seeds
from palaestra.envs.token import TokenVectorEnv
from palaestra.models.registry import LoadedModel
from palaestra.rl.collection import collect_responses
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollout_metrics import TokenDetails, add_token_details, find_alternatives, select_stored_sequences
from palaestra.rl.rollouts import Rollout, make_episode_rollout

LEGAL = [5, 6, 7]


@pytest.mark.parametrize(
    ("groups", "returns", "group_size", "wanted", "stored"),
    [
        ([0] * 4 + [1] * 4, [0.0] * 8, 4, 4, [0, 1, 2, 3]),
        ([0] * 4 + [1] * 4, [0.0] * 8, 4, 1, [0, 1, 2, 3]),
        ([0] * 4 + [1] * 4, [0.0] * 7 + [1.0], 4, 4, [4, 5, 6, 7]),
        ([0] * 2 + [1] * 2 + [2] * 2 + [3] * 2, [0.0] * 6 + [0.0, 1.0], 2, 5, [0, 1, 6, 7]),
        ([3] * 3 + [4] * 2, [0.0] * 5, 2, 2, [0, 1, 2]),
        ([0, 1, 2, 3], [0.0, 1.0, 0.0, 1.0], 1, 2, [0, 2]),
        ([0] * 4, [0.0] * 4, 4, 0, []),
        ([0] * 2, [0.0] * 2, 2, 99, [0, 1]),
        ([0] * 2 + [1] * 2, [0.0, -1.0, 0.0, 1.0], 2, 2, [2, 3]),
    ],
    ids=["one group", "at least one", "one with a signal", "two of four", "an agent's branches", "no groups", "none", "all", "a failure"],
)  # fmt: skip
def test_whole_groups_are_stored(
    groups: list[int], returns: list[float], group_size: int, wanted: int, stored: list[int]
) -> None:
    values_BT = torch.tensor(returns)[:, None]
    rollout = make_episode_rollout(
        None,
        logprobs=values_BT.tolist(),
        rewards=values_BT.tolist(),
        returns=returns,
        truncated=[False] * len(groups),
        failures=["failed" if value < 0 else "" for value in returns],
        groups=groups,
        records=groups,
    )
    assert select_stored_sequences(rollout, group_size, wanted) == stored


@pytest.fixture(params=[False, True], ids=["free", "restricted"])
def policy_and_rollout(nano: LoadedModel, request: pytest.FixtureRequest) -> tuple[LanguageModelPolicy, Rollout]:
    env = TokenVectorEnv(
        ["What is 2 + 3?", "Name a colour."],
        lambda response: 1.0,
        tokenizer=nano.tokenizer,
        num_envs=3,
        max_tokens=6,
        legal_tokens=(lambda prompt, ids: LEGAL) if request.param else None,
    )
    policy = LanguageModelPolicy(nano.weights, temperature=0.8, vocabulary=len(nano.tokenizer), microbatch_size=2)
    return policy, collect_responses(env, policy, 5, Seeds(0), seed=0)


@pytest.mark.parametrize("is_fast", [True, False])
def test_alternatives_are_of_the_sampled_distribution(
    policy_and_rollout: tuple[LanguageModelPolicy, Rollout], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, rollout = policy_and_rollout
    if not is_fast:
        monkeypatch.setattr(policy.sequence_forward, "fast", None)
    monkeypatch.setattr("palaestra.rl.rollout_metrics.MAX_MICROBATCH_LOGITS", 2 * policy.rows)
    details = find_alternatives(policy, rollout, [0, 1, 3], 4)
    assert list(details) == [0, 1, 3]
    assert rollout.entropy_BT is not None
    known = 0
    for sequence, own in details.items():
        ids = rollout.inputs.get_actions(sequence)
        assert own.entropies == pytest.approx(rollout.entropy_BT[sequence, : len(ids)].tolist(), rel=1e-3, abs=1e-4)
        for place, (chosen, best) in enumerate(zip(ids, own.alternatives, strict=True)):
            values = [value for _, value in best]
            assert values == sorted(values, reverse=True)
            if rollout.inputs.legal:
                assert sorted(token for token, _ in best) == LEGAL, "an illegal token is no alternative"
            else:
                assert len(best) == 4
            if chosen in dict(best):
                known += 1
                assert dict(best)[chosen] == pytest.approx(float(rollout.logprobs_BT[sequence, place]), abs=1e-3)
    assert known >= 5


def test_values_belong_to_sampled_segments(policy_and_rollout: tuple[LanguageModelPolicy, Rollout]) -> None:
    _, rollout = policy_and_rollout
    count = int(rollout.mask_BT[1].sum())
    turns = (count - 2, 2)
    given = Segment((9,), (False,), (0.0,))
    own = [Segment((8,) * n, (True,) * n, (-1.0,) * n) for n in turns]
    trajectory = Trajectory("env", 0, (1.0,), (given, own[0], given, own[1]), infos=({},))
    advantages_BT = torch.arange(rollout.mask_BT.numel(), dtype=torch.float32).view(rollout.mask_BT.shape)
    rollout = replace(rollout, reference_BT=-advantages_BT)
    details = TokenDetails(entropies=tuple(np.arange(count) / 2))
    segments = add_token_details(trajectory, rollout, 1, advantages_BT, details).segments
    assert segments[0] == segments[2] == given
    first = rollout.mask_BT.shape[1]
    assert segments[1].advantages + segments[3].advantages == tuple(float(first + k) for k in range(count))
    assert segments[3].reference_logprobs == tuple(-value for value in segments[3].advantages)
    assert segments[3].entropies == ((count - 2) / 2, (count - 1) / 2)
    assert segments[3].alternatives == ()
    episodes = replace(rollout.get_episodes(), valid_B=torch.tensor([True, False, True, True, True]))
    failed = replace(rollout, episodes=episodes)
    assert add_token_details(trajectory, failed, 1, advantages_BT, details).segments[1].advantages == ()
    advantages_BT[1, 0] = float("nan")
    assert add_token_details(trajectory, rollout, 1, advantages_BT, details).segments[1].advantages == ()
