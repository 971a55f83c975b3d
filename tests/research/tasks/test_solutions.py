"""The baselines and references of the built-in tasks reproduce their scores, and every reference leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import pytest
from research_judges import load_judge, measure_solution

from palaestra.research.tasks.task import Grade, task_names


class Published(NamedTuple):
    """Scores on the validation and the test split, the tolerances of baseline and reference, and the smallest gain."""

    baseline: tuple[float, float]
    reference: tuple[float, float]
    tolerances: tuple[float, float] = (0.01, 0.01)
    gain: float = 0.7


PUBLISHED = {
    "battle_of_sexes": Published((1.364, 1.386), (2.090, 2.119)),
    "colonel_blotto": Published((0.454, 0.412), (0.7675, 0.7725)),
    "digit_images": Published((0.543, 0.547), (0.846, 0.879), (0.01, 0.04), 0.8),
    # A ratio of times.
    "faster_generation": Published((0.94, 0.95), (13.4, 19.1), (0.4, 12.0), 0.6),
    "fine_tune_digits": Published((0.494, 0.4995), (0.688, 0.656), (0.005, 0.02), 0.8),
    "fruit_cart": Published((28.25, 22.94), (43.31, 41.5), (0.1, 0.1)),
    "grid_maze": Published((0.475, 0.521), (0.735, 0.734)),
    "mountain_car": Published((180.0, 177.6), (29.35, 29.54), (1.0, 1.0)),
    "nano_post_train": Published((0.553, 0.550), (0.844, 0.856), (0.03, 0.05), 0.7),
    "picture_captions": Published((0.701, 0.694), (0.924, 0.930), (0.005, 0.03)),
    "prisoners_dilemma": Published((2.621, 2.653), (2.917, 3.001)),
    "sat_branching": Published((61.13, 71.31), (27.06, 30.00), (1.0, 1.0)),
    "tabular_classification": Published((0.527, 0.516), (0.870, 0.884), (0.015, 0.02), 0.8),
    "tabular_regression": Published((0.289, 0.289), (0.129, 0.132), (0.003, 0.006), 0.8),
    "text_classification": Published((0.371, 0.373), (0.871, 0.856), (0.015, 0.02), 0.8),
    "tiny_language_model": Published((1.576, 1.539), (0.601, 0.591), (0.01, 0.02), 0.8),
    # The arithmetic of another machine makes another model of the same training.
    "tune_ppo": Published((0.366, 0.349), (0.679, 0.652), (0.08, 0.08), 0.6),
    "write_lessons": Published((0.281, 0.259), (0.653, 0.688), (0.08, 0.08), 0.6),
    "write_teacher": Published((9.98, 5.90), (16.67, 14.93), (3.0, 3.0), 0.6),
}
SLOW = {"faster_generation", "nano_post_train", "sat_branching", "tune_ppo", "write_lessons", "write_teacher"}
SLOW_REFERENCES = SLOW | {
    "digit_images",
    "fruit_cart",
    "picture_captions",
    "tabular_classification",
    "tabular_regression",
    "text_classification",
    "tiny_language_model",
}


FIRST_IDEAS = {
    "fruit_cart": (
        "policy.py",
        "def act(seen):\n"
        "    fruit = [one for one in seen['objects'] if one[0] != 'rock' and abs(one[2] - seen['cart'])"
        " <= -(-(10 - one[1]) // (2 if one[0] == 'plum' else 1))]\n"
        "    target = max(fruit, key=lambda one: (one[0] == 'plum', one[1]))[2] if fruit and len(seen['load']) < 3 else 0\n"
        "    return 'left' if target < seen['cart'] else 'right' if target > seen['cart'] else 'stay'\n",
        31.06,
    ),
    "mountain_car": ("policy.py", "def act(observation):\n    return 1.0 if observation[1] > 0 else -1.0\n", 380.0),
    "prisoners_dilemma": (
        "strategy.py",
        "def choose(mine, theirs):\n    return 'D' if theirs[-2:] == ['D', 'D'] else 'C'\n",
        2.633,
    ),
    "sat_branching": (
        "branching.py",
        "def choose(clauses):\n    weights = {}\n    for clause in clauses:\n        for literal in clause:\n"
        "            weights[literal] = weights.get(literal, 0) + 2.0 ** -len(clause)\n"
        "    return max(weights, key=lambda literal: weights[literal] + weights.get(-literal, 0))\n",
        96.25,
    ),
}
"""A file with the first idea that comes to mind, and its score on the test split."""


def list_cases(slow: Collection[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.backends] if name in slow else []) for name in PUBLISHED]


def test_every_task_has_published_scores() -> None:
    assert set(PUBLISHED) == set(task_names())


@pytest.mark.parametrize("name", list_cases(SLOW))
def test_baseline_reproduces(name: str) -> None:
    solution, published = measure_solution(name, "baseline"), PUBLISHED[name]
    scores = solution.validation.score, solution.test.score
    assert scores == pytest.approx(published.baseline, abs=published.tolerances[0])


@pytest.mark.backends
@pytest.mark.parametrize("name", list_cases(SLOW_REFERENCES))
def test_reference_reproduces_and_leads_on_both_splits(name: str) -> None:
    solution, baseline, published = (
        measure_solution(name, "reference"),
        measure_solution(name, "baseline"),
        PUBLISHED[name],
    )
    metric, scores = load_judge(name).task.metric, (solution.validation.score, solution.test.score)
    assert scores == pytest.approx(published.reference, abs=published.tolerances[1])
    for score, other in zip(scores, (baseline.validation.score, baseline.test.score), strict=True):
        assert metric.gain(score, other) > published.gain


@pytest.mark.parametrize("name", [case for case in list_cases(SLOW) if case.values[0] in FIRST_IDEAS])
def test_first_idea_is_far_from_the_reference(name: str) -> None:
    judge, published = load_judge(name), PUBLISHED[name]
    file, text, score = FIRST_IDEAS[name]
    outcome = judge.judge({**judge.task.starter_files(), file: text.encode()}, "test")
    assert isinstance(outcome, Grade), outcome
    assert outcome.score == pytest.approx(score, rel=0.01)
    gains = [judge.task.metric.gain(value, published.baseline[1]) for value in (outcome.score, published.reference[1])]
    assert gains[0] < 0.5 * gains[1]
