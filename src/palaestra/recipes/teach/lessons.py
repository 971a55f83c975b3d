"""Build the lesson of each `teach` round: the teacher plans, the writer generates examples, checks filter them.

Missing examples are ordered again. The cache stores every call of a model with its answer, and seeds derive from the run's
seed. A run that is killed while a lesson is written ends with the same lesson and pays for no call twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.errors import EngineError, LessonError, PalaestraError, SettingsError, WriterError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import describe_location
from palaestra.core.records import Decision, Example, Failure, FailureCause, Lesson
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, rate_interval
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.runs.calls import CallLog
from palaestra.runs.ledger import LedgerEntry
from palaestra.teachers.base import (
    TEACHERS,
    Order,
    PlanningTeacher,
    TaskWriter,
    Teacher,
    Written,
    list_decisions,
    make_teacher,
    write_lesson,
)

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.engines.cached import CachedEngine
    from palaestra.envs.lesson import LessonEnv, StudentState
    from palaestra.runs.run import Run
    from palaestra.tasks.base import Task
    from palaestra.tasks.evaluate import EvaluationWorkers
    from palaestra.teachers.base import Teacher
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts
    from palaestra.teachers.quality.base import Check, Inspection


LESSON, VERIFICATION = "/lesson", "/verification"
"""Suffixes of the phases of a round's calls in the ledger."""
BY_TASK = "written by the task"
"""How examples of the task's own generators are verified."""
LEAKAGE = "overlap"
"""The name of the held-out check in counts of dropped examples."""
PERMANENT = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that recur if the same request is sent again. All others are transient."""


class Lessons:
    """Writes the lessons of a run, one per round.

    Arguments:
        checks: the quality checks of every lesson; empty for none.
        writer: the writer of the teacher, if a language model writes.
        engine: the engine of that language model.
        planner: the language model that the teacher plans with, if any.
        log: collects the calls of all models.
        verifier: the language model that verifies answers, if any.
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
        log: CallLog | None = None,
        verifier: CachedEngine | None = None,
    ) -> None:
        self.run, self.settings, self.teacher, self.checks = run, settings, teacher, checks
        self.writer, self.engine, self.planner, self.log = writer, engine, planner, log or CallLog()
        self.verifier = verifier

    def write(self, env: LessonEnv, state: StudentState, listener: Listener = ignore) -> Lesson:
        """Return the next round's lesson: load it from the store, or write, check and store it.

        Raises:
            WriterError: no example was delivered. The round is not stored, so a resumed run retries it.
            LessonError: the student cannot be trained on the lesson.
        """
        round_ = state.round + 1
        stored = self.run.store.lesson(round_)
        if stored is not None:
            return stored
        listener(Event("write", 0, self.settings.lesson_size, round_))
        start, phase = time.perf_counter(), f"{round_}{LESSON}"
        self._set_phase(phase)
        order = LessonOrder(self.settings, self.teacher, self.checks, env, state, self.verifier)
        try:
            order.fill()
            self._check(order, env)
        except PalaestraError as error:
            if isinstance(error, EngineError):  # An unusable service is a failure of the writer.
                order.failures.append(Failure(FailureCause.UNAVAILABLE, str(error)))
            self._book_verification(round_)
            delivery, cost = self._measure(order, phase), self._cost(phase, start)
            self.run.store.add_delivery(round_, delivery, cost, self.log.take())
            raise
        self._book_verification(round_)
        cost = self._cost(phase, start)
        delivery = self._measure(order, phase)
        self.run.store.add_lesson(round_, order.lesson, cost, order.inspection, delivery, self.log.take())
        return order.lesson

    def _set_phase(self, phase: str) -> None:
        """Record the calls of writer and planner under `phase`."""
        if self.writer is not None and self.engine is not None:
            self.writer.engine = self.engine.at(phase)
        if self.planner is not None:
            self.planner.phase = phase  # The teacher uses this engine object.
        if self.verifier is not None:
            self.verifier.phase = phase.replace(LESSON, VERIFICATION)

    def _book_verification(self, round_: int) -> None:
        """Add the verifier's calls that are not yet in the ledger. Their time is part of the lesson's."""
        if self.verifier is not None:
            phase = f"{round_}{VERIFICATION}"
            spent = self.verifier.spent(phase)
            self.run.store.add_cost(spent.entry_since(self.run.store.total(phase), phase, self.verifier.name, 0.0))

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
                f"when the service is available again, run: palaestra resume {self.run.folder}"
                if delivery.is_transient
                else "start a run with another writer"
            )
            raise WriterError(
                f"writer '{self.settings.writer}' delivered none of {delivery.ordered} examples in round {order.round}: "
                f"{causes or 'none were ordered'}; {advice}"
            )

    def _measure(self, order: LessonOrder, phase: str) -> Delivery:
        """The delivery, with the number of calls without a token count."""
        engine = self.engine or self.planner
        return order.delivery if engine is None else replace(order.delivery, unmeasured=engine.spent(phase).unmeasured)

    def _cost(self, phase: str, start: float) -> LedgerEntry:
        """The cost that is not yet in the ledger: seconds since `start`, and calls, including those of killed processes."""
        seconds = time.perf_counter() - start
        engines = [engine for engine in (self.engine, self.planner) if engine is not None]
        if not engines:
            return LedgerEntry(phase, self.settings.teacher, seconds=seconds)
        names = " and ".join(dict.fromkeys(engine.name for engine in engines))
        # The engines share owner and phase, so either one's spending includes the calls of both.
        return engines[0].spent(phase).entry_since(self.run.store.total(phase), phase, names, seconds)


@contextmanager
def open_lessons(
    run: Run,
    settings: TeachSettings,
    task: Task,
    listener: Listener = ignore,
    workers: EvaluationWorkers | None = None,
) -> Iterator[Lessons]:
    """Open the lessons of a run. Its engines stay open inside the context.

    Arguments:
        workers: generate with a local writer; default: this process.
    """
    from palaestra.engines.base import is_remote
    from palaestra.tasks.evaluate import WorkerEngine

    checks = select_checks(settings)
    if settings.writer == TASK_WRITER and not settings.planner and not settings.verify:
        yield Lessons(run, settings, _build_teacher(settings, task)[0], checks)
        return
    log = CallLog()
    with meter_engines(run, settings, listener=listener, log=log) as calls:
        name = settings.resolve_model(settings.writer)
        engine = None
        if settings.writer != TASK_WRITER:
            engine = calls.open(name, None if workers is None or is_remote(name) else WorkerEngine(name, workers.pool))
        planner = None
        if settings.planner:  # The same model is loaded only once.
            shared = engine is not None and settings.planner == settings.writer
            planner = (
                engine.at("") if engine is not None and shared else calls.open(settings.resolve_model(settings.planner))
            )
        verifier = None
        if settings.verify:
            shared = engine is not None and settings.verifier in ("", settings.writer)
            verifier = (
                engine.at("")
                if engine is not None and shared
                else calls.open(settings.resolve_model(settings.verifier))
            )
        teacher, writer = _build_teacher(settings, task, engine, planner)
        yield Lessons(run, settings, teacher, checks, writer, engine, planner, log, verifier)


def _build_teacher(
    settings: TeachSettings, task: Task, engine: Engine | None = None, planner: Engine | None = None
) -> tuple[Teacher, ModelWriter | None]:
    """Build the teacher, and its writer if a language model writes.

    Arguments:
        engine: the language model that writes; `None` for the task's own generators.
        planner: the language model that the teacher plans with, if any.
    """
    from palaestra.teachers.model_writer import ModelWriter
    from palaestra.teachers.prompts import TeacherPrompts

    prompts = TeacherPrompts(Path(settings.prompts) if settings.prompts else None)
    options = settings.parse("teacher_options")
    if planner is not None:
        options = list_planner_options(settings, planner, prompts) | options
    writer = None if engine is None else ModelWriter(task, engine, prompts, settings.teacher)
    return make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options), writer


def list_planner_options(settings: TeachSettings, engine: Engine, prompts: TeacherPrompts) -> dict[str, Any]:
    """The teacher's arguments for a planner: the engine, and the prompts if the teacher takes any.

    Raises:
        SettingsError: the teacher would not use the planner.
    """
    name, parameters = settings.teacher, signature(TEACHERS.get(settings.teacher)).parameters
    if "engine" not in parameters:
        raise SettingsError(
            f"teacher '{name}' uses no planner; leave planner empty, or use the teacher 'skill_tree' with the option "
            "policy=model"
        )
    options = settings.parse("teacher_options")
    if "policy" in parameters and options.get("policy") != "model" and not options.get("proposals"):
        raise SettingsError(
            f"teacher '{name}' would not use the planner '{settings.planner}'; set the teacher option policy=model, or "
            "leave planner empty"
        )
    return {"engine": engine} | ({"prompts": prompts} if "prompts" in parameters else {})


def select_checks(settings: TeachSettings) -> list[Check]:
    """Make the quality checks of a run; none by default if the task's own generators are the writer."""
    from palaestra.teachers.quality.base import make_checks

    wanted = settings.quality == "on" or (
        settings.quality == "auto" and (settings.writer != TASK_WRITER or settings.checks or settings.verify)
    )
    names = settings.checks
    if names and settings.verify:
        names = tuple(dict.fromkeys((*names, "agreement")))
    return make_checks(names) if wanted else []


def check_writer(settings: TeachSettings, task: Task) -> None:
    """Raise for an invalid writer, planner, teacher option, check or prompt folder. Opens no model."""
    from palaestra.engines.factory import check_model
    from palaestra.engines.mock import MockEngine
    from palaestra.tasks.base import WritableTask

    select_checks(settings)
    if settings.writer == TASK_WRITER:
        TaskWriter(task)
        wants_model = settings.teacher == "skill_tree" and settings.parse("teacher_options").get("policy") == "model"
        if wants_model and not settings.planner:
            raise SettingsError("the tree policy 'model' needs a language model; set 'planner' or 'writer' to one")
    else:
        check_model(settings.resolve_model(settings.writer))
        if not isinstance(task, WritableTask):
            raise SettingsError(
                f"task '{task.name}' has no schema for a language model as the writer; leave writer at 'task'"
            )
    for model in filter(None, (settings.planner, settings.verifier)):
        check_model(settings.resolve_model(model))
    engine, planner = MockEngine({}), MockEngine({}) if settings.planner else None
    _build_teacher(settings, task, None if settings.writer == TASK_WRITER else engine, planner)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one lesson's order.

    Arguments:
        ordered: examples that the teacher was asked for.
        delivered: examples that were taught: written, and not dropped by a check.
        dropped: examples that a check dropped, counted by check and reason.
        withheld: examples on which a check failed.
        failures: failed calls of the writer and unusable data, counted by cause.
        messages: the first message of each cause.
        asked_again: how often missing examples were ordered again.
        unmeasured: calls without a token count. They are not part of the cost.
        verified: delivered examples whose answer was verified, counted by method.
        examined: written examples whose answer was verified or found to be wrong.
        wrong: those of them with a wrong answer. They are dropped.
        skills: results of the check `skill`, counted: as ordered, one skill instead of another, or not recognized.
    """

    ordered: int
    delivered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    withheld: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    asked_again: int = 0
    unmeasured: int = 0
    verified: Mapping[str, int] = field(default_factory=dict)
    examined: int = 0
    wrong: int = 0
    skills: Mapping[str, int] = field(default_factory=dict)

    @property
    def unverified(self) -> int:
        """The number of delivered examples whose answer was not verified."""
        return self.delivered - sum(self.verified.values())

    @property
    def error_rate(self) -> Mean | None:
        """An estimate of the fraction of wrong answers among the unverified examples, with its 95 % interval.

        It is the fraction among the examined examples of the same writer; `None` if none were examined.
        """
        return rate_interval([1.0] * self.wrong + [0.0] * (self.examined - self.wrong)) if self.examined else None

    @property
    def is_transient(self) -> bool:
        """Whether some failures are transient, so that resuming the run later may help."""
        return any(FailureCause(cause) not in PERMANENT for cause in self.failures)

    def explain(self) -> str:
        """Explain in one line why examples are missing; empty if there is no known cause."""
        parts = []
        if self.failures:
            first = next(iter(self.messages.values()), "")
            parts.append(
                f"writer failures: {describe_counts(self.failures)}" + (f" (first failure: {first})" if first else "")
            )
        if self.dropped:
            parts.append(f"dropped by checks: {describe_counts(self.dropped)}")
        if self.withheld:
            parts.append(f"withheld because a check failed to run: {self.withheld}")
        return " ".join("; ".join(parts).split())


def add_up(deliveries: Sequence[Delivery]) -> Delivery:
    """Add up the counts of several deliveries."""

    def count(name: str) -> dict[str, int]:
        return dict(sorted(sum((Counter(getattr(d, name)) for d in deliveries), Counter[str]()).items()))

    messages: dict[str, str] = {}
    for delivery in deliveries:
        messages = {**delivery.messages, **messages}
    return Delivery(
        sum(d.ordered for d in deliveries), sum(d.delivered for d in deliveries), count("dropped"),
        sum(d.withheld for d in deliveries), count("failures"), messages,
        sum(d.asked_again for d in deliveries), sum(d.unmeasured for d in deliveries), count("verified"),
        sum(d.examined for d in deliveries), sum(d.wrong for d in deliveries), count("skills"),
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
        verifier: answers the questions of the check `agreement`, if any.
    """

    def __init__(
        self,
        settings: TeachSettings,
        teacher: Teacher,
        checks: Sequence[Check],
        env: LessonEnv,
        state: StudentState,
        verifier: Engine | None = None,
    ) -> None:
        self.settings, self.teacher, self.checks, self.env, self.state = settings, teacher, checks, env, state
        self.verifier = verifier
        self.round = state.round + 1
        self.size = min(settings.lesson_size, state.budget)
        self.inspection: Inspection | None = None
        self.failures: list[Failure] = []
        self._kept: list[Example] = []
        self._decisions: list[Decision] = []
        self._leaked: Counter[str] = Counter()
        self._verified: Counter[str] = Counter()
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
            self._decisions.append(Decision("", "ordered again", f"{count} examples were missing; {came} came"))
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
        """Make an error that names the teacher and the file and line of user code."""
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
        methods: Sequence[str] = ()
        if self.checks:
            from palaestra.teachers.quality.base import Context, inspect

            env, seeds = self.env, Seeds(self.settings.seed).derive("checks", self.round)
            context = Context(
                env.task, env.held_out, (*env.data, *self._kept), env.student, env.engine, env.sampling,
                seeds.integer(), verifier=self.verifier, samples=self.settings.samples,
            )  # fmt: skip
            inspection = inspect(Lesson(tuple(examples)), self.checks, context)
            self.inspection = inspection if self.inspection is None else self.inspection.join(inspection)
            examples, methods = inspection.kept, inspection.verified
        if examples:
            kept, leaked = self.env.screen(Lesson(tuple(examples)))
            self._kept += kept
            self._leaked.update(leaked)
            by_task = BY_TASK if self._is_written_by_task() else ""
            known = {id(example): method for example, method in zip(examples, methods, strict=False)}
            self._verified.update(filter(None, (known.get(id(example)) or by_task for example in kept)))

    def _is_written_by_task(self) -> bool:
        return isinstance(self.teacher, PlanningTeacher) and isinstance(self.teacher.writer, TaskWriter)

    def _list_missing(self, orders: Sequence[Order], owners: Mapping[int, int]) -> dict[int, Order]:
        """List new orders for the missing examples, by position. Together they do not exceed the lesson size."""
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
        from palaestra.teachers.quality.base import Inspection

        dropped: Counter[str] = Counter({f"{LEAKAGE}: {reason}": count for reason, count in self._leaked.items()})
        for drop in self.inspection.dropped if self.inspection is not None else ():
            dropped[f"{drop.check}: {drop.reason}"] += 1
        messages: dict[str, str] = {}
        for failure in self.failures:
            messages.setdefault(str(failure.cause), failure.message)
        failures = Counter(str(failure.cause) for failure in self.failures)
        inspection = self.inspection or Inspection((), ())
        return Delivery(
            self.size, len(self._kept), dict(sorted(dropped.items())), inspection.withheld,
            dict(sorted(failures.items())), messages, self._asked_again, verified=dict(sorted(self._verified.items())),
            examined=inspection.examined, wrong=inspection.wrong,
            skills={name: n for r in inspection.checks if r.name == "skill" for name, n in {**r.reasons, **r.remarks}.items()},
        )  # fmt: skip
