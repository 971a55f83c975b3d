"""Accuracy over pairs, as NaturalBench defines it (Li et al., 2024).

A group has two questions about two images, so four answers. A model that ignores the image gives the same answer for
both, and one of them is wrong:

- question accuracy (Q-Acc): of questions, right for both images;
- image accuracy (I-Acc): of images, right for both questions;
- group accuracy (G-Acc): of groups, right in all four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean

from palaestra.core.errors import TaskError
from palaestra.core.records import Attempt
from palaestra.core.statistics import Mean, rate_interval

Group = tuple[tuple[bool, bool], tuple[bool, bool]]
"""`group[question][image]`: whether that answer was right."""

PLACES = tuple(product((0, 1), (0, 1)))
"""Question and image of each of the four answers."""


def compute_paired_means(attempts: Sequence[Attempt]) -> dict[str, Mean]:
    """The three accuracies of attempts at groups of `naturalbench`, by name; empty if no group is complete.

    A group counts if all four answers were scored. Others are left out, which the counts show. With several samples per
    problem, the first samples form one group, the second ones another, and the value is the mean over these.

    Raises:
        TaskError: an attempt belongs to no group.
    """
    rounds: dict[tuple[str, int], dict[tuple[int, int], bool | None]] = {}
    for attempt in attempts:
        meta = attempt.problem.metadata
        if not {"group", "question", "image"} <= set(meta):
            raise TaskError(f"problem '{attempt.problem.id}' belongs to no group; paired accuracy is for naturalbench")
        answers = rounds.setdefault((str(meta["group"]), attempt.sample), {})
        answers[int(meta["question"]), int(meta["image"])] = attempt.correct
    groups: dict[str, list[Group]] = {}
    for (name, _), answers in rounds.items():
        a, b, c, d = (answers.get(place) for place in PLACES)
        if a is not None and b is not None and c is not None and d is not None:
            groups.setdefault(name, []).append(((a, b), (c, d)))
    return of_groups(list(groups.values())) if groups else {}


def of_groups(groups: Sequence[Sequence[Group]]) -> dict[str, Mean]:
    """The three accuracies of `groups`, of each of which there is one for every sample.

    >>> found = of_groups([[((True, True), (True, False))], [((True, True), (True, True))]])
    >>> {name: (mean.value, mean.count) for name, mean in found.items()}
    {'question accuracy': (0.75, 4), 'image accuracy': (0.75, 4), 'group accuracy': (0.5, 2)}
    """
    judges: dict[str, tuple[Callable[[Group], bool], ...]] = {
        "question accuracy": (lambda g: all(g[0]), lambda g: all(g[1])),
        "image accuracy": (lambda g: g[0][0] and g[1][0], lambda g: g[0][1] and g[1][1]),
        "group accuracy": (lambda g: all(map(all, g)),),
    }
    return {
        name: rate_interval([fmean(map(right, samples)) for samples in groups for right in several])
        for name, several in judges.items()
    }
