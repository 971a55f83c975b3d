"""How a student answers to data: a posterior over learning curves, from a few validation answers.

A subskill is one of three kinds: *known* before the first lesson, *learnable*, or *out of reach*. Once training has
begun, its accuracy after `n` examples of its own is

    ceiling - (ceiling - start) * exp(-n / pace),      start = base * (1 - loss)

where `loss` is what the training on everything else costs it, and `ceiling` is far above `base` only where it is
learnable. All of this is a grid; the validation counts before the first round and after each give every point of
it a likelihood (binomial, which is exact for small counts, where differences of accuracies are mostly noise).

What is shared is learned from all: subskills of a skill share whether the skill is within reach, and all of a task
share how fast it is learned, how much is lost, and how many are of which kind (a few steps of expectation
maximisation, with a prior of `PRIOR_WEIGHT` subskills).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from palaestra.teachers.tree.records import Count, Leaf, Tree

Array = NDArray[np.float64]

KNOWN, LEARNABLE, OUT = 0, 1, 2
PACES = (3.0, 6.0, 12.0, 24.0)
"""Examples after which a learnable subskill has closed 63 % of its gap."""
LOSSES = (0.0, 0.2, 0.5)
"""What training on other things takes of an accuracy; what was known comes back at twice the pace."""
BASES = {KNOWN: (0.8, 0.92, 0.99), LEARNABLE: (0.01, 0.1, 0.25, 0.45, 0.65), OUT: (0.01, 0.1, 0.25, 0.45)}
BASE_WEIGHTS = {KNOWN: (1.0, 2.0, 3.0), LEARNABLE: (3.0, 2.0, 2.0, 2.0, 1.0), OUT: (4.0, 2.0, 1.0, 0.5)}
CEILINGS = (0.8, 0.97)
KINDS = ((0.03, 0.07, 0.9), (0.45, 0.5, 0.05))
"""The kinds of a skill that is out of reach, and of one that is within."""
WITHIN = 0.75
"""How many skills are expected to be within reach."""
PRIOR_WEIGHT = 10.0
STEPS = 4
SLIP = 0.02
"""No answer is certain: a subskill that is mastered fails this often."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The points of the grid, by their index into `kind`, `pace`, `loss`, and what they predict.

    Arguments:
        base_G: accuracy before any training.
        prior_G: the weight of a point's base and ceiling within its kind.
        curve_GN: accuracy after training with 0, 1, 2, ... examples.
    """

    kind_G: NDArray[np.int64]
    pace_G: NDArray[np.int64]
    loss_G: NDArray[np.int64]
    base_G: Array
    prior_G: Array
    curve_GN: Array


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is known of every subskill of a tree.

    Arguments:
        keys: skill and subskill, in the order of the rows.
        weights_LG: the probability of each grid point, for each subskill.
        value_L: the share of all validation problems that a subskill stands for, which its gain counts by.
        given_L: examples so far.
        within: for each skill, the probability that it is within reach.
    """

    keys: tuple[tuple[str, str], ...]
    weights_LG: Array
    value_L: Array
    given_L: NDArray[np.int64]
    within: dict[str, float]
    grid: Grid

    def marginals(self, more: int, weights_LG: Array | None = None, optimism: float = 0.0) -> Array:
        """What each of the next `more` examples of a subskill is expected to add to the accuracy over all problems.

        Arguments:
            weights_LG: other weights than the posterior's, such as a sample.
            optimism: standard deviations of the posterior that are added to its mean.
        """
        weights_LG = self.weights_LG if weights_LG is None else weights_LG
        step_GN = np.diff(self.grid.curve_GN, axis=1)
        mean_LN = weights_LG @ step_GN
        if optimism:
            spread_LN = np.sqrt(np.maximum(0.0, weights_LG @ step_GN**2 - mean_LN**2))
            mean_LN = mean_LN + optimism * spread_LN
        last = step_GN.shape[1] - 1
        place_LN = np.minimum(self.given_L[:, None] + np.arange(more)[None, :], last)
        return np.take_along_axis(mean_LN, place_LN, axis=1) * self.value_L[:, None]

    def accuracy(self) -> Array:
        """The expected accuracy of every subskill after training on what was given."""
        place_L = np.minimum(self.given_L, self.grid.curve_GN.shape[1] - 1)
        found: Array = np.einsum("lg,gl->l", self.weights_LG, self.grid.curve_GN[:, place_L])
        return found

    def sample(self, generator: np.random.Generator) -> Array:
        """Weights that hold one curve for each subskill, drawn from the posterior."""
        drawn_LG = np.zeros_like(self.weights_LG)
        for row, weights_G in enumerate(self.weights_LG):
            drawn_LG[row, generator.choice(len(weights_G), p=weights_G)] = 1.0
        return drawn_LG


def posterior(tree: Tree) -> Posterior:
    """What the validation answers so far say of every subskill."""
    leaves = [(branch, leaf) for branch in tree for leaf in branch.leaves]
    grid = _grid(1 + max([tree.budget, *(leaf.total for _, leaf in leaves)]))
    likelihood_LG = np.exp(np.stack([_log_likelihood(grid, leaf) for _, leaf in leaves]))
    rows: dict[str, list[int]] = {}
    for row, (branch, _) in enumerate(leaves):
        rows.setdefault(branch.name, []).append(row)
    weights_LG, within = _fit(grid, likelihood_LG, list(rows.values()))
    share = {branch.name: 1.0 / len(tree.branches) for branch in tree}
    asked = {branch.name: sum(leaf.measured[-1].count for leaf in branch.leaves) for branch in tree}
    value_L = np.array(
        [
            share[b.name] * (leaf.measured[-1].count / asked[b.name] if asked[b.name] else 1 / len(b.leaves))
            for b, leaf in leaves
        ]
    )
    return Posterior(
        tuple((branch.name, leaf.name) for branch, leaf in leaves),
        weights_LG,
        value_L,
        np.array([leaf.total for _, leaf in leaves], dtype=np.int64),
        dict(zip(rows, within.tolist(), strict=True)),
        grid,
    )


def _fit(grid: Grid, likelihood_LG: Array, skills: list[list[int]]) -> tuple[Array, Array]:
    """The posterior of every subskill, and of every skill that it is within reach, with shared rates fitted."""
    pace_P, loss_D = np.full(len(PACES), 1 / len(PACES)), np.array([0.5, 0.3, 0.2])
    kind_RK, reach = np.array(KINDS), WITHIN
    prior_pace, prior_loss, prior_kind = pace_P, loss_D, kind_RK
    for _ in range(STEPS):
        point_RG = kind_RK[:, grid.kind_G] * grid.prior_G * pace_P[grid.pace_G] * loss_D[grid.loss_G]
        joint_LRG = likelihood_LG[:, None, :] * point_RG[None, :, :]
        evidence_LR = joint_LRG.sum(axis=2)
        log_SR = np.stack([np.log(evidence_LR[rows]).sum(axis=0) for rows in skills]) + np.log([1 - reach, reach])
        within_SR = np.exp(log_SR - log_SR.max(axis=1, keepdims=True))
        within_SR /= within_SR.sum(axis=1, keepdims=True)
        reach_LR = np.empty_like(evidence_LR)
        for rows, chance_R in zip(skills, within_SR, strict=True):
            reach_LR[rows] = chance_R
        weights_LRG = joint_LRG / evidence_LR[:, :, None] * reach_LR[:, :, None]
        weights_LG = weights_LRG.sum(axis=1)
        kind_RK = _shared(np.stack([_by(grid.kind_G, weights_LRG[:, r].sum(axis=0), 3) for r in (0, 1)]), prior_kind)
        learning_G = weights_LG.sum(axis=0) * (grid.kind_G != OUT)
        pace_P = _shared(_by(grid.pace_G, learning_G, len(PACES)), prior_pace)
        loss_D = _shared(_by(grid.loss_G, weights_LG.sum(axis=0), len(LOSSES)), prior_loss)
        reach = float(_shared(within_SR.sum(axis=0), np.array([1 - WITHIN, WITHIN]))[1])
    return weights_LG / weights_LG.sum(axis=1, keepdims=True), within_SR[:, 1]


def _shared(counts: Array, prior: Array) -> Array:
    """Rates from counts and a prior that weighs `PRIOR_WEIGHT` of them; along the last axis."""
    found: Array = counts + PRIOR_WEIGHT * prior
    return found / found.sum(axis=-1, keepdims=True)


def _by(index_G: NDArray[np.int64], weight_G: Array, count: int) -> Array:
    return np.bincount(index_G, weights=weight_G, minlength=count).astype(np.float64)


def _log_likelihood(grid: Grid, leaf: Leaf) -> Array:
    found = np.zeros(len(grid.base_G))
    for place, measured in enumerate(leaf.measured):
        chance_G = grid.base_G if place == 0 else grid.curve_GN[:, sum(leaf.given[:place])]
        found += _binomial(measured, chance_G)
    return found


def _binomial(measured: Count, chance_G: Array) -> Array:
    chance_G = SLIP + (1 - 2 * SLIP) * chance_G
    found: Array = measured.correct * np.log(chance_G) + (measured.count - measured.correct) * np.log1p(-chance_G)
    return found


@cache
def _grid(longest: int) -> Grid:
    """The grid, with curves of at most `longest` examples."""
    points: list[tuple[int, int, int, float, float, float, float]] = []
    for kind, bases in BASES.items():
        weights = np.array(BASE_WEIGHTS[kind]) / sum(BASE_WEIGHTS[kind])
        ceilings = CEILINGS if kind == LEARNABLE else (0.0,)
        for base, weight in zip(bases, weights.tolist(), strict=True):
            for ceiling in ceilings:
                for pace in range(len(PACES)):
                    for loss, lost in enumerate(LOSSES):
                        start = base * (1 - lost)
                        top = {KNOWN: base, LEARNABLE: max(base, ceiling), OUT: start}[kind]
                        points.append((kind, pace, loss, base, weight / len(ceilings), start, top))
    kind_G, pace_G, loss_G = (np.array([point[k] for point in points], dtype=np.int64) for k in range(3))
    base_G, prior_G, start_G, top_G = (np.array([point[k] for point in points]) for k in range(3, 7))
    pace = np.array(PACES)[pace_G] * np.where(kind_G == KNOWN, 0.5, 1.0)
    left_GN = np.exp(-np.arange(longest + 1)[None, :] / pace[:, None])
    curve_GN = top_G[:, None] - (top_G - start_G)[:, None] * left_GN
    return Grid(kind_G, pace_G, loss_G, base_G, prior_G, curve_GN)
