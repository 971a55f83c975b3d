"""Metrics of a language model's rollout, under TRL's names and with its definitions.

`reward`, `reward_std`         mean and standard deviation of the rewards of all episodes
`frac_reward_zero_std`         fraction of groups with equal rewards (computed by the group methods)
`kl`                           KL divergence from the reference per token (k3); GRPO measures it at each gradient step
`entropy`                      entropy per token, when it was sampled
`clip_ratio/...`               fraction of tokens without a gradient because of clipping (`compute_clip_ratios`)
`completions/...`              sampled tokens per episode, and the fraction of episodes whose last message was cut
`num_tokens`                   tokens of all prompts and completions since the start of the run
`tools/...`                    tool calls per episode, and the fraction that failed

Failed episodes are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from palaestra.learn.losses import kl_k3, mean_where
from palaestra.learn.rollouts import Rollout
from palaestra.learn.turns import TurnEpisode


def measure_completions(rollout: Rollout, cut: Sequence[bool]) -> dict[str, float]:
    """Measure the rewards and the lengths of a rollout.

    Arguments:
        cut: by episode, whether its last message was cut at a limit.
    """
    valid = [True] * rollout.num_sequences if rollout.valid_B is None else rollout.valid_B.tolist()
    lengths = [length for length, known in zip(rollout.mask_BT.sum(-1).tolist(), valid, strict=True) if known]
    if not lengths:
        return {}
    metrics = {
        "completions/mean_length": float(np.mean(lengths)),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": float(np.mean([c for c, known in zip(cut, valid, strict=True) if known])),
    }
    if len(rollout.episode_returns) > 1:
        metrics["reward_std"] = float(np.std(rollout.episode_returns, ddof=1))
    return metrics


def measure_kl(rollout: Rollout, reference_BT: torch.Tensor) -> float:
    """Measure the divergence from the reference per token, at the weights that sampled the rollout."""
    return float(mean_where(kl_k3(rollout.logprobs_BT, reference_BT), rollout.valid_BT))


def count_tokens(rollout: Rollout) -> int:
    """Count the tokens of the prompts and the sampled tokens. Messages of tools and users are not counted."""
    decided_B = rollout.mask_BT.any(-1).tolist()
    prompts = sum(len(p) for p, decided in zip(rollout.inputs.prompts, decided_B, strict=True) if decided)
    return prompts + rollout.decisions


def measure_calls(episodes: Sequence[TurnEpisode]) -> dict[str, float]:
    """Measure the tool calls: calls per episode, and the fraction that failed.

    `tools/malformed` is the number of calls that could not be read; TRL has no such metric.
    """
    calls = sum(episode.calls for episode in episodes)
    return {
        "tools/call_frequency": calls / max(1, len(episodes)),
        "tools/failure_frequency": sum(episode.failed_calls for episode in episodes) / max(1, calls),
        "tools/malformed": float(sum(episode.malformed_calls for episode in episodes)),
    }
