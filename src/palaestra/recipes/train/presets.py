"""Settings that suit an environment, where the user gave none of their own.

First what suits the kind of environment and the algorithm, then what was tuned for one environment. The
learning metrics in `docs/results.md` were measured with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTROL: Mapping[str, Any] = {
    "algorithm": "ppo",
    "slots": 32,
    "steps": 64,
    "iterations": 200,
    "learning_rate": 1e-3,
    "critic_rate": 1e-3,
    "epochs": 8,
    "minibatch": 256,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "max_grad_norm": 0.5,
}
TOKEN: Mapping[str, Any] = {
    "algorithm": "grpo",
    "slots": 128,
    "episodes": 256,
    "iterations": 40,
    "epochs": 1,
    "gamma": 1.0,
    "gae_lambda": 0.95,
    "max_grad_norm": 1.0,
}
# A slot of a turn environment may be a workspace with processes of its own: fewer of them side by side.
TURN: Mapping[str, Any] = {**TOKEN, "slots": 32, "episodes": 128}
BY_ALGORITHM: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("token", "grpo"): {"learning_rate": 1e-4, "minibatches": 2},
    ("token", "rloo"): {"learning_rate": 1e-4, "minibatches": 2},
    ("token", "reinforce"): {"learning_rate": 1e-4},
    ("token", "ppo"): {
        "learning_rate": 1e-4,
        "critic_rate": 1e-2,
        "minibatch": 64,
        "value_clip": 0.2,
        "gae_lambda": 1.0,
    },
    ("control", "grpo"): {"slots": 64, "learning_rate": 3e-3, "epochs": 2, "minibatches": 4},
    ("control", "rloo"): {"slots": 64, "learning_rate": 3e-3, "minibatches": 4},
    ("control", "reinforce"): {"slots": 32, "steps": 128, "learning_rate": 3e-3, "critic_rate": 1e-2},
}
BY_ENVIRONMENT: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("CartPole-v1", "ppo"): {
        "slots": 32, "steps": 32, "iterations": 150, "learning_rate": 2e-3, "critic_rate": 2e-3, "gamma": 0.98,
        "gae_lambda": 0.9, "minibatch": 256, "activation": "relu",
    },
    ("Acrobot-v1", "ppo"): {
        "slots": 16, "steps": 256, "iterations": 80, "epochs": 4, "normalise_observations": True, "gae_lambda": 0.94,
    },
    ("Pendulum-v1", "ppo"): {
        "slots": 16, "steps": 128, "iterations": 120, "gamma": 0.9, "gae_lambda": 0.95, "epochs": 10,
        "minibatch": 256, "reward_scale": 0.1, "activation": "relu",
    },
}  # fmt: skip


def preset(kind: str, env: str, algorithm: str) -> dict[str, Any]:
    """The settings for an environment of a kind (`"control"`, `"token"` or `"turn"`), the special before the general."""
    found = dict({"control": CONTROL, "token": TOKEN, "turn": TURN}[kind])
    algorithm = algorithm or str(found["algorithm"])
    found["algorithm"] = algorithm
    # Learning from messages is learning from their tokens.
    found.update(BY_ALGORITHM.get(("token" if kind == "turn" else kind, algorithm), {}))
    found.update(BY_ENVIRONMENT.get((env, algorithm), {}))
    return found
