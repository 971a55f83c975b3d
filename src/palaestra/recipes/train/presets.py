"""Presets: settings and hyperparameters for the environments, where the user gives none.

A preset for one environment takes precedence over one for a kind of environment. Hyperparameters without a preset keep
the default of the algorithm's config. The results in `docs/results.md` were measured with these presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Settings of a run, and hyperparameters of its algorithm."""

    settings: Values = field(default_factory=dict)
    hyperparameters: Values = field(default_factory=dict)


_COMMON = {"episodes": 256, "n_steps": 64, "normalize_observations": False, "activation": "tanh", "reward_scale": 1.0}
_TOKEN = {**_COMMON, "num_envs": 128, "iterations": 40, "evaluation": 25}
KINDS: Mapping[str, Values] = {
    "control": {**_COMMON, "num_envs": 32, "iterations": 200, "evaluation": 20},
    "token": _TOKEN,
    # A slot of a turn environment may be a workspace with processes of its own.
    "turn": {**_TOKEN, "num_envs": 32, "episodes": 128, "evaluation": 64},
}
ALGORITHMS: Mapping[tuple[str, str], Preset] = {
    ("token", "grpo"): Preset({}, {"num_minibatches": 2}),
    ("token", "rloo"): Preset({}, {"num_minibatches": 2}),
    ("token", "ppo"): Preset({}, {
        "learning_rate": 1e-4, "critic_learning_rate": 1e-2, "n_epochs": 1, "batch_size": 64, "clip_range_vf": 0.2,
        "gamma": 1.0, "gae_lambda": 1.0, "max_grad_norm": 1.0,
    }),
    ("control", "ppo"): Preset({}, {
        "learning_rate": 1e-3, "critic_learning_rate": 1e-3, "n_epochs": 8, "batch_size": 256, "gamma": 0.99,
        "gae_lambda": 0.95, "max_grad_norm": 0.5,
    }),
    ("control", "grpo"): Preset(
        {"num_envs": 64}, {"learning_rate": 3e-3, "n_epochs": 2, "num_minibatches": 4, "max_grad_norm": 0.5}
    ),
    ("control", "rloo"): Preset(
        {"num_envs": 64}, {"learning_rate": 3e-3, "n_epochs": 8, "num_minibatches": 4, "max_grad_norm": 0.5}
    ),
    ("control", "reinforce"): Preset({"n_steps": 128}, {
        "learning_rate": 3e-3, "critic_learning_rate": 1e-2, "gamma": 0.99, "baseline": "critic", "max_grad_norm": 0.5,
    }),
}  # fmt: skip
ENVIRONMENTS: Mapping[tuple[str, str], Preset] = {
    ("CartPole-v1", "ppo"): Preset(
        {"num_envs": 32, "n_steps": 32, "iterations": 150, "activation": "relu"},
        {"learning_rate": 2e-3, "critic_learning_rate": 2e-3, "gamma": 0.98, "gae_lambda": 0.9, "batch_size": 256},
    ),
    ("Acrobot-v1", "ppo"): Preset(
        {"num_envs": 16, "n_steps": 256, "iterations": 80, "normalize_observations": True},
        {"n_epochs": 4, "gae_lambda": 0.94},
    ),
    ("Pendulum-v1", "ppo"): Preset(
        {"num_envs": 16, "n_steps": 128, "iterations": 120, "reward_scale": 0.1, "activation": "relu"},
        {"gamma": 0.9, "gae_lambda": 0.95, "n_epochs": 10, "batch_size": 256},
    ),
}


def find_preset(kind: str, env: str, algorithm: str) -> Preset:
    """Return the preset for an environment of a kind (`"control"`, `"token"` or `"turn"`) and an algorithm."""
    # A turn is learned from its tokens.
    general = ALGORITHMS.get(("token" if kind == "turn" else kind, algorithm), Preset())
    special = ENVIRONMENTS.get((env, algorithm), Preset())
    return Preset(
        {**KINDS[kind], **general.settings, **special.settings},
        {**general.hyperparameters, **special.hyperparameters},
    )


def list_preset_names(algorithm: str) -> list[str]:
    """The hyperparameters of an algorithm whose default depends on the environment."""
    presets = [*ALGORITHMS.items(), *ENVIRONMENTS.items()]
    return sorted({name for key, preset in presets if key[1] == algorithm for name in preset.hyperparameters})
