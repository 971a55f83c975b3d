"""Build the lesson of each `teach` round: the teacher plans, the writer generates examples, checks filter them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EngineError, LessonError, PalaestraError, SettingsError, WriterError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Failure, FailureCause, Lesson, Usage
from palaestra.core.user_code import describe_location
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.settings import parse_options
from palaestra.recipes.teach.delivery import Delivery
from palaestra.recipes.teach.lesson_order import LessonOrder
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.engines.cached import CachedEngine
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.recipes.teach.recipe import TeachSettings
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.base import Teacher
    from palaestra.teachers.prompts import Prompts
    from palaestra.teachers.quality import Check

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
        order = LessonOrder(self, env, state, phase)
        try:
            order.fill()
            self._check(order, env)
        except PalaestraError as error:
            if isinstance(error, EngineError):  # The service cannot be used at all: a failure of the writer too.
                order.failures.append(Failure(FailureCause.UNAVAILABLE, str(error)))
            self.run.store.add_delivery(round_, self._delivery(order), self._cost(phase, start))
            raise
        cost = self._cost(phase, start)
        self.run.store.add_lesson(round_, order.lesson, cost, order.inspection, self._delivery(order))
        return order.lesson

    def check_shape(self, lesson: Lesson, env: LessonEnv) -> None:
        """Raise `LessonError`, with the teacher's name, for anything that is no lesson."""
        from palaestra.envs.lesson.validation import check_lesson

        try:
            check_lesson(lesson, env.task.skills())
        except LessonError as error:
            raise self._refuse(str(error)) from error

    def _refuse(self, why: str) -> LessonError:
        from palaestra.teachers.base import PlanningTeacher
        from palaestra.teachers.writers import TaskWriter

        where = describe_location(type(self.teacher).write)
        if not where and isinstance(self.teacher, PlanningTeacher) and isinstance(self.teacher.writer, TaskWriter):
            where = describe_location(self.teacher.writer.task.write_examples)
        return LessonError(f"teacher '{self.settings.teacher}' wrote a lesson that cannot be taught: {why}{where}")

    def _check(self, order: LessonOrder, env: LessonEnv) -> None:
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

    def _delivery(self, order: LessonOrder) -> Delivery:
        asked = self.engine or self.planner
        return (
            order.delivery if asked is None else replace(order.delivery, unmeasured=asked.spent(order.phase).unmeasured)
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


@contextmanager
def lessons_of(run: Run, settings: TeachSettings, task: Task, listener: Listener = ignore) -> Iterator[Lessons]:
    """The lessons of a run, with its calls open as long as they may be needed."""
    from palaestra.teachers.base import make_teacher

    options = parse_options(settings.teacher_options, "teacher_options")
    checks = checks_of(settings)
    if settings.writer == OWN and not settings.planner:
        yield Lessons(run, settings, make_teacher(settings.teacher, task, settings.chosen_skills, **options), checks)
        return
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import Prompts

    with meter_engines(run, settings, listener=listener) as calls:
        prompts = Prompts(Path(settings.prompts) if settings.prompts else None)
        engine = planner = writer = None
        if settings.writer != OWN:
            engine = calls.open(settings.writer)
            writer = ModelWriter(task, engine, prompts, settings.teacher)
        if settings.planner:
            # Of the writer's own model there need not be two.
            shared = engine if settings.planner == settings.writer else None
            planner = shared.at("") if shared is not None else calls.open(settings.planner)
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
    options = parse_options(settings.teacher_options, "teacher_options")
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
    from palaestra.engines.factory import check_model
    from palaestra.engines.mock import MockEngine
    from palaestra.tasks.teaching import WritableTask
    from palaestra.teachers.base import make_teacher
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import Prompts
    from palaestra.teachers.writers import TaskWriter

    checks_of(settings)
    prompts = Prompts(Path(settings.prompts) if settings.prompts else None)
    options = parse_options(settings.teacher_options, "teacher_options")
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
    make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options)
