"""The hyperparameters of the algorithms. Loads no torch, so that the command line can show and check them at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.core.settings import accept_aliases, setting
from palaestra.rl.algorithms import ALGORITHMS, AlgorithmConfig, GroupConfig

_GYMFORMER_NAMES = {
    "lr_actor": "learning_rate",
    "lr_critic": "critic_learning_rate",
    "K_epochs": "n_epochs",
    "update_epochs": "n_epochs",
    "eps_clip": "clip_range",
    "minibatch_size": "batch_size",
}
"""Names of Gymformer that `PPOConfig` accepts as well. Its `pad_obs` and `int_obs` are accepted and ignored."""


@accept_aliases(_GYMFORMER_NAMES, ignored=("pad_obs", "int_obs"))
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Hyperparameters of PPO, with the names of Stable-Baselines3. Gymformer's names are accepted as well."""

    learning_rate: float = setting(3e-4, "Learning rate of the actor.", low=0)
    critic_learning_rate: float = setting(1e-3, "Learning rate of the critic.", low=0)
    n_epochs: int = setting(10, "Epochs over the data of an iteration.", low=1)
    batch_size: int | None = setting(
        None,
        "Decisions, or responses of a language model, in a minibatch; by default 256 decisions or 8 responses.",
        low=1,
    )
    gamma: float = setting(0.99, "Discount factor.", low=0, high=1)
    gae_lambda: float = setting(0.95, "Trade-off between bias and variance in GAE.", low=0, high=1)
    clip_range: float = setting(0.2, "Clipping range of the probability ratio around 1.", low=0, high=1)
    clip_range_high: float | None = setting(None, "Clipping range above 1; by default clip_range.", low=0)
    clip_range_vf: float | None = setting(
        None, "Clipping range of the value function; by default not clipped.", above=0
    )
    vf_coef: float = setting(0.5, "Weight of the value loss.", low=0)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)
    target_kl: float | None = setting(
        None, "End an update if the KL divergence from the old policy exceeds this.", above=0
    )
    normalize_advantage: bool = setting(True, "Normalize the advantages of a minibatch.")
    max_grad_norm: float = setting(0.5, "Maximum norm of the gradient; 0 disables clipping.", low=0)
    anneal_clip_range: bool = setting(False, "Decrease clip_range linearly to 0 over the run.")

    @property
    def needs_critic(self) -> bool:
        return True


_Variant = Literal["grpo", "dr_grpo", "dapo"]
_VARIANTS: Mapping[_Variant, Mapping[str, Any]] = {
    "grpo": {"loss_aggregation": "sequence", "scale_rewards": True, "mask_truncated_completions": False},
    "dr_grpo": {"loss_aggregation": "constant", "scale_rewards": False, "mask_truncated_completions": False},
    "dapo": {"loss_aggregation": "token", "scale_rewards": True, "mask_truncated_completions": True, "clip_range_high": 0.28},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(GroupConfig):
    """Hyperparameters of GRPO, with the names of TRL and Stable-Baselines3. `None` is replaced by the variant's value."""

    variant: Literal["grpo", "dr_grpo", "dapo"] = setting(
        "grpo", "Published variant whose values are the defaults of the next five options."
    )
    loss_aggregation: Literal["token", "sequence", "constant"] | None = setting(
        None, "Average the loss per sequence, over all tokens, or over a constant length; by default the variant's."
    )
    scale_rewards: bool | None = setting(
        None, "Divide advantages by the standard deviation of their group; by default the variant's."
    )
    mask_truncated_completions: bool | None = setting(
        None, "Exclude responses that reached the token limit from the loss; by default the variant's."
    )
    clip_range: float = setting(0.2, "Clipping range of the probability ratio around 1.", low=0, high=1)
    clip_range_high: float | None = setting(None, "Clipping range above 1; by default the variant's.", low=0)
    importance_sampling_level: Literal["token", "sequence"] = setting(
        "token", "Compute probability ratios per token, or per sequence as in GSPO."
    )
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in {"clip_range_high": self.clip_range, **_VARIANTS[self.variant]}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(GroupConfig):
    """Hyperparameters of RLOO, with the names of TRL and Stable-Baselines3."""

    clip_range: float = setting(0.2, "Clipping range of the probability ratio of a response around 1.", low=0, high=1)
    normalize_advantage: bool = setting(False, "Normalize the advantages of an iteration.")


@dataclass(frozen=True, kw_only=True)
class REINFORCEConfig(AlgorithmConfig):
    """Hyperparameters of REINFORCE, with the names of Stable-Baselines3."""

    critic_learning_rate: float = setting(1e-3, "Learning rate of the critic.", low=0)
    gamma: float = setting(1.0, "Discount factor.", low=0, high=1)
    baseline: Literal["batch", "critic", "none"] = setting(
        "batch", "Baseline of the returns: the mean of the batch, a critic, or none."
    )
    vf_coef: float = setting(0.5, "Weight of the value loss.", low=0)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)
    normalize_advantage: bool = setting(True, "Normalize the advantages of an iteration.")

    @property
    def needs_critic(self) -> bool:
        return self.baseline == "critic"

    @property
    def whole_episodes(self) -> bool:
        return not self.needs_critic  # Without a critic the return of an unfinished episode is unknown.


_CONFIGS: Mapping[str, type[AlgorithmConfig]] = {
    "ppo": PPOConfig,
    "grpo": GRPOConfig,
    "rloo": RLOOConfig,
    "reinforce": REINFORCEConfig,
}


def get_config(algorithm: str) -> type[AlgorithmConfig]:
    """Return the config class of a registered algorithm. Only an algorithm of a plugin is loaded for this."""
    config: type[AlgorithmConfig] = _CONFIGS.get(algorithm) or ALGORITHMS.get(algorithm).Config
    return config
