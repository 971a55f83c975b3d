"""One round's order: the teacher writes, checks filter, and what is missing is ordered again.

Calls of a model are kept in the cache with their answers, and their seeds follow from the run's seed. So a run that is
killed while it orders again ends with the same lesson, and pays no answered call twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.records import Decision, Example, Failure, Lesson
from palaestra.core.seeding import Seeds
from palaestra.recipes.teach.delivery import LASTING, Delivery, count_failures
from palaestra.teachers.base import list_decisions, write_lesson
from palaestra.teachers.writers import Order, Writer, Written

if TYPE_CHECKING:
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.recipes.teach.lessons import Lessons
    from palaestra.teachers.quality import Inspection

LEAKAGE = "overlap"
"""The check against held-out problems, in counts of what was dropped."""


class LessonOrder:
    """The order of one round's lesson: lets the teacher write it, checks it, and orders again what is missing."""

    def __init__(self, lessons: Lessons, env: LessonEnv, state: StudentState, phase: str) -> None:
        self.lessons, self.env, self.state, self.phase, self.round = lessons, env, state, phase, state.round + 1
        self.size = min(lessons.settings.lesson_size, state.budget)
        self.inspection: Inspection | None = None
        self._kept: list[Example] = []
        self._decisions: list[Decision] = []
        self._leaked: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self._asked_again = 0

    def fill(self) -> None:
        """Let the teacher write; then order what is missing, at most `top_up` times, until the lesson is whole.

        Nothing is ordered again if the first try brought nothing, or if the writer's service stops answering.
        """
        settings, seeds = self.lessons.settings, Seeds(self.lessons.settings.seed).derive("teacher", self.round)
        lesson, written = self._ask_teacher(seeds.generator())
        self._add(lesson.examples, [one for _, one in written])
        self._decisions += lesson.decisions
        orders = [order for order, _ in written]
        owners = {id(example): place for place, (_, one) in enumerate(written) for example in one.examples}
        answers = bool(lesson.examples)
        for attempt in range(1, settings.top_up + 1):
            again = self._missing(orders, owners)
            if not again or not answers:
                break
            writer: Writer = self.lessons.teacher.writer  # type: ignore[attr-defined]
            found = writer.write(list(again.values()), seeds.derive("top up", attempt).generator())
            owners |= {id(e): place for place, one in zip(again, found, strict=True) for e in one.examples}
            before = len(self._kept)
            self._add([example for one in found for example in one.examples], found)
            count, came = sum(order.count for order in again.values()), len(self._kept) - before
            self._asked_again += 1
            self._decisions.append(Decision("", "ordered again", f"{count} examples were missing; {came} came"))
            self._decisions += [d for d in list_decisions(list(again.values()), found) if d.action == "failed"]
            failures = [failure for one in found for failure in one.failures]
            answers = any(one.examples for one in found) or all(failure.cause in LASTING for failure in failures)
        if self.inspection is not None and len(self.inspection.kept) < self.inspection.count:
            self._decisions.append(Decision("", "checked", str(self.inspection)))

    def _ask_teacher(self, generator: np.random.Generator) -> tuple[Lesson, list[tuple[Order, Written]]]:
        """What the teacher writes, in as many calls as are to make a lesson, and the orders that it gave to a writer."""
        lessons, settings, teacher = self.lessons, self.lessons.settings, self.lessons.teacher
        writer: Any = getattr(teacher, "writer", None)
        if lessons.engine is not None and writer is not None:
            writer.engine = lessons.engine.at(self.phase)
        if lessons.planner is not None:
            lessons.planner.phase = self.phase  # The teacher holds this very engine.
        parts: list[Lesson] = []
        written: list[tuple[Order, Written]] = []
        for part in range(settings.accumulate):
            share = self.size // settings.accumulate + (part < self.size % settings.accumulate)
            if share:
                lesson = write_lesson(teacher, settings.teacher, self.state, share, generator)
                if lesson.examples != ():
                    lessons.check_shape(lesson, self.env)
                parts.append(lesson)
                written += getattr(teacher, "written", ())
        return Lesson(
            tuple(example for lesson in parts for example in lesson.examples),
            tuple(decision for lesson in parts for decision in lesson.decisions),
        ), written

    def _add(self, examples: Sequence[Example], written: Sequence[Written]) -> None:
        """Take in what passes the checks, and what is known of the rest."""
        self.failures += [failure for one in written for failure in one.failures]
        if not examples:
            return
        if self.lessons.checks:
            from palaestra.teachers.quality import Context, inspect

            env, seeds = self.env, Seeds(self.lessons.settings.seed).derive("checks", self.round)
            context = Context(
                env.task, env.held_out, (*env.data, *self._kept), env.student, env.engine, env.sampling, seeds.integer()
            )
            found = inspect(Lesson(tuple(examples)), self.lessons.checks, context)
            self.inspection = found if self.inspection is None else self.inspection.join(found)
            examples = found.kept
        if examples:
            kept, leaked = self.env.screen(Lesson(tuple(examples)))
            self._kept += kept
            self._leaked.update(leaked)

    def _missing(self, orders: Sequence[Order], owners: Mapping[int, int]) -> dict[int, Order]:
        """By its place each order that came short, for what is missing; all of them at most for what the lesson lacks."""
        came = Counter(owners.get(id(example)) for example in self._kept)
        left, again = self.size - len(self._kept), {}
        for place, order in enumerate(orders):
            count = min(order.count - came[place], left)
            if count > 0:
                again[place] = replace(order, count=count)
                left -= count
        return again

    @property
    def lesson(self) -> Lesson:
        return Lesson(tuple(self._kept), tuple(self._decisions))

    @property
    def delivery(self) -> Delivery:
        dropped: Counter[str] = Counter({f"{LEAKAGE}: {reason}": count for reason, count in self._leaked.items()})
        for one in self.inspection.dropped if self.inspection is not None else ():
            dropped[f"{one.check}: {one.reason}"] += 1
        failures, messages = count_failures(self.failures)
        withheld = self.inspection.withheld if self.inspection is not None else 0
        return Delivery(
            self.size, len(self._kept), dict(sorted(dropped.items())), withheld, failures, messages, self._asked_again
        )
