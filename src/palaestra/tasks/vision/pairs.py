"""Accuracy over pairs, as NaturalBench defines it (Li et al., 2024).

A group is two questions about two images, four answers in all. Whoever does not look at the image
answers a question alike for both, and gets one of the two wrong:

- accuracy: the share of answers that are right;
- question accuracy (Q-Acc): of questions, right for both images;
- image accuracy (I-Acc): of images, right for both questions;
- group accuracy (G-Acc): of groups, right in all four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.core.errors import TaskError
from palaestra.core.records import Attempt

Group = tuple[tuple[bool, bool], tuple[bool, bool]]
"""`group[question][image]`: whether that answer was right."""


@dataclass(frozen=True, slots=True)
class PairedAccuracy:
    """Four accuracies from 0 to 1 over `groups` groups; `None` where there is no group.

    `left_out` groups had an attempt that failed, so nothing is known of them.
    """

    accuracy: float | None
    question: float | None
    image: float | None
    group: float | None
    groups: int
    left_out: int = 0


def paired_accuracy(groups: Sequence[Group], left_out: int = 0) -> PairedAccuracy:
    """The four accuracies of `groups`.

    >>> paired_accuracy([((True, True), (True, False)), ((True, True), (True, True))])
    PairedAccuracy(accuracy=0.875, question=0.75, image=0.75, group=0.5, groups=2, left_out=0)
    """
    count = len(groups)
    if not count:
        return PairedAccuracy(None, None, None, None, 0, left_out)
    answers = sum(sum(question) for group in groups for question in group)
    questions = sum(all(question) for group in groups for question in group)
    images = sum(all(image) for group in groups for image in zip(*group, strict=True))
    whole = sum(all(map(all, group)) for group in groups)
    return PairedAccuracy(answers / (4 * count), questions / (2 * count), images / (2 * count), whole / count, count, left_out)  # fmt: skip


def of_attempts(attempts: Sequence[Attempt]) -> PairedAccuracy:
    """The four accuracies of attempts at whole groups of `naturalbench`.

    Raises:
        TaskError: an attempt belongs to no group, or a group is not whole.
    """
    found: dict[str, dict[tuple[int, int], bool | None]] = {}
    for attempt in attempts:
        meta = attempt.problem.metadata
        if not {"group", "question", "image"} <= set(meta):
            raise TaskError(f"problem '{attempt.problem.id}' belongs to no group; paired accuracy is for naturalbench")
        found.setdefault(str(meta["group"]), {})[int(meta["question"]), int(meta["image"])] = attempt.correct
    groups, left_out = [], 0
    for name, answers in found.items():
        if len(answers) != 4:
            raise TaskError(f"group '{name}' has {len(answers)} attempts; paired accuracy needs all 4 of a group")
        if None in answers.values():
            left_out += 1
            continue
        right = [[answers[question, image] is True for image in (0, 1)] for question in (0, 1)]
        groups.append(((right[0][0], right[0][1]), (right[1][0], right[1][1])))
    return paired_accuracy(groups, left_out)
