"""Rollouts that are interrupted while they are sampled: newer weights continue their responses, or they are cut.

Weights change between two sampling steps, for all responses of the rollout at once. The cached keys and values of the older
weights are dropped, and the newer weights read every response in progress again from its first token. So each token has
exactly the log-prob of the weights that sampled it, given all tokens before it, whoever sampled these. (With the old cache it
would have that of a mixture of both, which no single model could evaluate again.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from palaestra.rl.rollouts import Rollout
from palaestra.rl.scheduler import Interruption, RolloutPart


class Interruptions:
    """The interruptions of one rollout: those of its record, or those that the driver orders.

    Arguments:
        part: the part of the run; recorded interruptions are repeated after the same steps.
        read_orders: returns the orders of the driver, see `RolloutScheduler.orders`.
        load_weights: loads a version into the policy.
    """

    def __init__(
        self,
        part: RolloutPart,
        read_orders: Callable[[], Mapping[tuple[int, int], int | None]],
        load_weights: Callable[[int], None],
    ) -> None:
        self.version = part.version
        """The number of updates of the current weights."""
        self.done: list[Interruption] = []
        self.is_cut = False
        self._part, self._read_orders, self._load_weights, self._step = part, read_orders, load_weights, 0

    def check(self) -> Interruption | None:
        """Return the interruption before the next step, if there is one. Newer weights are loaded then.

        Called once before each step.
        """
        step, self._step = self._step, self._step + 1
        interruption = self._find(step)
        if interruption is None or self.is_cut or interruption.version == self.version:
            return None
        if interruption.version is None:
            self.is_cut = True
        else:
            self._load_weights(interruption.version)
            self.version = interruption.version
        self.done.append(interruption)
        return interruption

    def mark(self, rollout: Rollout, starts: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Note the versions of the sequences of a rollout.

        Arguments:
            starts: by sequence, the first action of each version with the version.
        """
        episodes = rollout.get_episodes()
        episodes.versions = [spans[0][1] for spans in starts]
        episodes.continued = [tuple(spans[1:]) for spans in starts]

    def _find(self, step: int) -> Interruption | None:
        if self._part.is_recorded:
            return next((recorded for recorded in self._part.interruptions if recorded.step == step), None)
        orders, key = self._read_orders(), (self._part.number, self._part.version)
        return Interruption(step, orders[key]) if key in orders else None
