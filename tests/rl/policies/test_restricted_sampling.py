"""Training with top-p and top-k: the kept tokens are recorded, and learning uses the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import SettingsError
from palaestra.core.records import ignore
from palaestra.recipes.train.build import build_loop
from palaestra.recipes.train.presets import make_settings
from palaestra.rl.rollouts import Selection

SMALL: dict[str, Any] = {"episodes": 8, "num_envs": 4, "group_size": 2, "evaluation": 0, "threads": 1, "max_tokens": 10}
GAMES = {"cot": {"env": "palaestra/CoT-v0"}, "guess": {"env": "palaestra/Guess-v0", "env_kwargs": {"high": 8}}}


@pytest.mark.parametrize("restriction", [{"top_p": 0.8}, {"top_k": 3}, {"top_p": 0.9, "top_k": 4, "temperature": 1.5}])
@pytest.mark.parametrize("game", GAMES)
def test_learning_sees_the_sampled_distribution(game: str, restriction: dict[str, Any]) -> None:
    loop: Any = build_loop(make_settings({**SMALL, **GAMES[game], **restriction}), ignore)
    rollout = loop.play_iteration(1)
    difference = (loop.policy.logprobs_BT(rollout) - rollout.logprobs_BT)[rollout.mask_BT].abs().max()
    assert float(difference) < 1e-4
    full = rollout.inputs.legal
    rollout.inputs.legal = []
    index = torch.arange(rollout.num_sequences)
    width = rollout.mask_BT.shape[1]
    with torch.no_grad():
        logp_BTV = loop.policy.compute_distributions(rollout.inputs, Selection(index, True, width))
    for sequence, kept in enumerate(full):
        for t, (tokens, chosen) in enumerate(zip(kept, rollout.inputs.get_actions(sequence), strict=True)):
            chances = logp_BTV[sequence, t].exp().numpy()
            assert chosen in tokens
            assert len(tokens) <= (restriction.get("top_k") or len(chances))
            # The kept tokens are the most likely, and no more of them than needed.
            assert chances[tokens].min() >= np.delete(chances, tokens).max(initial=0.0)
            if "top_k" not in restriction:
                assert chances[tokens].sum() >= restriction["top_p"] - 1e-4
                assert chances[tokens].sum() - chances[tokens].min() < restriction["top_p"] + 1e-4
    loop.close()


def test_an_update_with_restricted_tokens_starts_at_ratio_one() -> None:
    settings = make_settings({**SMALL, **GAMES["guess"], "top_p": 0.8, "learning_rate": 0.0, "episodes": 16})
    loop: Any = build_loop(settings, ignore)
    metrics, _ = loop.iterate(1, 1.0, ignore)
    assert metrics.get("approx_kl", 0.0) == pytest.approx(0.0, abs=1e-6)
    loop.close()


def test_engines_refuse_restrictions() -> None:
    with pytest.raises(SettingsError, match="expected rollout step"):
        make_settings({**SMALL, **GAMES["cot"], "rollout": "engine", "top_p": 0.9})
