"""Compare the recorded tokens of a session with a forward pass."""

from __future__ import annotations

from typing import Any

from palaestra.rl.agent_loop import make_captured_rollout, to_episodes
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.turns import TurnEpisode
from palaestra.serving.capture import CaptureSession


def list_answers(session: CaptureSession) -> list[list[int]]:
    """The ids of every answer in the loss, sorted."""
    return sorted(
        [sequence.ids[k] for k in sequence.chosen[start:end]]
        for sequence in session.build_sequences()
        for start, end in zip([0, *sequence.ends], sequence.ends, strict=False)
    )


def measure_drift(weights: Any, session: CaptureSession, temperature: float = 1.0) -> float:
    """The largest difference between a recorded log-prob and that of a forward pass over its whole sequence."""
    episodes = to_episodes(TurnEpisode(0, 0, 0), session.build_sequences(), 1.0)
    rollout = make_captured_rollout(episodes, 1 << 12, 0)
    assert int(rollout.mask_BT.sum()) == sum(len(call.completion.token_ids) for call in session.calls) > 0
    difference_BT = LanguageModelPolicy(weights, temperature=temperature).logprobs_BT(rollout) - rollout.logprobs_BT
    return float(difference_BT[rollout.mask_BT].abs().max())
