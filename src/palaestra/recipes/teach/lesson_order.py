"""The order of one round's lesson: the teacher writes, checks filter, and missing examples are ordered again.

The cache stores every call of a model with its answer, and seeds derive from the run's seed. A run that is killed during an
order ends with the same lesson and pays no call twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from palaestra.core.errors import LessonError
from palaestra.core.records import Decision, Example, Failure, FailureCause, Lesson
from palaestra.core.seeding import Seeds
from palaestra.core.user_code import describe_location
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.teachers.base import Order, PlanningTeacher, TaskWriter, Teacher, Written, list_decisions, write_lesson

if TYPE_CHECKING:
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.teachers.quality.base import Check, Inspection

LEAKAGE = "overlap"
"""The name of the held-out check in counts of dropped examples."""
PERMANENT = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that repeat if the same request is sent again. All others are transient."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one lesson's order.

    Arguments:
        ordered: examples requested from the teacher.
        delivered: examples that were taught: written, and not dropped by a check.
        dropped: examples that a check dropped, counted by check and reason.
        withheld: examples on which a check failed.
        failures: failed calls of the writer and unusable data, counted by cause.
        messages: the first message of each cause.
        asked_again: how often missing examples were ordered again.
        unmeasured: calls without a known number of tokens. They are not part of the cost.
    """

    ordered: int
    delivered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    withheld: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    asked_again: int = 0
    unmeasured: int = 0

    @property
    def is_transient(self) -> bool:
        """Whether some failures are transient, so that resuming the run later may help."""
        return any(FailureCause(cause) not in PERMANENT for cause in self.failures)

    def explain(self) -> str:
        """Explain in one line where missing examples went; empty if there is no known cause."""
        parts = []
        if self.failures:
            first = next(iter(self.messages.values()), "")
            parts.append(
                f"writer failures: {describe_counts(self.failures)}" + (f" (the first: {first})" if first else "")
            )
        if self.dropped:
            parts.append(f"dropped by checks: {describe_counts(self.dropped)}")
        if self.withheld:
            parts.append(f"withheld because a check failed to run: {self.withheld}")
        return " ".join("; ".join(parts).split())


def add_up(deliveries: Sequence[Delivery]) -> Delivery:
    """Add up the counts of several deliveries."""
    dropped: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for delivery in deliveries:
        dropped.update(delivery.dropped)
        failures.update(delivery.failures)
        messages = {**delivery.messages, **messages}
    return Delivery(
        sum(d.ordered for d in deliveries), sum(d.delivered for d in deliveries), dict(sorted(dropped.items())),
        sum(d.withheld for d in deliveries), dict(sorted(failures.items())), messages,
        sum(d.asked_again for d in deliveries), sum(d.unmeasured for d in deliveries),
    )  # fmt: skip


def describe_counts(counts: Mapping[str, int]) -> str:
    """Describe counts by name in one line.

    >>> describe_counts({"malformed": 2, "refused": 1})
    'malformed 2, refused 1'
    """
    return ", ".join(f"{name} {count}" for name, count in counts.items())


class LessonOrder:
    """Builds one round's lesson. Call `fill`, then read `lesson` and `delivery`.

    Arguments:
        checks: the quality checks that every example must pass; empty for none.
    """

    def __init__(
        self, settings: TeachSettings, teacher: Teacher, checks: Sequence[Check], env: LessonEnv, state: StudentState
    ) -> None:
        self.settings, self.teacher, self.checks, self.env, self.state = settings, teacher, checks, env, state
        self.round = state.round + 1
        self.size = min(settings.lesson_size, state.budget)
        self.inspection: Inspection | None = None
        self.failures: list[Failure] = []
        self._kept: list[Example] = []
        self._decisions: list[Decision] = []
        self._leaked: Counter[str] = Counter()
        self._asked_again = 0

    def fill(self) -> None:
        """Let the teacher write, then order missing examples again, at most `top_up` times.

        Nothing is ordered again if the first order delivered nothing, or if the writer's service stops answering.
        """
        seeds = Seeds(self.settings.seed).derive("teacher", self.round)
        lesson, written = self._ask_teacher(seeds.generator())
        self._add(lesson.examples, [result for _, result in written])
        self._decisions += lesson.decisions
        orders = [order for order, _ in written]
        owners = {id(example): place for place, (_, result) in enumerate(written) for example in result.examples}
        answers = bool(lesson.examples)
        for attempt in range(1, self.settings.top_up + 1):
            again = self._list_missing(orders, owners)
            if not again or not answers or not isinstance(self.teacher, PlanningTeacher):
                break
            results = self.teacher.writer.write(list(again.values()), seeds.derive("top up", attempt).generator())
            owners |= {id(e): place for place, result in zip(again, results, strict=True) for e in result.examples}
            before = len(self._kept)
            self._add([example for result in results for example in result.examples], results)
            count, came = sum(order.count for order in again.values()), len(self._kept) - before
            self._asked_again += 1
            self._decisions.append(
                Decision("", "ordered again", f"{count} examples were missing; {came} were delivered")
            )
            self._decisions += [d for d in list_decisions(list(again.values()), results) if d.action == "failed"]
            failures = [failure for result in results for failure in result.failures]
            answers = any(r.examples for r in results) or all(failure.cause in PERMANENT for failure in failures)
        if self.inspection is not None and len(self.inspection.kept) < self.inspection.count:
            self._decisions.append(Decision("", "checked", str(self.inspection)))

    def _ask_teacher(self, generator: np.random.Generator) -> tuple[Lesson, list[tuple[Order, Written]]]:
        """Call the teacher `accumulate` times. Returns the joined lesson and the orders that went to a writer."""
        settings = self.settings
        parts: list[Lesson] = []
        written: list[tuple[Order, Written]] = []
        for part in range(settings.accumulate):
            count = self.size // settings.accumulate + (part < self.size % settings.accumulate)
            if count:
                lesson = write_lesson(self.teacher, settings.teacher, self.state, count, generator)
                if lesson.examples != ():
                    self._check_shape(lesson)
                parts.append(lesson)
                if isinstance(self.teacher, PlanningTeacher):
                    written += self.teacher.written
        return Lesson(
            tuple(example for lesson in parts for example in lesson.examples),
            tuple(decision for lesson in parts for decision in lesson.decisions),
        ), written

    def _check_shape(self, lesson: Lesson) -> None:
        from palaestra.envs.lesson.state import check_lesson

        try:
            check_lesson(lesson, self.env.task.skills())
        except LessonError as error:
            raise self.refuse(str(error)) from error

    def refuse(self, reason: str) -> LessonError:
        """An error that names the teacher, and the file and line of user code."""
        location = describe_location(type(self.teacher).write)
        if not location and isinstance(self.teacher, PlanningTeacher) and isinstance(self.teacher.writer, TaskWriter):
            location = describe_location(self.teacher.writer.task.write_examples)
        return LessonError(
            f"teacher '{self.settings.teacher}' wrote a lesson that cannot be taught: {reason}{location}"
        )

    def _add(self, examples: Sequence[Example], written: Sequence[Written]) -> None:
        """Add the examples that pass the checks, and record the failures of the writer."""
        self.failures += [failure for result in written for failure in result.failures]
        if not examples:
            return
        if self.checks:
            from palaestra.teachers.quality.base import Context, inspect

            env, seeds = self.env, Seeds(self.settings.seed).derive("checks", self.round)
            context = Context(
                env.task, env.held_out, (*env.data, *self._kept), env.student, env.engine, env.sampling, seeds.integer()
            )
            inspection = inspect(Lesson(tuple(examples)), self.checks, context)
            self.inspection = inspection if self.inspection is None else self.inspection.join(inspection)
            examples = inspection.kept
        if examples:
            kept, leaked = self.env.screen(Lesson(tuple(examples)))
            self._kept += kept
            self._leaked.update(leaked)

    def _list_missing(self, orders: Sequence[Order], owners: Mapping[int, int]) -> dict[int, Order]:
        """List the orders that came short, by position, each for its missing examples; together at most the lesson's."""
        came = Counter(owners.get(id(example)) for example in self._kept)
        left, missing = self.size - len(self._kept), {}
        for place, order in enumerate(orders):
            count = min(order.count - came[place], left)
            if count > 0:
                missing[place] = replace(order, count=count)
                left -= count
        return missing

    @property
    def lesson(self) -> Lesson:
        return Lesson(tuple(self._kept), tuple(self._decisions))

    @property
    def delivery(self) -> Delivery:
        dropped: Counter[str] = Counter({f"{LEAKAGE}: {reason}": count for reason, count in self._leaked.items()})
        for drop in self.inspection.dropped if self.inspection is not None else ():
            dropped[f"{drop.check}: {drop.reason}"] += 1
        messages: dict[str, str] = {}
        for failure in self.failures:
            messages.setdefault(str(failure.cause), failure.message)
        failures = Counter(str(failure.cause) for failure in self.failures)
        withheld = self.inspection.withheld if self.inspection is not None else 0
        return Delivery(
            self.size, len(self._kept), dict(sorted(dropped.items())), withheld, dict(sorted(failures.items())),
            messages, self._asked_again,
        )  # fmt: skip
