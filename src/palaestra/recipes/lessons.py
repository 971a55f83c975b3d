"""How a round of `teach` comes by its lesson: a teacher orders, somebody writes, checks decide what is taught."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import LessonError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Decision, Lesson
from palaestra.core.seeding import Seeds
from palaestra.recipes.settings import named_values
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.engines.cached import CachedEngine
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.recipes.teach import TeachSettings
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.teachers.base import Teacher
    from palaestra.teachers.quality import Check, Inspection

OWN = "task"
"""As a writer: the task's own generators."""
CALLS = "calls.sqlite"
"""Below the user's cache: every answer of a writer, so that the same run again makes no call."""


class Lessons:
    """Writes the lessons of a run, one a round.

    Arguments:
        teacher: whoever orders.
        engine: the language model that writes, if one does.
        checks: what every lesson goes through; none to teach it as it was written.
    """

    def __init__(
        self, run: Run, settings: TeachSettings, teacher: Teacher, engine: CachedEngine | None, checks: list[Check]
    ) -> None:
        self.run, self.settings, self.teacher, self.engine, self.checks = run, settings, teacher, engine, checks

    def write(self, env: LessonEnv, state: StudentState, listener: Listener = ignore) -> Lesson:
        """The next round's lesson, from the store if it is there; else written, checked and stored."""
        round_ = state.round + 1
        known = self.run.store.lesson(round_)
        if known is not None:
            return known
        listener(Event("write", 0, self.settings.lesson_size, round_))
        start, phase = time.perf_counter(), f"{round_}/lesson"
        lesson = self._written(state, phase, Seeds(self.settings.seed).derive("teacher", round_))
        if not lesson.examples and not any(decision.action == "failed" for decision in lesson.decisions):
            raise LessonError(
                f"teacher '{self.settings.teacher}' wrote a lesson that cannot be taught: it has no examples"
            )
        inspection = self._inspected(lesson, env, round_)
        if inspection is not None:
            lesson = replace(lesson, examples=inspection.kept)
            if len(inspection.kept) < inspection.count:
                lesson = replace(lesson, decisions=(*lesson.decisions, Decision("", "checked", str(inspection))))
        try:
            env.check(lesson)
        except LessonError as error:
            name = self.settings.teacher
            raise LessonError(f"teacher '{name}' wrote a lesson that cannot be taught: {error}") from error
        seconds = time.perf_counter() - start
        cost = LedgerEntry(phase, self.settings.teacher, seconds=seconds)
        if self.engine is not None:
            cost = self.engine.spent(phase).entry(phase, self.engine.name, seconds)
        self.run.store.add_lesson(round_, lesson, cost, inspection)
        return lesson

    def _written(self, state: StudentState, phase: str, seeds: Seeds) -> Lesson:
        """What the teacher writes, in as many calls as are to make a lesson."""
        settings, size = self.settings, min(self.settings.lesson_size, state.budget)
        generator, lessons = seeds.generator(), []
        writer: Any = getattr(self.teacher, "writer", None)
        if self.engine is not None and writer is not None:
            writer.engine = self.engine.at(phase)
        for part in range(settings.accumulate):
            share = size // settings.accumulate + (part < size % settings.accumulate)
            if not share:
                continue
            lessons.append(self.teacher.write(state, share, generator))
            if len(lessons[-1].examples) > share:
                raise LessonError(
                    f"teacher '{settings.teacher}' was asked for {share} examples and wrote {len(lessons[-1].examples)}"
                )
        return Lesson(
            tuple(example for lesson in lessons for example in lesson.examples),
            tuple(decision for lesson in lessons for decision in lesson.decisions),
        )

    def _inspected(self, lesson: Lesson, env: LessonEnv, round_: int) -> Inspection | None:
        if not self.checks:
            return None
        from palaestra.teachers.quality import Context, inspect

        context = Context(
            env.task, env.held_out, env.data, env.student, env.engine, env.sampling,
            Seeds(self.settings.seed).derive("checks", round_).integer(),
        )  # fmt: skip
        return inspect(lesson, self.checks, context)


@contextmanager
def lessons_of(run: Run, settings: TeachSettings, task: Task) -> Iterator[Lessons]:
    """The lessons of a run, with its calls open as long as they may be needed."""
    from palaestra.teachers.base import make_teacher

    options = named_values(settings.teacher_options, "teacher_options")
    checks = checks_of(settings)
    if settings.writer == OWN:
        yield Lessons(run, settings, make_teacher(settings.teacher, task, settings.skills, **options), None, checks)
        return
    from palaestra.engines.budget import Budget
    from palaestra.engines.endpoints import is_remote
    from palaestra.engines.opening import open_cached
    from palaestra.engines.shelf import cache_folder
    from palaestra.runs.cache import Cache
    from palaestra.runs.guard import guarded
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import Prompts

    path = Path(settings.cache).expanduser() if settings.cache else cache_folder() / CALLS
    with guarded(path, "opening the cache of calls"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Cache(path) as cache:
        owner = run.store.id
        budget = Budget(
            max_cost=settings.max_cost or None, max_calls=settings.max_calls or None,
            max_tokens=settings.max_tokens or None, spent=cache.spent(owner),
        )  # fmt: skip
        service: dict[str, Any] = {"in_flight": settings.in_flight} if is_remote(settings.writer) else {}
        engine = open_cached(settings.writer, cache, budget=budget, owner=owner, **service)
        prompts = Prompts(Path(settings.prompts) if settings.prompts else None)
        writer = ModelWriter(task, engine, prompts, settings.teacher)
        teacher = make_teacher(settings.teacher, task, settings.skills, writer=writer, **options)
        yield Lessons(run, settings, teacher, engine, checks)


def checks_of(settings: TeachSettings) -> list[Check]:
    """The checks of a run: all, those that were named, or, where the task's own generators write, none."""
    from palaestra.teachers.quality import make_checks

    wanted = settings.quality == "on" or (settings.quality == "auto" and (settings.writer != OWN or settings.checks))
    return make_checks(settings.checks) if wanted else []


def check_writer(settings: TeachSettings, task: Task) -> None:
    """Raise for a writer, teacher option, check or prompt folder that cannot be, before anything is written."""
    from palaestra.core.errors import SettingsError
    from palaestra.engines.opening import check_model
    from palaestra.tasks.teaching import WritableTask
    from palaestra.teachers.base import make_teacher
    from palaestra.teachers.prompts import Prompts
    from palaestra.teachers.writers import TaskWriter

    checks_of(settings)
    Prompts(Path(settings.prompts) if settings.prompts else None)
    options = named_values(settings.teacher_options, "teacher_options")
    if settings.writer == OWN:
        TaskWriter(task)
        make_teacher(settings.teacher, task, settings.skills, **options)
        return
    check_model(settings.writer)
    if not isinstance(task, WritableTask):
        raise SettingsError(
            f"task '{task.name}' does not say what a language model is to write; leave writer at 'task'"
        )
