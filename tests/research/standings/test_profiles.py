"""Performance profiles reproduce the published areas; cases that MLGym leaves open behave as documented."""

from __future__ import annotations

import math

import numpy as np
import pytest

from palaestra.research.standings.standings import (
    PENALTY,
    POINTS,
    Floats,
    area_under_profile,
    performance_ratios,
    threshold_limit,
)

METHODS = ("baseline", "Llama-3.1-405B", "GPT-4o", "Claude-3.5-Sonnet", "Gemini-1.5-Pro", "o1-preview")
NONE = math.nan

# Facts of the evaluation in arXiv 2502.14499 (MLGym): best attempt@4 and best submission@4 of its five models on twelve
# of its thirteen tasks, and the AUP that was published with exactly this table (github.com/omi-n/MLGym, results/tables).
PUBLISHED = {
    "house prices": [(0.880, 0.908, 0.895, 0.921, 0.914, 0.931), (0.880, 0.908, 0.895, 0.912, 0.908, 0.931)],
    "3-SAT": [(16.158, 13.793, 13.676, 15.728, 14.36, 13.652), (16.158, 13.936, 13.676, 15.728, 14.36, 13.83)],
    "CIFAR-10": [(0.497, 0.548, 0.733, 0.895, 0.84, 0.857), (0.497, 0.528, 0.733, 0.894, 0.758, 0.854)],
    "Fashion-MNIST": [(0.783, 0.876, 0.927, 0.945, 0.916, 0.92), (0.783, 0.876, 0.927, 0.945, 0.916, 0.906)],
    "language model": [(4.673, NONE, 4.361, 4.476, 4.166, 3.966), (4.673, NONE, 4.361, 4.476, 4.166, 3.966)],
    "MNLI": [(52.511, 77.748, 81.946, 83.036, 83.821, 83.627), (52.511, 77.748, 81.946, 83.036, 83.821, 83.627)],
    "battle of the sexes": [(1.023, 1.261, 1.149, 1.442, 1.443, 1.444), (1.023, 1.256, 1.144, 1.439, 1.443, 1.439)],
    "prisoner's dilemma": [(2.372, 2.632, 2.6, 2.567, 2.63, 2.629), (2.372, 2.562, 2.582, 2.563, 2.63, 2.571)],
    "Blotto": [(-0.248, 0.043, 0.047, 0.576, 0.249, 0.248), (-0.248, 0.041, 0.047, 0.228, 0.088, 0.247)],
    "Breakout": [(48.817, 58.87, 0.0, 35.017, 71.389, 63.518), (48.817, 58.87, 0.0, 17.735, 71.389, 63.518)],
    "maze": [(15.734, 26.744, 7.823, 48.562, 27.859, 34.986), (15.734, 26.744, 7.823, 48.562, 22.889, 34.986)],
    "mountain car": [
        (33.794, 18.692, -215.776, 36.313, 92.513, 96.335),
        (33.794, 18.692, -216.621, 36.313, 92.513, 96.335),
    ],
}
LOWER_IS_BETTER = {"3-SAT", "language model"}
PUBLISHED_AREAS = [(0.935, 1.000, 0.988, 1.137, 1.139, 1.150), (0.964, 1.026, 1.018, 1.134, 1.122, 1.178)]


def load_published_scores(measure: int) -> tuple[Floats, Floats, np.ndarray]:
    scores_TM = np.array([row[measure] for row in PUBLISHED.values()])
    return scores_TM, scores_TM[:, 0], np.array([task not in LOWER_IS_BETTER for task in PUBLISHED])


def plain_ratios(scores: list[float], baseline: float, higher: bool) -> tuple[list[float], float]:
    """The definition once more, one task and one method at a time; for scores above 0."""
    feasible = [s for s in scores if not math.isnan(s) and (s >= baseline if higher else s <= baseline)]
    best = max(feasible) if higher else min(feasible)
    own = {s: best / s if higher else s / best for s in feasible}
    penalty = 1.05 * max(own.values())
    return [own.get(s, penalty) for s in scores], penalty


def test_a_published_table_gives_the_published_areas() -> None:
    result = [performance_ratios(*load_published_scores(measure)) for measure in (0, 1)]
    limit = threshold_limit(np.concatenate([ratios.penalty_T for ratios in result]))
    assert limit == 1.2
    for ratios, areas in zip(result, PUBLISHED_AREAS, strict=True):
        # Not only within 0.001: all twelve figures are the published ones, to the last digit that was published.
        assert area_under_profile(ratios.ratios_TM, limit).round(3).tolist() == list(areas)


def test_ratios_are_those_of_the_definition_computed_one_by_one() -> None:
    generator = np.random.default_rng(3)
    for _ in range(100):
        scores_TM = generator.uniform(0.1, 5.0, (7, 5)).round(2)
        scores_TM[generator.random(scores_TM.shape) < 0.2] = math.nan
        scores_TM[:, 0] = generator.uniform(0.1, 5.0, 7).round(2)
        higher_T = generator.random(7) < 0.5
        result = performance_ratios(scores_TM, scores_TM[:, 0], higher_T)
        for t, row in enumerate(scores_TM.tolist()):
            ratios, penalty = plain_ratios(row, row[0], bool(higher_T[t]))
            assert result.ratios_TM[t].tolist() == pytest.approx(ratios)
            assert result.penalty_T[t] == pytest.approx(penalty)


def profile(ratios_TM: Floats, thresholds_P: Floats) -> Floats:
    """Return the fraction of tasks on which each method is within `10 ** threshold` of the best."""
    fractions: Floats = (np.log10(ratios_TM)[..., None] <= thresholds_P).mean(-3)
    return fractions


def test_the_area_is_that_of_the_curve_integrated_densely() -> None:
    generator = np.random.default_rng(4)
    ratios_TM = 10 ** generator.uniform(0.0, 1.1, (9, 4))
    dense = np.linspace(0.0, 1.1, 100_001)
    integrated, summed = np.trapezoid(profile(ratios_TM, dense), dense), area_under_profile(ratios_TM, 1.1)
    assert (summed <= integrated + 1e-4).all()
    assert (integrated - summed <= 1.1 / (POINTS - 1) + 1e-4).all()
    grid = np.linspace(0.0, 1.1, POINTS)
    assert summed == pytest.approx((profile(ratios_TM, grid)[:, :-1] * np.diff(grid)).sum(-1))


def test_a_case_by_hand() -> None:
    # Higher is better: 2 is the best of 2 and 1; 0.5 is worse than the baseline. Lower is better: 10 is the best.
    scores = np.array([[2.0, 1.0, 0.5], [20.0, 10.0, math.nan]])
    result = performance_ratios(scores, np.array([1.0, 20.0]), np.array([True, False]))
    assert result.ratios_TM.tolist() == [[1.0, 2.0, 2.0 * PENALTY], [2.0, 1.0, 2.0 * PENALTY]]
    assert result.feasible_TM.tolist() == [[True, True, False], [True, True, False]]
    assert threshold_limit(result.penalty_T) == 0.5  # 2.1 rounded up is 3, whose logarithm is 0.477
    areas = area_under_profile(result.ratios_TM, 0.5)
    exact = [0.5 - math.log10(2) / 2] * 2 + [0.5 - math.log10(2.1)]
    assert areas.tolist() == pytest.approx(exact, abs=0.5 / (POINTS - 1))


@pytest.mark.parametrize(
    ("scores", "baseline", "higher", "ratios"),
    [
        pytest.param([-0.2, 0.4, -0.1], -0.2, True, [1.05, 1.0, 1.05], id="a negative score has no ratio"),
        pytest.param([-3.0, -5.0], -3.0, False, [math.inf, math.inf], id="nor where lower is better"),
        pytest.param([0.0, 0.5, 0.25], 0.0, True, [2.1, 1.0, 2.0], id="0 is infinitely far from the best"),
        pytest.param([0.0, 0.0, -1.0], 0.0, True, [1.0, 1.0, 1.05], id="but not where it is the best"),
        pytest.param([5.0, 0.0, 2.0], 5.0, False, [1.05, 1.0, 1.05], id="and nothing is near a perfect 0"),
        pytest.param([-1.0, -0.5, math.nan], -1.0, True, [math.inf] * 3, id="nobody is feasible"),
        pytest.param([0.7, 0.7, 0.7], 0.7, True, [1.0, 1.0, 1.0], id="ties are all the best"),
        pytest.param([0.7], 0.7, True, [1.0], id="one method alone is the best"),
        pytest.param([1e-320, 1.0], 1e-320, True, [1.05, 1.0], id="a ratio that overflows is none"),
    ],
)
def test_edges(scores: list[float], baseline: float, higher: bool, ratios: list[float]) -> None:
    result = performance_ratios(np.array([scores]), np.array([baseline]), np.array([higher]))
    assert result.ratios_TM[0].tolist() == pytest.approx(ratios)


def test_task_without_feasible_method_counts_for_nobody() -> None:
    scores = np.array([[1.0, 2.0], [-1.0, -0.5]])
    result = performance_ratios(scores, scores[:, 0], np.array([True, True]))
    limit = threshold_limit(result.penalty_T)
    assert limit == threshold_limit(result.penalty_T[:1])
    assert profile(result.ratios_TM, np.array([limit])).tolist() == [[0.5], [0.5]]
    assert area_under_profile(result.ratios_TM, limit)[1] == pytest.approx(limit / 2)
    assert threshold_limit(np.array([math.inf])) == 0.4


def test_area_depends_on_the_compared_methods_only() -> None:
    scores_TM, baseline_T, higher_T = load_published_scores(0)
    ratios_TM = performance_ratios(scores_TM, baseline_T, higher_T).ratios_TM
    areas = area_under_profile(ratios_TM, 1.2)
    scaled = performance_ratios(100 * scores_TM, 100 * baseline_T, higher_T).ratios_TM
    assert area_under_profile(scaled, 1.2) == pytest.approx(areas)
    turned = performance_ratios(scores_TM[::-1, ::-1], baseline_T[::-1], higher_T[::-1]).ratios_TM
    assert area_under_profile(turned, 1.2)[::-1] == pytest.approx(areas)
    without = performance_ratios(scores_TM[:, [0, 1, 2, 4, 5]], baseline_T, higher_T).ratios_TM
    others = area_under_profile(without, 1.2)
    assert others[-1] > areas[-1] + 0.02  # without the strongest rival on three tasks


def test_better_score_never_reduces_the_area() -> None:
    generator = np.random.default_rng(5)
    higher_T = np.array([True, False, True, True])
    for _ in range(100):
        scores_TM = generator.uniform(0.5, 3.0, (4, 3))
        before = area_under_profile(performance_ratios(scores_TM, scores_TM[:, 0], higher_T).ratios_TM, 1.0)[1]
        t = generator.integers(4)
        better = scores_TM.copy()
        better[t, 1] *= 1.1 if higher_T[t] else 1 / 1.1
        after = area_under_profile(performance_ratios(better, better[:, 0], higher_T).ratios_TM, 1.0)[1]
        assert after >= before - 1e-12
