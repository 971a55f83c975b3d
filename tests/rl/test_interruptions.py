"""Rollouts that newer weights continue, or that are cut, while they are sampled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from palaestra.chat.encoder import ChatEncoder
from palaestra.chat.rendering import end_ids
from palaestra.core.seeding import Seeds
from palaestra.envs.factory import make_turn_env
from palaestra.envs.token import TokenVectorEnv
from palaestra.models import registry as models
from palaestra.rl.collection import collect_responses
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout
from palaestra.rl.scheduler import Interruption, RolloutPart
from palaestra.rl.turns import collect_turns

PROMPTS = ["What is 3 + 4?", "A clock shows 3:40. What does it show 35 minutes later?"]


class Versions:
    """A policy with some versions of its weights, each different from the others."""

    def __init__(self, count: int = 4, **options: Any) -> None:
        self.loaded = models.load("nano", device="cpu", trainable=True)
        self.policy = LanguageModelPolicy(self.loaded.weights, temperature=1.2, **options)
        first = copy.deepcopy(self.loaded.weights.state_dict())
        self.states = [{name: tensor * 0.93**k for name, tensor in first.items()} for k in range(count)]
        self.loads: list[int] = []

    def load(self, version: int) -> None:
        self.loads.append(version)
        self.loaded.weights.load_state_dict(self.states[version])

    def compute_logprobs(self, version: int, rollout: Rollout) -> torch.Tensor:
        self.load(version)
        return self.policy.logprobs_BT(rollout)


def record(*interruptions: tuple[int, int | None]) -> RolloutPart:
    return RolloutPart(0, 0, tuple(Interruption(*i) for i in interruptions), is_recorded=True)


def play_token(
    versions: Versions, interruptions: Interruptions, slots: int = 8, episodes: int = 8, **options: Any
) -> Rollout:
    env = TokenVectorEnv(
        PROMPTS, lambda r: float(len(r.token_ids)), num_envs=slots, max_tokens=24, group_size=4, **options
    )
    versions.load(interruptions.version)
    seeds = Seeds(3)
    return collect_responses(env, versions.policy, episodes, seeds, seed=0, first=0, interruptions=interruptions)


def play_turns(
    versions: Versions, interruptions: Interruptions, slots: int = 6, episodes: int = 6, **_: Any
) -> Rollout:
    loaded = versions.loaded
    env = make_turn_env("palaestra/Guess-v0", slots, {"high": 9, "attempts": 4}, autoreset=False, failures="mark")
    versions.load(interruptions.version)
    ends = (*end_ids(loaded.weights, loaded.tokenizer), loaded.tokenizer.eos_token_id)
    return collect_turns(
        env,
        versions.policy,
        ChatEncoder(loaded.tokenizer, loaded.name),
        episodes,
        Seeds(3),
        end_ids=ends,
        max_tokens=8,
        group_size=3,
        interruptions=interruptions,
    )


def find_versions(rollout: Rollout) -> torch.Tensor:
    """The version that sampled each action."""
    episodes = rollout.get_episodes()
    version_BT = torch.zeros_like(rollout.logprobs_BT, dtype=torch.long)
    for sequence, (first, continued) in enumerate(zip(episodes.versions, episodes.continued, strict=True)):
        version_BT[sequence] = first
        for action, version in continued:
            version_BT[sequence, action:] = version
    return version_BT


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "top_k": 50}])
@pytest.mark.parametrize("slots", [8, 3])  # With 3, responses also start after an interruption.
@pytest.mark.parametrize("play", [play_token, play_turns])
def test_each_token_has_the_log_prob_of_its_version(play: Any, slots: int, options: dict[str, Any]) -> None:
    versions = Versions(**options)
    interruptions = Interruptions(record((3, 1), (4, 2), (17, 3)), dict, versions.load)
    rollout = play(versions, interruptions, slots)
    assert versions.loads == [0, 1, 2, 3]
    assert interruptions.done == [Interruption(3, 1), Interruption(4, 2), Interruption(17, 3)]
    version_BT = find_versions(rollout)
    sampled = [int(((version_BT == version) & rollout.mask_BT).sum()) for version in range(4)]
    assert min(sampled) > 0, sampled
    by_version = [versions.compute_logprobs(version, rollout) for version in range(4)]
    for version, logprobs_BT in enumerate(by_version):
        own_BT = (version_BT == version) & rollout.mask_BT
        torch.testing.assert_close(rollout.logprobs_BT[own_BT], logprobs_BT[own_BT], atol=1e-4, rtol=0)
        other_BT = (version_BT != version) & rollout.mask_BT
        assert float((rollout.logprobs_BT - logprobs_BT)[other_BT].abs().max()) > 1e-2


@pytest.mark.parametrize("play", [play_token, play_turns])
def test_a_record_repeats_orders_to_the_bit(play: Any) -> None:
    versions, polls = Versions(), iter(range(1000))

    def read_orders() -> dict[tuple[int, int], int | None]:
        poll = next(polls)
        return {(7, 0): 2 if poll < 9 else 3, (8, 0): 1} if poll >= 5 else {(7, 1): 3}

    ordered = Interruptions(RolloutPart(7, 0), read_orders, versions.load)
    first = play(versions, ordered)
    assert ordered.done == [Interruption(5, 2), Interruption(9, 3)]
    repeated = Interruptions(record((5, 2), (9, 3)), dict, versions.load)
    second = play(versions, repeated)
    assert torch.equal(first.logprobs_BT, second.logprobs_BT)
    assert first.inputs.responses == second.inputs.responses
    assert first.get_episodes().continued == second.get_episodes().continued


@pytest.mark.parametrize("play", [play_token, play_turns])
def test_without_an_interruption_nothing_changes(play: Any) -> None:
    versions = Versions()
    rollouts = [play(versions, Interruptions(record(), dict, versions.load)) for _ in range(2)]
    env = TokenVectorEnv(PROMPTS, lambda r: float(len(r.token_ids)), num_envs=8, max_tokens=24, group_size=4)
    if play is play_token:
        rollouts.append(collect_responses(env, versions.policy, 8, Seeds(3), seed=0, first=0))
    for rollout in rollouts[1:]:
        assert torch.equal(rollout.logprobs_BT, rollouts[0].logprobs_BT)
    assert set(rollouts[0].get_episodes().versions) == {0}
    assert set(rollouts[0].get_episodes().continued) == {()}


def test_cut_responses_are_truncated_and_scored() -> None:
    versions = Versions()
    interruptions = Interruptions(record((5, None)), dict, versions.load)
    rollout = play_token(versions, interruptions)
    lengths = rollout.mask_BT.sum(-1)
    episodes = rollout.get_episodes()
    cut_B = lengths == 6
    assert int(lengths.max()) == 6
    assert int(episodes.truncated_B.sum()) > 3
    assert not (episodes.truncated_B & ~cut_B).any()
    assert rollout.stats.returns == lengths.tolist()
    # Without `bootstrap_truncated` a cut is the end; with it the critic continues.
    assert bool(rollout.terminated_BT[:, 5][cut_B].all())
    assert set(episodes.versions) == {0}


def test_cut_responses_are_bootstrapped_like_truncated_ones() -> None:
    versions = Versions()
    env = TokenVectorEnv(PROMPTS, lambda r: 1.0, num_envs=8, max_tokens=24, group_size=4)
    env.bootstrap_truncated = True
    versions.load(0)
    interruptions = Interruptions(record((5, None)), dict, versions.load)
    rollout = collect_responses(env, versions.policy, 8, Seeds(3), seed=0, first=0, interruptions=interruptions)
    truncated_B = rollout.get_episodes().truncated_B
    assert int(truncated_B.sum()) > 3
    assert not rollout.terminated_BT[truncated_B].any()
    assert bool(rollout.ended_BT[truncated_B, 5].all())
    # The next rollout of the environment is whole.
    whole = collect_responses(env, versions.policy, 8, Seeds(3), seed=0, first=0)
    assert int(whole.mask_BT.sum(-1).max()) > 6


def test_a_cut_ends_conversations_after_an_answer() -> None:
    versions = Versions()
    rollout = play_turns(versions, Interruptions(record((12, None)), dict, versions.load))
    episodes = rollout.get_episodes().records
    stopped = [episode for episode in episodes if episode.stop_reason == "time"]
    assert stopped
    assert all(episode.truncated and not episode.failure and episode.turns for episode in stopped)
    assert all(len(episode.chosen) <= 13 for episode in episodes)
