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
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.teach.lesson_order import Delivery, LessonOrder
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.engines.cached import CachedEngine
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.base import Teacher
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts
    from palaestra.teachers.quality.base import Check


class Lessons:
    """Writes the lessons of a run, one per round.

    Arguments:
        checks: the quality checks of every lesson; empty for none.
        writer: the writer of the teacher, if a language model writes.
        engine: the engine of that language model.
        planner: the language model that the teacher plans with, if any.
    """

    def __init__(
        self,
        run: Run,
        settings: TeachSettings,
        teacher: Teacher,
        checks: list[Check],
        writer: ModelWriter | None = None,
        engine: CachedEngine | None = None,
        planner: CachedEngine | None = None,
    ) -> None:
        self.run, self.settings, self.teacher, self.checks = run, settings, teacher, checks
        self.writer, self.engine, self.planner = writer, engine, planner

    def write(self, env: LessonEnv, state: StudentState, listener: Listener = ignore) -> Lesson:
        """Return the next round's lesson: from the store, or newly written, checked and stored.

        Raises:
            WriterError: nothing was delivered. The round is not stored, so that a resumed run tries it again.
            LessonError: the student cannot be trained on what the teacher wrote.
        """
        round_ = state.round + 1
        stored = self.run.store.lesson(round_)
        if stored is not None:
            return stored
        listener(Event("write", 0, self.settings.lesson_size, round_))
        start, phase = time.perf_counter(), f"{round_}/lesson"
        self._set_phase(phase)
        order = LessonOrder(self.settings, self.teacher, self.checks, env, state)
        try:
            order.fill()
            self._check(order, env)
        except PalaestraError as error:
            if isinstance(error, EngineError):  # An unusable service is a failure of the writer.
                order.failures.append(Failure(FailureCause.UNAVAILABLE, str(error)))
            self.run.store.add_delivery(round_, self._measure(order, phase), self._cost(phase, start))
            raise
        cost = self._cost(phase, start)
        self.run.store.add_lesson(round_, order.lesson, cost, order.inspection, self._measure(order, phase))
        return order.lesson

    def _set_phase(self, phase: str) -> None:
        """Book the calls of writer and planner under `phase`."""
        if self.writer is not None and self.engine is not None:
            self.writer.engine = self.engine.at(phase)
        if self.planner is not None:
            self.planner.phase = phase  # The teacher holds this engine object.

    def _check(self, order: LessonOrder, env: LessonEnv) -> None:
        """Raise if nothing was delivered, or if the student cannot be trained on the lesson."""
        delivery, causes = order.delivery, order.delivery.explain()
        if order.lesson.examples:
            try:
                env.check(order.lesson)
            except LessonError as error:
                raise order.refuse(str(error)) from error
        elif self.engine is None:
            raise order.refuse(f"it has no examples left; {causes}" if causes else "it has no examples")
        elif not env.data or delivery.is_transient:
            advice = (
                f"resume the run when it answers again: palaestra resume {self.run.folder}"
                if delivery.is_transient
                else "start a run with another writer"
            )
            raise WriterError(
                f"writer '{self.settings.writer}' delivered none of {delivery.ordered} examples in round {order.round}: "
                f"{causes or 'none were ordered'}; {advice}"
            )

    def _measure(self, order: LessonOrder, phase: str) -> Delivery:
        """The delivery, with the calls whose number of tokens is unknown."""
        engine = self.engine or self.planner
        return order.delivery if engine is None else replace(order.delivery, unmeasured=engine.spent(phase).unmeasured)

    def _cost(self, phase: str, start: float) -> LedgerEntry:
        """The cost that is not yet in the ledger: seconds since `start`, and calls, including those of killed processes."""
        seconds = time.perf_counter() - start
        engines = [engine for engine in (self.engine, self.planner) if engine is not None]
        if not engines:
            return LedgerEntry(phase, self.settings.teacher, seconds=seconds)
        # The engines share owner and phase, so either one's spending includes the calls of both.
        spent, booked = engines[0].spent(phase), self.run.store.total(phase)
        usage = Usage(
            spent.usage.prompt_tokens - booked.prompt_tokens, spent.usage.completion_tokens - booked.completion_tokens
        )
        names = " and ".join(dict.fromkeys(engine.name for engine in engines))
        return LedgerEntry(phase, names, spent.calls - booked.calls, usage, seconds, spent.money - booked.money)


@contextmanager
def open_lessons(run: Run, settings: TeachSettings, task: Task, listener: Listener = ignore) -> Iterator[Lessons]:
    """Open the lessons of a run. Its engines stay open inside the context."""
    from palaestra.teachers.base import make_teacher

    options, checks = settings.parse("teacher_options"), select_checks(settings)
    if settings.writer == TASK_WRITER and not settings.planner:
        yield Lessons(run, settings, make_teacher(settings.teacher, task, settings.chosen_skills, **options), checks)
        return
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts

    with meter_engines(run, settings, listener=listener) as calls:
        prompts = TeacherPrompts(Path(settings.prompts) if settings.prompts else None)
        engine = planner = writer = None
        if settings.writer != TASK_WRITER:
            engine = calls.open(settings.writer)
            writer = ModelWriter(task, engine, prompts, settings.teacher)
        if settings.planner:
            # The same model is loaded only once.
            shared = engine if settings.planner == settings.writer else None
            planner = shared.at("") if shared is not None else calls.open(settings.planner)
            options |= list_planner_options(settings, planner, prompts)
        teacher = make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options)
        yield Lessons(run, settings, teacher, checks, writer, engine, planner)


def list_planner_options(settings: TeachSettings, engine: Engine, prompts: TeacherPrompts) -> dict[str, Any]:
    """The teacher's arguments for a planner: the engine, and the prompts if the teacher takes any.

    Raises:
        SettingsError: the teacher would not use the planner.
    """
    from palaestra.teachers.base import TEACHERS

    name, parameters = settings.teacher, signature(TEACHERS.get(settings.teacher)).parameters
    if "engine" not in parameters:
        raise SettingsError(
            f"teacher '{name}' uses no planner; leave planner empty, or choose the teacher 'skill_tree' with the option "
            "policy=model"
        )
    options = settings.parse("teacher_options")
    if "policy" in parameters and options.get("policy") != "model" and not options.get("proposals"):
        raise SettingsError(
            f"teacher '{name}' would ask the planner '{settings.planner}' nothing; give it the option policy=model, or "
            "leave planner empty"
        )
    return {"engine": engine} | ({"prompts": prompts} if "prompts" in parameters else {})


def select_checks(settings: TeachSettings) -> list[Check]:
    """Make the quality checks of a run; none by default if the task's own generators write."""
    from palaestra.teachers.quality.base import make_checks

    wanted = settings.quality == "on" or (
        settings.quality == "auto" and (settings.writer != TASK_WRITER or settings.checks)
    )
    return make_checks(settings.checks) if wanted else []


def check_writer(settings: TeachSettings, task: Task) -> None:
    """Raise for an invalid writer, planner, teacher option, check or prompt folder. Opens no model."""
    from palaestra.engines.factory import check_model
    from palaestra.engines.mock import MockEngine
    from palaestra.tasks.teaching import WritableTask
    from palaestra.teachers.base import TaskWriter, make_teacher
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts

    select_checks(settings)
    prompts = TeacherPrompts(Path(settings.prompts) if settings.prompts else None)
    options = settings.parse("teacher_options")
    placeholder, writer = MockEngine({}), None
    if settings.writer == TASK_WRITER:
        TaskWriter(task)
        if settings.teacher == "skill_tree" and options.get("policy") == "model" and not settings.planner:
            raise SettingsError(
                "the tree policy 'model' needs a language model; name one by the setting 'planner', or let one write"
            )
    else:
        check_model(settings.writer)
        if not isinstance(task, WritableTask):
            raise SettingsError(
                f"task '{task.name}' has no schema for a language model as the writer; leave writer at 'task'"
            )
        writer = ModelWriter(task, placeholder, prompts, settings.teacher)
    if settings.planner:
        check_model(settings.planner)
        options = list_planner_options(settings, placeholder, prompts) | options
    make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options)
