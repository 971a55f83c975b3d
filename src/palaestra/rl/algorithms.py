"""The interface of an algorithm, the base classes of its hyperparameters, and the registry of algorithms.

A new algorithm is one file with a config dataclass and an `Algorithm`, and one registration: in `ALGORITHMS`, from a
plugin, or through the entry point group `palaestra.algorithms`. It is then available in `palaestra train --algorithm NAME`,
with its hyperparameters as options, in `palaestra.train` and in `train_agent`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from palaestra.core.errors import SettingsError
from palaestra.core.registry import Registry
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting

if TYPE_CHECKING:
    # Types only: listing the algorithms does not load torch.
    import torch

    from palaestra.rl.optimizers import Optimizer
    from palaestra.rl.rollouts import Policy, Rollout

ALGORITHMS = Registry("algorithm", "palaestra.algorithms")
ALGORITHMS.register("ppo", "palaestra.rl.ppo:PPO", "clipped updates with a critic and GAE; for every policy")
ALGORITHMS.register("grpo", "palaestra.rl.grpo:GRPO", "group-relative advantages, no critic; also dr_grpo and dapo")
ALGORITHMS.register("rloo", "palaestra.rl.rloo:RLOO", "REINFORCE with a leave-one-out baseline")
ALGORITHMS.register("rest_em", "palaestra.rl.rest_em:RestEM", "fine-tuning on the best responses of each group")
ALGORITHMS.register(
    "distill", "palaestra.rl.distill:Distill", "reverse KL divergence to a teacher on the student's samples"
)
ALGORITHMS.register("cem", "palaestra.rl.cem:CEM", "cross-entropy method over the few weights of a classic policy")
ALGORITHMS.register("reinforce", "palaestra.rl.reinforce:REINFORCE", "policy gradient with a baseline, one epoch")


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """Hyperparameters that every algorithm has. Subclasses add their own."""

    learning_rate: float = setting(1e-4, "Learning rate of the policy.", low=0, usual=True)
    kl_coef: float | None = setting(
        None, "Penalty per nat of KL divergence from the reference model; by default the environment's own.", low=0
    )
    max_grad_norm: float = setting(1.0, "Maximum norm of the gradient; 0 disables clipping.", low=0)
    weight_decay: float = setting(0.0, "Weight decay of AdamW.", low=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Learning rates over the run: constant, or decreasing to 0."
    )

    def __post_init__(self) -> None:
        check_ranges(self)

    def scale_learning_rate(self, progress_remaining: float) -> float:
        """The factor of the learning rates, by the remaining fraction of the run."""
        cosine = (1 - math.cos(math.pi * progress_remaining)) / 2
        return {"constant": 1.0, "linear": progress_remaining, "cosine": cosine}[self.lr_schedule]

    @property
    def group_size(self) -> int:
        """Episodes that start from the same state; 1 if the algorithm does not compare episodes."""
        return 1

    @property
    def needs_critic(self) -> bool:
        """Whether a language model needs a critic."""
        return False

    @property
    def whole_episodes(self) -> bool:
        """Whether a rollout of a classic environment has whole episodes. Otherwise it has `n_steps` steps per slot."""
        return self.group_size > 1


@dataclass(frozen=True, kw_only=True)
class GroupConfig(AlgorithmConfig):
    """Hyperparameters of algorithms that compare the episodes of a group, without a critic."""

    group_size: int = setting(8, "Episodes that start from the same state and are compared.", low=2)
    n_epochs: int = setting(1, "Epochs over the episodes of an iteration.", low=1)
    num_minibatches: int = setting(1, "Optimizer steps in an epoch.", low=1)


@dataclass(frozen=True, kw_only=True)
class TurnCreditConfig(GroupConfig):
    """Hyperparameters of group methods that can compare episodes turn by turn."""

    credit: Literal["episode", "turn"] = setting(
        "episode",
        "One advantage per episode, or per turn: the return from each turn on, compared with the same turn of others.",
    )
    gamma: float = setting(1.0, "Discount factor per turn, with credit per turn.", low=0, high=1)
    target_kl: float | None = setting(
        None, "End an update if the KL divergence from the old policy exceeds this.", above=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma != 1.0 and self.credit == "episode":
            raise SettingsError("setting 'gamma' has no effect without the setting 'credit' turn")


class Algorithm(ABC):
    """Updates a policy from rollouts.

    Arguments:
        policy: the policy to train, a `palaestra.rl.rollouts.Policy`.
        config: an instance of the class's `Config`; its defaults if not given.
        seeds: the source of all randomness in an update.
    """

    Config: ClassVar[type[Any]]
    """The dataclass of the hyperparameters, an `AlgorithmConfig` whose fields all have defaults."""
    kl_in_loss: ClassVar[bool] = False
    """Whether the KL penalty is part of the loss. Otherwise it is subtracted from the rewards before the update."""

    distributed: ClassVar[bool] = False
    """Whether several processes can train together. `update` then takes the share of this process from
    `split_microbatches`, calls `reduce_gradients` before each step, and masks padding with `take_mask`."""

    optimizer: Optimizer
    advantages_BT: torch.Tensor | None = None
    """The advantages of the last update's actions, before a normalization by minibatch; `None` if they are not recorded."""

    def __init__(self, policy: Any, config: AlgorithmConfig | None = None, seeds: Seeds = Seeds(0)) -> None:
        self.policy, self.seeds = policy, seeds
        self.config: Any = self.Config() if config is None else config
        self.metrics = MetricMeans()
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> Optimizer:
        """Create the optimizer of the trained parameters: the actor's, and the critic's if the config needs one.

        Checkpoints contain its state.
        """
        from palaestra.rl.optimizers import Optimizer

        config = self.config
        critic_learning_rate = getattr(config, "critic_learning_rate", config.learning_rate)
        groups = self.policy.parameter_groups(config.learning_rate, critic_learning_rate)
        return Optimizer(groups if config.needs_critic else groups[:1], config.weight_decay)

    def bind(self, env: Any, tokenizer: Any) -> None:  # noqa: B027  (optional)
        """Take the environment of a language model and its tokenizer before training, for what a rollout does not contain."""

    def exceeds_target_kl(self, divergence: torch.Tensor | float) -> bool:
        """Whether the KL divergence of a minibatch from the old policy, summed over all processes, ends the update."""
        if self.config.target_kl is None:
            return False
        import torch

        from palaestra.rl.distributed.ranks import sum_over_ranks

        return float(sum_over_ranks(torch.as_tensor(divergence))) > float(self.config.target_kl)

    @abstractmethod
    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        """Train on one rollout and return the metrics of the update.

        Arguments:
            iteration: the number of the iteration; all randomness is derived from it and from `seeds`.
            progress_remaining: the remaining fraction of the run, from 1 to 0, for annealing.
        """


def make_algorithm(config: AlgorithmConfig, policy: Policy, seeds: Seeds) -> Algorithm:
    """Create the algorithm that `config` belongs to.

    Raises:
        SettingsError: `config` is not an instance of the `Config` of a registered algorithm.
    """
    kinds = [ALGORITHMS.get(name) for name in ALGORITHMS.names()]
    for kind in kinds:
        if type(config) is kind.Config:
            algorithm: Algorithm = kind(policy, config, seeds)
            return algorithm
    known = ", ".join(kind.Config.__name__ for kind in kinds)
    raise SettingsError(f"expected the config of an algorithm ({known}); got {type(config).__name__}")


class MetricMeans:
    """Running means of metrics, over the microbatches of all processes."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, torch.Tensor | float]]] = {}

    def add(self, weight: float = 1.0, **metrics: torch.Tensor | float) -> None:
        """Add one value, a number or a tensor of one element, to each named metric.

        Arguments:
            weight: of the values, for example the fraction of a minibatch that they describe.
        """
        for name, value in metrics.items():
            # A tensor is read at the end: reading it now would wait for the GPU.
            self._values.setdefault(name, []).append(
                (weight, value if isinstance(value, int | float) else value.detach())
            )

    def copy(self) -> MetricMeans:
        """A copy, for `restore`."""
        other = MetricMeans()
        other.restore(self)
        return other

    def restore(self, other: MetricMeans) -> None:
        """Go back to the values of a copy."""
        self._values = {name: list(values) for name, values in other._values.items()}

    def compute(self) -> dict[str, float]:
        """The means. Every process must call this, with the same metrics."""
        import torch

        from palaestra.rl.distributed.ranks import sum_over_ranks

        sums = [sum(weight * float(value) for weight, value in values) for values in self._values.values()]
        weights = [sum(weight for weight, _ in values) for values in self._values.values()]
        totals = sum_over_ranks(torch.tensor([sums, weights], dtype=torch.float64)).tolist()
        return {name: total / (weight or 1.0) for name, total, weight in zip(self._values, *totals, strict=True)}
