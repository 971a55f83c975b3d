"""Teachers without a model of learning: the baseline `no_state`, and those that follow the student's results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from palaestra.envs.lesson.state import StudentState, ValidationAttempt
from palaestra.tasks.base import Task
from palaestra.teachers.base import Order, PlanningTeacher, TaskWriter, Writer


class NoState(PlanningTeacher):
    """Orders the same number of examples for every skill, and for every subskill of a skill."""

    reads_references = False

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        orders = []
        # A random order, so that the remainder goes to other skills in each round.
        names = [str(name) for name in generator.permutation(list(self.skills))]
        for skill, count in share_out(size, dict.fromkeys(names, 1.0)).items():
            parts = [str(part) for part in generator.permutation(list(self.skills[skill]) or [""])]
            orders += [
                Order(skill, part, share, "uniform", "the same number for every skill")
                for part, share in share_out(count, dict.fromkeys(parts, 1.0)).items()
            ]
        return orders


class OpenEnded(PlanningTeacher):
    """Samples wrong answers of all skills and orders some examples for each.

    Without wrong answers (all are correct, or the state is hidden) it teaches all skills equally.

    Arguments:
        per_error: examples for each wrong answer; fewer if there are too many errors for the lesson.
    """

    def __init__(
        self, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None, per_error: int = 4
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.per_error, self.reads_references = per_error, not isinstance(self.writer, TaskWriter)

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        wrong = [a for a in state.attempts if a.correct == "no" and (a.skill in self.skills or not a.skill)]
        if not wrong:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        # Sample without replacement. With few errors, each gets more examples.
        count = min(len(wrong), max(1, -(-size // self.per_error)))
        drawn = [wrong[int(place)] for place in generator.permutation(len(wrong))[:count]]
        shares = share_out(size, dict.fromkeys(range(count), 1.0))
        seen = Counter(error.skill for error in drawn)
        reasons = {skill: f"{n} of {count} sampled wrong answers" for skill, n in seen.items()}
        return [
            Order(error.skill, error.subskill, shares[place], "mend", reasons[error.skill], errors=(error,))
            for place, error in enumerate(drawn)
        ]


class SkillList(PlanningTeacher):
    """Divides a lesson by the error rate of each skill, and each skill among a few hypotheses.

    A hypothesis is a subskill with wrong answers; those with the most come first. A language model as the writer sees the
    wrong answers. Without wrong answers (all are correct, or the state is hidden) it teaches all skills equally.

    Arguments:
        hypotheses: hypotheses per skill and round.
        shown: wrong answers in the writer's prompt for each hypothesis.
    """

    def __init__(
        self,
        task: Task,
        skills: tuple[str, ...] = (),
        *,
        writer: Writer | None = None,
        hypotheses: int = 3,
        shown: int = 4,
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.hypotheses, self.shown, self.reads_references = hypotheses, shown, not isinstance(self.writer, TaskWriter)

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        wrong: dict[str, list[ValidationAttempt]] = {}
        asked = Counter(attempt.skill for attempt in state.attempts if attempt.correct != "failed")
        for attempt in state.attempts:
            if attempt.correct == "no" and attempt.skill in self.skills:
                wrong.setdefault(attempt.skill, []).append(attempt)
        if not wrong:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        rates = {skill: len(several) / asked[skill] for skill, several in wrong.items()}
        orders = []
        for skill, share in share_out(size, rates).items():
            reason = f"{len(wrong[skill])} of {asked[skill]} answers wrong"
            parts = Counter(attempt.subskill for attempt in wrong[skill])
            # A random order breaks ties between subskills with equally many errors.
            order = {name: k for k, name in enumerate(generator.permutation(sorted(parts)).tolist())}
            chosen = sorted(parts, key=lambda name: (-parts[name], order[name]))[: self.hypotheses]
            for part, count in share_out(share, {name: float(parts[name]) for name in chosen}).items():
                errors = [attempt for attempt in wrong[skill] if attempt.subskill == part]
                picked = tuple(errors[int(place)] for place in generator.permutation(len(errors))[: self.shown])
                orders.append(Order(skill, part, count, "mend", reason, errors=picked))
        return orders


class LearnabilityTeacher(PlanningTeacher):
    """Sampling for learnability (SFL, arXiv 2408.15099): a subskill's share is p(1 - p) at its accuracy p.

    The accuracy is that of the subskill's report with one right and one wrong answer more. Without results it teaches all
    skills equally.

    Arguments:
        explore: the fraction of a lesson that is divided equally.
    """

    reads_references = False

    def __init__(
        self, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None, explore: float = 0.2
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.explore = explore

    def weigh(self, state: StudentState) -> dict[tuple[str, str], tuple[float, str]]:
        """The weight of each subskill with its reason; empty without results."""
        weights = {}
        for part in state.report.slices:
            for leaf in (part.slices or (part,)) if part.name in self.skills else ():
                rate = (leaf.correct + 1) / (leaf.count + 2)
                name = leaf.name if part.slices else ""
                weights[part.name, name] = rate * (1 - rate), f"{leaf.correct} of {leaf.count} answers right"
        return weights

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        weights = self.weigh(state)
        total = sum(weight for weight, _ in weights.values())
        if not total:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        # A random order, so that the remainder goes to other subskills in each round.
        keys = [list(weights)[int(place)] for place in generator.permutation(len(weights))]
        shares = {key: (1 - self.explore) * weights[key][0] / total + self.explore / len(keys) for key in keys}
        return [Order(*key, count, "follow", weights[key][1]) for key, count in share_out(size, shares).items()]


class ProgressTeacher(LearnabilityTeacher):
    """Learning progress (arXiv 1707.00183): a skill's share is the change of its accuracy in the last round, up or down.

    In the first round it teaches all skills equally.
    """

    def weigh(self, state: StudentState) -> dict[tuple[str, str], tuple[float, str]]:
        reports = [state.before, *(round_.report for round_ in state.history)][-2:]
        first, last = (
            {part.name: part.accuracy or 0.0 for part in report.slices} for report in (reports[0], reports[-1])
        )
        weights = {}
        for skill in self.skills if len(reports) > 1 else ():
            change = last.get(skill, 0.0) - first.get(skill, 0.0)
            for part in self.skills[skill] or ("",):
                reason = f"{100 * change:+.0f} points in the last round"
                weights[skill, str(part)] = abs(change) / max(1, len(self.skills[skill])), reason
        return weights


K = TypeVar("K", bound=Hashable)


def share_out(total: int, weights: Mapping[K, float], caps: Mapping[K, int] | int | None = None) -> dict[K, int]:
    """Split `total` by `weights` into integers that add up to it, none of them above its cap.

    The excess of a capped part goes to the others; if all are capped, the rest stays unspent.
    Rounding uses largest remainders; the order of `weights` breaks ties.

    Arguments:
        caps: one cap for all, or a cap for each key.

    >>> share_out(10, {"a": 2.0, "b": 1.0, "c": 0.0})
    {'a': 7, 'b': 3, 'c': 0}
    >>> share_out(10, {"a": 9.0, "b": 1.0}, 6)
    {'a': 6, 'b': 4}
    """
    most = caps if isinstance(caps, Mapping) else dict.fromkeys(weights, total if caps is None else caps)
    shares = dict.fromkeys(weights, 0)
    left = total
    while left > 0:
        keys = [key for key in weights if weights[key] > 0 and shares[key] < most[key]]
        if not keys:
            break
        mass = sum(weights[key] for key in keys)
        exact = {key: left * weights[key] / mass for key in keys}
        whole = {key: int(exact[key]) for key in keys}
        rest = left - sum(whole.values())
        for key in sorted(keys, key=lambda key: whole[key] - exact[key])[:rest]:
            whole[key] += 1
        for key in keys:
            given = min(whole[key], most[key] - shares[key])
            shares[key] += given
            left -= given
    return shares
