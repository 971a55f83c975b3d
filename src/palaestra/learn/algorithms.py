"""What an algorithm is, and which there are.

A new one is a file with an `Algorithm`, and a registration: here, in `ALGORITHMS` of a program, or through the
entry point group `palaestra.algorithms`. `palaestra train --algorithm NAME` and `train_agent` then know it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from palaestra.core.registry import Registry
from palaestra.core.seeding import Seeds

if TYPE_CHECKING:
    # Only the types: a list of algorithms is to load no torch.
    from palaestra.learn.rollouts import Rollout, Selection
    from palaestra.learn.updates import Optimizer

ALGORITHMS = Registry("algorithm", "palaestra.algorithms")
ALGORITHMS.register("ppo", "palaestra.learn.ppo:PPO", "clipped updates with a critic and GAE; for any policy")
ALGORITHMS.register("grpo", "palaestra.learn.grpo:GRPO", "no critic, groups that start alike; also dr_grpo and dapo")
ALGORITHMS.register("rloo", "palaestra.learn.rloo:RLOO", "REINFORCE against the others of the group")
ALGORITHMS.register("reinforce", "palaestra.learn.reinforce:REINFORCE", "policy gradient with a baseline, one pass")


class Algorithm(ABC):
    """Changes a policy by what it lived through.

    Arguments:
        policy: who learns.
        config: how, an object of the class's `Config`.
        seeds: of everything random in an update.
    """

    Config: ClassVar[type[Any]]
    """The dataclass of its settings; must do without arguments."""
    groups: ClassVar[bool] = False
    """Whether it compares episodes that start alike: then rollouts are whole episodes in groups."""
    critic: ClassVar[bool] = False
    """Whether a language model needs a critic for it."""
    kl_in_loss: ClassVar[bool] = False
    """Whether the divergence from a reference is a part of the loss; otherwise it is taken off the rewards."""

    optimizer: Optimizer

    def __init__(self, policy: Any, config: Any = None, seeds: Seeds = Seeds(0)) -> None:
        self.policy, self.seeds = policy, seeds
        self.config: Any = self.Config() if config is None else config
        self.optimizer = self.make_optimizer()

    @abstractmethod
    def make_optimizer(self) -> Optimizer:
        """The optimiser over what the algorithm trains; its state is in checkpoints."""

    @abstractmethod
    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        """Change the policy by one rollout; returns metrics of its health.

        Arguments:
            iteration: its number, from which everything random follows.
            progress_remaining: how much of the run is left, from 1 to 0, for annealing.
        """

    @classmethod
    @abstractmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> Any:
        """The `Config` that the settings of a run (`recipes.train.TrainSettings`) amount to.

        Arguments:
            kl: the cost of a nat of divergence, for those that have it in their loss.
        """


def make_algorithm(config: Any, policy: Any, seeds: Seeds) -> Algorithm:
    """The algorithm whose `Config` is given.

    Raises:
        SettingsError: no algorithm has settings of that class.
    """
    from palaestra.core.errors import SettingsError

    kinds = [ALGORITHMS.get(name) for name in ALGORITHMS.names()]
    for kind in kinds:
        if type(config) is kind.Config:
            algorithm: Algorithm = kind(policy, config, seeds)
            return algorithm
    known = ", ".join(kind.Config.__name__ for kind in kinds)
    raise SettingsError(f"expected the settings of an algorithm ({known}); got {type(config).__name__}")


class GroupAlgorithm(Algorithm):
    """One that compares the members of a group, without a critic."""

    groups = True

    def make_optimizer(self) -> Optimizer:
        from palaestra.learn.updates import Optimizer

        config = self.config
        return Optimizer(
            self.policy.parameter_groups(config.learning_rate, config.learning_rate)[:1],
            config.max_grad_norm,
            config.weight_decay,
        )

    def passes(self, rollout: Rollout, sequences: list[int], iteration: int) -> Iterator[Selection]:
        """Minibatches of these sequences, `update_epochs` times over all."""
        from palaestra.learn.rollouts import select_sequences

        for epoch in range(self.config.update_epochs if sequences else 0):
            order = self.seeds.derive("minibatches", iteration, epoch).generator().permutation(len(sequences))
            size = -(-len(sequences) // self.config.minibatches)
            for start in range(0, len(order), size):
                yield select_sequences(rollout, by_group(rollout, [sequences[k] for k in order[start : start + size]]))


def by_group(rollout: Rollout, sequences: list[int]) -> list[int]:
    """Sequences sorted so that microbatches have little padding, and members of a group, who share a prompt, stay together."""
    assert rollout.group_B is not None
    length_B = rollout.mask_BT.sum(-1)
    longest: dict[int, int] = {}
    for sequence in sequences:
        group = int(rollout.group_B[sequence])
        longest[group] = max(longest.get(group, 0), int(length_B[sequence]))

    def place(sequence: int) -> tuple[int, int, int]:
        group = int(rollout.group_B[sequence])  # type: ignore[index]
        return longest[group], group, int(length_B[sequence])

    return sorted(sequences, key=place)
