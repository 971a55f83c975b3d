"""Build the lesson of each `teach` round: the teacher plans, the writer generates examples, checks filter them.

Examples that are missing (a call failed, a check dropped them) are ordered again a few times. All calls are kept in the
cache with their answers, and their seeds follow from the run's seed: a run that is killed meanwhile ends with the same lesson.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.errors import LessonError, PalaestraError, SettingsError, WriterError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Decision, Example, Failure, Lesson, Usage
from palaestra.core.seeding import Seeds
from palaestra.core.user_code import describe_location
from palaestra.recipes.calls import calls_of
from palaestra.recipes.delivery import LASTING, Delivery, count_failures
from palaestra.recipes.settings import named_values
from palaestra.runs.ledger import LedgerEntry
from palaestra.teachers.base import list_decisions, write_lesson
from palaestra.teachers.writers import Order, Writer, Written

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.engines.cached import CachedEngine
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.recipes.teach import TeachSettings
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.base import Teacher
    from palaestra.teachers.prompts import Prompts
    from palaestra.teachers.quality import Check, Inspection

LEAKAGE = "overlap"
"""The check against held-out problems, in counts of what was dropped."""
OWN = "task"
"""As a writer: the task's own generators."""


class Lessons:
    """Writes the lessons of a run, one a round.

    Arguments:
        teacher: whoever orders.
        checks: what every lesson goes through; none to teach it as it was written.
        engine: the language model that writes, if one does.
        planner: the one that the teacher asks what to do, if one was named.
    """

    def __init__(
        self,
        run: Run,
        settings: TeachSettings,
        teacher: Teacher,
        checks: list[Check],
        engine: CachedEngine | None = None,
        planner: CachedEngine | None = None,
    ) -> None:
        self.run, self.settings, self.teacher, self.checks = run, settings, teacher, checks
        self.engine, self.planner = engine, planner

    def write(self, env: LessonEnv, state: StudentState, listener: Listener = ignore) -> Lesson:
        """The next round's lesson, from the store if it is there; else written, checked and stored.

        Raises:
            WriterError: nothing was delivered. The round is not stored, so that a resumed run tries it again.
            LessonError: the teacher wrote something that cannot be taught.
        """
        round_ = state.round + 1
        known = self.run.store.lesson(round_)
        if known is not None:
            return known
        listener(Event("write", 0, self.settings.lesson_size, round_))
        start, phase = time.perf_counter(), f"{round_}/lesson"
        order = _Order(self, env, state, phase)
        try:
            order.fill()
            self._check(order, env)
        except PalaestraError:
            self.run.store.add_delivery(round_, order.delivery, self._cost(phase, start))
            raise
        cost = self._cost(phase, start)
        self.run.store.add_lesson(round_, order.lesson, cost, order.inspection, order.delivery)
        return order.lesson

    def check_shape(self, lesson: Lesson, env: LessonEnv) -> None:
        """Raise `LessonError`, with the teacher's name, for anything that is no lesson."""
        from palaestra.envs.lesson.validation import check_lesson

        try:
            check_lesson(lesson, env.task.skills())
        except LessonError as error:
            raise self._refuse(str(error)) from error

    def _refuse(self, why: str) -> LessonError:
        where = describe_location(type(self.teacher).write)
        return LessonError(f"teacher '{self.settings.teacher}' wrote a lesson that cannot be taught: {why}{where}")

    def _check(self, order: _Order, env: LessonEnv) -> None:
        """Raise where nothing was delivered, or where the student cannot be taught it."""
        delivery, causes = order.delivery, order.delivery.explain()
        if order.lesson.examples:
            try:
                env.check(order.lesson)
            except LessonError as error:
                raise self._refuse(str(error)) from error
        elif self.engine is None:
            raise self._refuse(f"it has no examples left; {causes}" if causes else "it has no examples")
        elif not env.data or delivery.may_pass:
            advice = (
                f"go on when it answers again: palaestra resume {self.run.folder}"
                if delivery.may_pass
                else "start a run with another writer"
            )
            raise WriterError(
                f"writer '{self.settings.writer}' delivered none of {delivery.ordered} examples in round {order.round}: "
                f"{causes or 'none were ordered'}; {advice}"
            )

    def _cost(self, phase: str, start: float) -> LedgerEntry:
        """What the ledger does not have yet: the seconds since `start`, and calls, those of killed processes included."""
        seconds = time.perf_counter() - start
        asked = [engine for engine in (self.engine, self.planner) if engine is not None]
        if not asked:
            return LedgerEntry(phase, self.settings.teacher, seconds=seconds)
        # They share an owner and a phase, so the calls of all of them are in what either has spent.
        spent, booked = asked[0].spent(phase), self.run.store.total(phase)
        usage = Usage(
            spent.usage.prompt_tokens - booked.prompt_tokens, spent.usage.completion_tokens - booked.completion_tokens
        )
        names = " and ".join(dict.fromkeys(engine.name for engine in asked))
        return LedgerEntry(phase, names, spent.calls - booked.calls, usage, seconds, spent.money - booked.money)


class _Order:
    """The order of one round's lesson: lets the teacher write it, checks it, and orders again what is missing."""

    def __init__(self, lessons: Lessons, env: LessonEnv, state: StudentState, phase: str) -> None:
        self.lessons, self.env, self.state, self.phase, self.round = lessons, env, state, phase, state.round + 1
        self.size = min(lessons.settings.lesson_size, state.budget)
        self.inspection: Inspection | None = None
        self._kept: list[Example] = []
        self._decisions: list[Decision] = []
        self._leaked: Counter[str] = Counter()
        self._failures: list[Failure] = []
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
        self._failures += [failure for one in written for failure in one.failures]
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
        failures, messages = count_failures(self._failures)
        withheld = self.inspection.withheld if self.inspection is not None else 0
        return Delivery(
            self.size, len(self._kept), dict(sorted(dropped.items())), withheld, failures, messages, self._asked_again
        )


@contextmanager
def lessons_of(run: Run, settings: TeachSettings, task: Task, listener: Listener = ignore) -> Iterator[Lessons]:
    """The lessons of a run, with its calls open as long as they may be needed."""
    from palaestra.teachers.base import make_teacher

    options = named_values(settings.teacher_options, "teacher_options")
    checks = checks_of(settings)
    if settings.writer == OWN and not settings.planner:
        yield Lessons(run, settings, make_teacher(settings.teacher, task, settings.skills, **options), checks)
        return
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import Prompts

    with calls_of(run, settings, listener=listener) as calls:
        prompts = Prompts(Path(settings.prompts) if settings.prompts else None)
        engine = planner = writer = None
        if settings.writer != OWN:
            engine = calls.engine(settings.writer)
            writer = ModelWriter(task, engine, prompts, settings.teacher)
        if settings.planner:
            # Of the writer's own model there need not be two.
            shared = engine if settings.planner == settings.writer else None
            planner = shared.at("") if shared is not None else calls.engine(settings.planner)
            options |= planning(settings, planner, prompts)
        teacher = make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options)
        yield Lessons(run, settings, teacher, checks, engine, planner)


def planning(settings: TeachSettings, engine: Engine, prompts: Prompts) -> dict[str, Any]:
    """What a teacher is given to ask its planner by: the engine, and the prompts if it takes any.

    Raises:
        SettingsError: it would ask the planner nothing.
    """
    from palaestra.teachers.base import TEACHERS

    name, taken = settings.teacher, signature(TEACHERS.get(settings.teacher)).parameters
    if "engine" not in taken:
        raise SettingsError(
            f"teacher '{name}' asks nobody what to do; leave planner empty, or let 'skill_tree' teach with the option "
            "policy=model"
        )
    options = named_values(settings.teacher_options, "teacher_options")
    if "policy" in taken and options.get("policy") != "model" and not options.get("proposals"):
        raise SettingsError(
            f"teacher '{name}' would ask the planner '{settings.planner}' nothing; give it the option policy=model, or "
            "leave planner empty"
        )
    return {"engine": engine} | ({"prompts": prompts} if "prompts" in taken else {})


def checks_of(settings: TeachSettings) -> list[Check]:
    """The checks of a run: all, those that were named, or, where the task's own generators write, none."""
    from palaestra.teachers.quality import make_checks

    wanted = settings.quality == "on" or (settings.quality == "auto" and (settings.writer != OWN or settings.checks))
    return make_checks(settings.checks) if wanted else []


def check_writer(settings: TeachSettings, task: Task) -> None:
    """Raise for a writer, planner, teacher option, check or prompt folder that cannot be, before anything is written."""
    from palaestra.engines.mock import MockEngine
    from palaestra.engines.opening import check_model
    from palaestra.tasks.teaching import WritableTask
    from palaestra.teachers.base import make_teacher
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import Prompts
    from palaestra.teachers.writers import TaskWriter

    checks_of(settings)
    prompts = Prompts(Path(settings.prompts) if settings.prompts else None)
    options = named_values(settings.teacher_options, "teacher_options")
    # In the place of models that are not opened before there is something to ask.
    nobody, writer = MockEngine({}), None
    if settings.writer == OWN:
        TaskWriter(task)
        if settings.teacher == "skill_tree" and options.get("policy") == "model" and not settings.planner:
            raise SettingsError(
                "the tree policy 'model' needs a language model; name one by the setting 'planner', or let one write"
            )
    else:
        check_model(settings.writer)
        if not isinstance(task, WritableTask):
            raise SettingsError(
                f"task '{task.name}' does not say what a language model is to write; leave writer at 'task'"
            )
        writer = ModelWriter(task, nobody, prompts, settings.teacher)
    if settings.planner:
        check_model(settings.planner)
        options = planning(settings, nobody, prompts) | options
    make_teacher(settings.teacher, task, settings.skills, writer=writer, **options)
