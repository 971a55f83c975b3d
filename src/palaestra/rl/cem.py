"""The cross-entropy method (Rubinstein 1999) over the weights of an actor: play candidates, move towards the best ones.

The candidates of an iteration are drawn from a normal distribution with its own deviation for each weight. The members of a
group start from the same state, and each is another candidate; so all candidates play from the same states, and their
difference is that of their weights. Nothing is differentiated. The method is for actors with few weights whose rewards are
noisy or late; a critic and the noise of actions are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds
from palaestra.core.settings import setting
from palaestra.rl.algorithms import Algorithm, AlgorithmConfig
from palaestra.rl.losses import compute_frac_reward_zero_std
from palaestra.rl.optimizers import Optimizer
from palaestra.rl.policies.control import ControlPolicy
from palaestra.rl.rollouts import Rollout

MAX_WEIGHTS = 100_000
_LOG_STD = -10.0
"""Of continuous actions: candidates act without noise."""


@dataclass(frozen=True, kw_only=True)
class CEMConfig(AlgorithmConfig):
    """Hyperparameters of the cross-entropy method."""

    learning_rate: float = setting(0.7, "Step of the mean towards that of the best candidates.", low=0, high=1)
    group_size: int = setting(32, "Candidates of an iteration, which start from the same states.", low=4)
    elite: float = setting(0.33, "Fraction of the candidates that count as the best.", low=0, high=1)
    deviation: float = setting(0.5, "Standard deviation of each weight at the start.", low=0)
    min_deviation: float = setting(0.05, "Minimum standard deviation of a weight.", low=0)
    deviation_rate: float = setting(0.6, "Step of the deviation towards that of the best candidates.", low=0, high=1)


class CEM(Algorithm):
    """The cross-entropy method. The first candidate is the mean itself."""

    Config = CEMConfig
    config: CEMConfig
    optimizer: Distribution

    def __init__(self, policy: Any, config: CEMConfig | None = None, seeds: Seeds = Seeds(0)) -> None:
        if not isinstance(policy, ControlPolicy):
            raise SettingsError("cem trains policies of classic environments; expected another algorithm, such as grpo")
        count = sum(p.numel() for p in policy.actor.parameters())
        if count > MAX_WEIGHTS:
            raise SettingsError(f"cem: the actor has {count:,} weights; expected at most {MAX_WEIGHTS:,}, or ppo")
        if policy.log_std_O is not None:
            policy.log_std_O.data.fill_(_LOG_STD)
        super().__init__(policy, config, seeds)

    def make_optimizer(self) -> Distribution:
        return Distribution(self.policy, self.config, self.seeds)

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, distribution = self.config, self.optimizer
        returns_GK, known_GK = rollout.group_returns(config.group_size)
        # A candidate that failed from a state must not gain or lose by that state's own return.
        means_G1 = (returns_GK * known_GK).sum(1, keepdim=True) / known_GK.sum(1, keepdim=True).clamp(min=1)
        counts_K = known_GK.sum(0)
        scores_K = ((returns_GK - means_G1) * known_GK).sum(0) / counts_K.clamp(min=1)
        scores_K = scores_K.masked_fill(counts_K == 0, -torch.inf)
        best = scores_K.topk(max(2, round(config.elite * config.group_size))).indices.cpu()
        zero_std = compute_frac_reward_zero_std(returns_GK, known_GK)
        if zero_std < 1.0:
            distribution.move_towards(distribution.candidates_KD[best])
        distribution.draw(iteration + 1)
        lead = float(scores_K[best].mean())
        deviation = float(distribution.deviation_D.mean())
        return {"elite_lead": lead, "deviation": deviation, "frac_reward_zero_std": zero_std}


class Distribution(Optimizer):
    """The normal distribution of the actor's weights; its mean is the actor."""

    def __init__(self, policy: ControlPolicy, config: CEMConfig, seeds: Seeds) -> None:
        self.policy, self.config, self.seeds = policy, config, seeds
        self.deviation_D = torch.full_like(self.mean_D, config.deviation)
        self.draw(1)

    @property
    def mean_D(self) -> torch.Tensor:
        return parameters_to_vector(self.policy.actor.parameters()).detach().cpu()

    def draw(self, iteration: int) -> None:
        """Draw the candidates of an iteration and let the policy play them."""
        self.iteration, mean_D = iteration, self.mean_D
        generator = torch.Generator().manual_seed(self.seeds.derive("candidates", iteration).integer())
        noise_KD = torch.randn(self.config.group_size, len(mean_D), generator=generator)
        noise_KD[0] = 0.0
        self.candidates_KD = mean_D + self.deviation_D * noise_KD
        self.policy.candidates = split_weights(self.policy.actor, self.candidates_KD.to(self.policy.device))

    def move_towards(self, best_ED: torch.Tensor) -> None:
        """Move the mean and the deviation towards those of the best candidates."""
        config, mean_D = self.config, self.mean_D
        mean_D = mean_D + config.learning_rate * (best_ED.mean(0) - mean_D)
        vector_to_parameters(mean_D.to(self.policy.device), self.policy.actor.parameters())
        deviation_D = self.deviation_D + config.deviation_rate * (best_ED.std(0) - self.deviation_D)
        self.deviation_D = deviation_D.clamp(min=config.min_deviation)

    def state(self) -> dict[str, torch.Tensor]:
        return {"deviation": self.deviation_D, "iteration": torch.tensor(self.iteration)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.deviation_D = state["deviation"]
        self.draw(int(state["iteration"]))


def split_weights(network: torch.nn.Module, vectors_KD: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """The parameters of several networks by name, from their vectors."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    parts = torch.split(vectors_KD, [p.numel() for p in parameters], 1)
    return {name: part.view(-1, *p.shape) for name, part, p in zip(names, parts, parameters, strict=True)}
