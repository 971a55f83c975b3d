"""Bandit policies over subskills, which use a posterior over learning curves.

They plan for all remaining examples instead of one lesson, because the student is trained on the sum of all lessons. Each
lesson is a part of this plan. It contains a few examples for uncertain subskills, which is the exploration.

A subskill is one of three kinds: *known* before the first lesson, *learnable*, or *out of reach*. Once training has
begun, its accuracy after `n` examples of its own is

    ceiling - (ceiling - start) * exp(-n / pace),      start = base * (1 - loss)

where `loss` is the forgetting by training on other subskills, and `ceiling` is far above `base` only if the subskill is
learnable. The parameters form a grid. The validation counts before the first round and after each give every grid point a
binomial likelihood.

Subskills of a skill share whether the skill is within reach. All subskills of a task share the distribution of paces,
losses and kinds (a few steps of expectation maximisation, with a prior of `_PRIOR_WEIGHT` subskills).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from palaestra.teachers.simple import share_out
from palaestra.teachers.tree.records import Branch, Count, Leaf, TreeAction, TreeLimits, TreeState

_MAX_LESSONS_AHEAD = 4
"""Maximum number of lessons to plan ahead."""


class _Bandit(ABC):
    """Plans by the expected gain of every further example of every subskill. Subclasses implement `plan_examples`.

    Arguments:
        keep: the fraction of a lesson for subskills that the student knew before the first round. Forgetting grows with
            training, so the answers so far underestimate it.
    """

    open_at_once = 0
    name: str

    def __init__(self, keep: float = 0.15) -> None:
        self.keep = keep

    @abstractmethod
    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        """The number of the next `total` examples for each subskill."""

    def decide(
        self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator
    ) -> list[TreeAction]:
        known = posterior(tree)
        ahead = max(size, min(tree.budget, _MAX_LESSONS_AHEAD * size))
        kept_L = self.keep * ahead * _knew(known)
        planned_L = kept_L + self.plan_examples(known, ahead - round(kept_L.sum()), generator)
        # A random order, so that the remainder goes to other subskills in each round.
        order = generator.permutation(len(planned_L)).tolist()
        shares = share_out(size, {row: float(planned_L[row]) for row in order})
        given: dict[str, dict[str, int]] = {}
        for row, (skill, part) in enumerate(known.keys):
            if shares[row]:
                given.setdefault(skill, {})[part] = shares[row]
        expected = dict(zip(known.keys, known.accuracy().tolist(), strict=True))
        return [self._action(b, given[b.name], known, expected) for b in tree if b.name in given]

    def _action(
        self, branch: Branch, given: dict[str, int], known: Posterior, expected: dict[tuple[str, str], float]
    ) -> TreeAction:
        most = max(given, key=lambda name: given[name])
        where = f" most to {most}, which is" if most else ""
        reason = (
            f"{self.name}: within reach with {known.within[branch.name]:.0%};"
            f"{where} expected at {expected[branch.name, most]:.0%} after the {branch.total} examples so far"
        )
        opens = any(leaf.name in given for leaf in branch.closed)
        return TreeAction(branch.name, given, reason, "explore" if opens else "exploit")


class UpperConfidence(_Bandit):
    """Allocates each example by an upper confidence bound of its gain.

    Arguments:
        optimism: standard deviations that are added to the expected gain; 0: greedy.
    """

    name = "ucb"

    def __init__(self, optimism: float = 0.5, keep: float = 0.15) -> None:
        super().__init__(keep)
        self.optimism = optimism

    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        return _plan(known.marginals(total, self.optimism), total)


class Thompson(_Bandit):
    """Thompson sampling: samples a curve for each subskill and plans with it. The result is the mean of several plans.

    A single sample would have too much variance, because there are few lessons.

    Arguments:
        draws: the number of plans.
    """

    name = "thompson"

    def __init__(self, draws: int = 16, keep: float = 0.15) -> None:
        super().__init__(keep)
        self.draws = draws

    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        plans = [_plan(known.sample(total, generator), total) for _ in range(self.draws)]
        plan_L: Array = np.mean(plans, axis=0)
        return plan_L


def _plan(gain_LN: Array, total: int) -> Array:
    """Allocate `total` examples greedily by gain. Returns the number for each subskill.

    Gains must not rise along a row, as on a flattening curve; rising ones are lowered.
    """
    gain_LN = np.minimum.accumulate(gain_LN, axis=1)
    best = np.argpartition(-gain_LN.ravel(), total - 1)[:total] if 0 < total < gain_LN.size else np.arange(total)
    return np.bincount(best // gain_LN.shape[1], minlength=gain_LN.shape[0]).astype(np.float64)


def _knew(known: Posterior) -> Array:
    """The weight of each subskill times the probability that it was known before; the sum is at most 1."""
    weight_L = known.value_L * (known.weights_LG @ (known.grid.kind_G == _KNOWN))
    # If less than a third was known, the fraction for it shrinks in proportion.
    share_L: Array = weight_L / max(1.0 / 3, weight_L.sum())
    return share_L


Array = NDArray[np.float64]

_KNOWN, _LEARNABLE, _OUT = 0, 1, 2
_PACES = {3.0: 0.23, 6.0: 0.23, 12.0: 0.23, 24.0: 0.19, 60.0: 0.08, 150.0: 0.04}
"""Examples after which a learnable subskill has closed 63 % of its gap, with prior probabilities."""
_LOSSES = {0.0: 0.5, 0.2: 0.3, 0.5: 0.2}
"""Fractions of an accuracy that training on other subskills costs, with prior probabilities. Known subskills recover twice
as fast."""
_BASES = {_KNOWN: (0.8, 0.92, 0.99), _LEARNABLE: (0.01, 0.1, 0.25, 0.45, 0.65), _OUT: (0.01, 0.1, 0.25, 0.45)}
_BASE_WEIGHTS = {_KNOWN: (1.0, 2.0, 3.0), _LEARNABLE: (5.0, 2.0, 1.5, 1.0, 0.5), _OUT: (5.0, 2.0, 1.0, 0.5)}
_CEILINGS = (0.8, 0.97)
_SORTS = (0.2, 0.25, 0.55)
"""Prior probabilities of a skill: out of reach, new to the student, partly known."""
_KINDS = ((0.03, 0.07, 0.9), (0.03, 0.92, 0.05), (0.55, 0.42, 0.03))
"""For each sort of skill the prior probabilities of its subskills: known, learnable, out of reach."""
_CURVE_LENGTH = 600
"""The length of the curves in examples; beyond it they are extrapolated."""
_PRIOR_WEIGHT = 10.0
_STEPS = 4
_MAX_WEIGHT = 24
"""Maximum weight of a subskill's answers, because the grid is too coarse for finer differences."""
_SLIP = 0.02
"""The minimum error rate, also of a mastered subskill."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid points, as indices of kind, pace and loss, with their predictions.

    Arguments:
        base_G: accuracy before any training.
        prior_G: the prior of a point's base and ceiling within its kind.
        curve_GN: accuracy after training with 0, 1, 2, ... examples.
        step_GN: the gain of each further example.
    """

    kind_G: NDArray[np.int64]
    pace_G: NDArray[np.int64]
    loss_G: NDArray[np.int64]
    base_G: Array
    prior_G: Array
    curve_GN: Array
    step_GN: Array


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior of every subskill of a tree.

    Arguments:
        keys: skill and subskill, in the order of the rows.
        weights_LG: the probability of each grid point, for each subskill.
        value_L: the fraction of all validation problems of a subskill, which weights its gain.
        given_L: examples so far.
        within: the probability that a skill is within reach, by skill.
    """

    keys: tuple[tuple[str, str], ...]
    weights_LG: Array
    value_L: Array
    given_L: NDArray[np.int64]
    within: dict[str, float]
    grid: Grid

    def marginals(self, more: int, optimism: float = 0.0) -> Array:
        """The expected gain in accuracy over all problems of each of the next `more` examples of a subskill.

        Arguments:
            optimism: standard deviations of the posterior that are added to its mean.
        """
        step_GN = self.grid.step_GN
        gain_LN = self.weights_LG @ step_GN
        if optimism:
            spread_LN = np.sqrt(np.maximum(0.0, self.weights_LG @ step_GN**2 - gain_LN**2))
            gain_LN = gain_LN + optimism * spread_LN
        return self._next(gain_LN, more)

    def sample(self, more: int, generator: np.random.Generator) -> Array:
        """The gains of one curve per subskill, sampled from the posterior."""
        sums_LG = np.cumsum(self.weights_LG, axis=1)
        place_L = (sums_LG < generator.random((len(sums_LG), 1)) * sums_LG[:, -1:]).sum(axis=1)
        return self._next(self.grid.step_GN[place_L], more)

    def _next(self, gain_LN: Array, more: int) -> Array:
        """Select the gains of the examples after those that were given."""
        place_LN, last = self.given_L[:, None] + np.arange(more)[None, :], gain_LN.shape[1] - 1
        next_LN = np.take_along_axis(gain_LN, np.minimum(place_LN, last), axis=1) * self.value_L[:, None]
        # Beyond the curves gains fall further, so that the remaining examples are spread.
        return np.where(place_LN > last, next_LN * (last / np.maximum(place_LN, 1)) ** 2, next_LN)

    def accuracy(self) -> Array:
        """The expected accuracy of every subskill after training on the given examples."""
        place_L = np.minimum(self.given_L, _CURVE_LENGTH)
        accuracy_L: Array = np.einsum("lg,gl->l", self.weights_LG, self.grid.curve_GN[:, place_L])
        return accuracy_L


def posterior(tree: TreeState) -> Posterior:
    """Compute the posterior from the validation answers so far."""
    leaves = [(branch, leaf) for branch in tree for leaf in branch.leaves]
    grid = _grid()
    log_LG = np.stack([_log_likelihood(grid, leaf) for _, leaf in leaves])
    likelihood_LG = np.exp(log_LG - log_LG.max(axis=1, keepdims=True))
    rows: dict[str, list[int]] = {}
    for row, (branch, _) in enumerate(leaves):
        rows.setdefault(branch.name, []).append(row)
    weights_LG, within = _fit(grid, likelihood_LG, list(rows.values()))
    values = []
    for branch in tree:
        counts = [leaf.measured[-1].count for leaf in branch.leaves]
        shares = [count / sum(counts) if sum(counts) else 1 / len(counts) for count in counts]
        values += [1.0 / len(tree.branches) * share for share in shares]
    return Posterior(
        tuple((branch.name, leaf.name) for branch, leaf in leaves),
        weights_LG,
        np.array(values),
        np.array([leaf.total for _, leaf in leaves], dtype=np.int64),
        dict(zip(rows, within.tolist(), strict=True)),
        grid,
    )


def _fit(grid: Grid, likelihood_LG: Array, skills: list[list[int]]) -> tuple[Array, Array]:
    """Fit the shared distributions. Returns the posterior of every subskill, and the reach of every skill."""
    pace_P, loss_D = np.array(list(_PACES.values())), np.array(list(_LOSSES.values()))
    kind_RK, sort_R = np.array(_KINDS), np.array(_SORTS)
    prior_pace, prior_loss, prior_kind, prior_sort = pace_P, loss_D, kind_RK, sort_R
    for _ in range(_STEPS):
        point_RG = kind_RK[:, grid.kind_G] * grid.prior_G * pace_P[grid.pace_G] * loss_D[grid.loss_G]
        joint_LRG = likelihood_LG[:, None, :] * point_RG[None, :, :]
        evidence_LR = joint_LRG.sum(axis=2)
        log_SR = np.stack([np.log(evidence_LR[rows]).sum(axis=0) for rows in skills]) + np.log(sort_R)
        sort_SR = np.exp(log_SR - log_SR.max(axis=1, keepdims=True))
        sort_SR /= sort_SR.sum(axis=1, keepdims=True)
        reach_LR = np.empty_like(evidence_LR)
        for rows, chance_R in zip(skills, sort_SR, strict=True):
            reach_LR[rows] = chance_R
        weights_LRG = joint_LRG / evidence_LR[:, :, None] * reach_LR[:, :, None]
        weights_LG = weights_LRG.sum(axis=1)
        kind_RK = _estimate_rates(
            np.stack([_by(grid.kind_G, weights_LRG[:, r].sum(axis=0), 3) for r in range(len(_KINDS))]), prior_kind
        )
        learning_G = weights_LG.sum(axis=0) * (grid.kind_G != _OUT)
        pace_P = _estimate_rates(_by(grid.pace_G, learning_G, len(_PACES)), prior_pace)
        loss_D = _estimate_rates(_by(grid.loss_G, weights_LG.sum(axis=0), len(_LOSSES)), prior_loss)
        sort_R = _estimate_rates(sort_SR.sum(axis=0), prior_sort)
    return weights_LG / weights_LG.sum(axis=1, keepdims=True), 1 - sort_SR[:, 0]


def _estimate_rates(counts: Array, prior: Array) -> Array:
    """Estimate rates along the last axis from counts and a prior of weight `_PRIOR_WEIGHT`."""
    total = counts + _PRIOR_WEIGHT * prior
    rates: Array = total / total.sum(axis=-1, keepdims=True)
    return rates


def _by(index_G: NDArray[np.int64], weight_G: Array, count: int) -> Array:
    return np.bincount(index_G, weights=weight_G, minlength=count).astype(np.float64)


def _log_likelihood(grid: Grid, leaf: Leaf) -> Array:
    log_G = _binomial(leaf.measured[0], grid.base_G)
    # The same problems are asked after every round, so their answers are not independent.
    weight = max(1, len(leaf.measured) - 1) ** -0.5
    for place, measured in enumerate(leaf.measured[1:], 1):
        log_G += weight * _binomial(measured, grid.curve_GN[:, min(_CURVE_LENGTH, sum(leaf.given[:place]))])
    return log_G


def _binomial(measured: Count, chance_G: Array) -> Array:
    chance_G = _SLIP + (1 - 2 * _SLIP) * chance_G
    wrong, weight = measured.count - measured.correct, min(1.0, _MAX_WEIGHT / max(1, measured.count))
    log_G: Array = weight * (measured.correct * np.log(chance_G) + wrong * np.log1p(-chance_G))
    return log_G


@cache
def _grid() -> Grid:
    points: list[tuple[int, int, int, float, float, float, float]] = []
    for kind, bases in _BASES.items():
        weights = np.array(_BASE_WEIGHTS[kind]) / sum(_BASE_WEIGHTS[kind])
        ceilings = _CEILINGS if kind == _LEARNABLE else (0.0,)
        for base, weight in zip(bases, weights.tolist(), strict=True):
            for ceiling in ceilings:
                for pace in range(len(_PACES)):
                    for loss, lost in enumerate(_LOSSES):
                        start = base * (1 - lost)
                        top = {_KNOWN: base, _LEARNABLE: max(base, ceiling), _OUT: start}[kind]
                        points.append((kind, pace, loss, base, weight / len(ceilings), start, top))
    kind_G, pace_G, loss_G = (np.array([point[k] for point in points], dtype=np.int64) for k in range(3))
    base_G, prior_G, start_G, top_G = (np.array([point[k] for point in points]) for k in range(3, 7))
    pace_of_G = np.array(list(_PACES))[pace_G] * np.where(kind_G == _KNOWN, 0.5, 1.0)
    left_GN = np.exp(-np.arange(_CURVE_LENGTH + 1)[None, :] / pace_of_G[:, None])
    curve_GN = top_G[:, None] - (top_G - start_G)[:, None] * left_GN
    return Grid(kind_G, pace_G, loss_G, base_G, prior_G, curve_GN, np.diff(curve_GN, axis=1))
