"""Build the lesson of each `teach` round: the teacher plans, the writer generates examples, checks filter them.

Missing examples are ordered again. The cache stores every call of a model with its answer, and seeds derive from the run's
seed. A run that is killed while a lesson is written ends with the same lesson and pays for no call twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np

from palaestra.core.errors import EngineError, LessonError, PalaestraError, SettingsError, WriterError
from palaestra.core.process import repeat_event
from palaestra.core.records import (
    Answer,
    Decision,
    Event,
    Example,
    Failure,
    FailureCause,
    Lesson,
    Listener,
    Request,
    ignore,
)
from palaestra.core.registry import describe_location
from palaestra.core.seeding import Seeds
from palaestra.engines.base import BaseEngine, is_remote
from palaestra.engines.cached import CachedEngine
from palaestra.envs.lesson import LessonEnv, StudentState
from palaestra.envs.lesson.state import check_lesson
from palaestra.recipes.metered_engines import meter_engines
from palaestra.recipes.settings import check_effects
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.recipes.teach.summary import LESSON, PERMANENT, VERIFICATION, Delivery
from palaestra.runs.provenance import CallLog, LedgerEntry
from palaestra.runs.run import Run
from palaestra.tasks.base import Task
from palaestra.tasks.evaluate import EvaluationWorkers, WorkerEngine
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
from palaestra.teachers.model_writer import ModelWriter
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.quality.base import Check, Context, Inspection, inspect, make_checks

BY_TASK = "written by the task"
"""How examples of the task's own generators are verified."""
LEAKAGE = "overlap"
"""The name of the held-out check in counts of dropped examples."""


class LateEngine(BaseEngine):
    """A language model that is opened after the teacher is built, so that a teacher is checked before anything is loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: CachedEngine | None = None

    def connect(self, opened: CachedEngine) -> None:
        self.opened, self.name = opened, opened.name
        self.identity, self.reads_schema = opened.identity, opened.reads_schema

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        assert self.opened is not None
        return self.opened.generate(requests)


class Lessons:
    """Writes the lessons of a run, one per round. `write` works inside the context of `open`.

    Raises:
        SettingsError: the teacher does not take one of its options, or would not use the planner.
    """

    def __init__(self, settings: TeachSettings, task: Task) -> None:
        self.settings, self.task, self.checks = settings, task, select_checks(settings)
        # The models that the teacher is built with.
        self.models: dict[str, LateEngine] = {}
        if settings.prompts:
            load_prompts(settings)  # A folder that cannot be used raises now, whichever model reads it.
        writer, options = None, dict(settings.teacher_kwargs)
        if settings.writer != TASK_WRITER:
            self.models["writer"] = LateEngine(settings.writer)
            writer = ModelWriter(task, self.models["writer"], load_prompts(settings), settings.teacher)
        if settings.planner:
            self.models["planner"] = LateEngine(settings.planner)
            options = _list_planner_options(settings, self.models["planner"]) | options
        self.teacher = make_teacher(settings.teacher, task, settings.chosen_skills, writer=writer, **options)
        self.engines: dict[str, CachedEngine] = {}
        self.log = CallLog()
        self.run: Run

    def check_effects(self) -> None:
        """Raise for a setting that has no effect on the teacher."""
        is_read = self.settings.discover or getattr(self.teacher, "reads_references", True)
        reason = f"because the teacher '{self.settings.teacher}' with the writer '{self.settings.writer}' reads no references"
        check_effects(self.settings, (is_read, reason, ("references",)))

    @contextmanager
    def open(self, run: Run, listener: Listener = ignore, workers: EvaluationWorkers | None = None) -> Iterator[None]:
        """Open the models. One that is the writer and also the planner or the verifier is loaded only once.

        Arguments:
            workers: generate with a local writer; default: this process.
        """
        self.run, settings = run, self.settings
        if not self.models and not settings.verify:
            yield
            return
        with meter_engines(run, settings, listener=listener, log=self.log) as calls:
            if "writer" in self.models:
                name = settings.resolve_model(settings.writer)
                engine = None if workers is None or is_remote(name) else WorkerEngine(name, workers.pool)
                self.engines["writer"] = calls.open(name, engine)
            verifier = (settings.verifier or settings.writer) if settings.verify else ""
            for role, model in (("planner", settings.planner), ("verifier", verifier)):
                if model and model == settings.writer:
                    self.engines[role] = self.engines["writer"].at("")
                elif model:
                    self.engines[role] = calls.open(settings.resolve_model(model))
            yield

    def write(self, env: LessonEnv, state: StudentState, listener: Listener = ignore) -> Lesson:
        """Return the next round's lesson: load it from the store, or write, check and store it.

        Raises:
            WriterError: no example was delivered. The round is not stored, so a resumed run retries it.
            LessonError: the student cannot be trained on the lesson.
        """
        round_, store = state.round + 1, self.run.store
        stored = store.lesson(round_)
        if stored is not None:
            return stored
        start, phase = time.perf_counter(), f"{round_}{LESSON}"
        for role, model in self.models.items():
            model.connect(self.engines[role].at(phase))
        verifier = self.engines["verifier"].at(f"{round_}{VERIFICATION}") if "verifier" in self.engines else None
        order = LessonOrder(self.settings, self.teacher, self.checks, env, state, verifier)
        event = Event("write", 0, order.size, round_)
        listener(event)
        try:
            with repeat_event(listener, lambda: replace(event, done=len(order.lesson.examples))):
                order.fill()
                self._check(order, env)
        except PalaestraError as error:
            if isinstance(error, EngineError):  # An unusable service is a failure of the writer.
                order.failures.append(Failure(FailureCause.UNAVAILABLE, str(error)))
            delivery, cost = self._measure(order, phase, start, verifier)
            store.add_delivery(round_, delivery, cost, self.log.take())
            raise
        delivery, cost = self._measure(order, phase, start, verifier)
        store.add_lesson(round_, order.lesson, cost, order.inspection, delivery, self.log.take())
        return order.lesson

    def _check(self, order: LessonOrder, env: LessonEnv) -> None:
        """Raise if nothing was delivered, or if the student cannot be trained on the lesson."""
        delivery, causes = order.delivery, order.delivery.explain()
        if order.lesson.examples:
            try:
                env.check(order.lesson)
            except LessonError as error:
                raise order.refuse(str(error)) from error
        elif "writer" not in self.models:
            raise order.refuse(f"it has no examples left; {causes}" if causes else "it has no examples")
        elif not env.data or delivery.is_transient:
            advice = "start a run with another writer"
            if delivery.is_transient:
                advice = f"when the service is available again, run: palaestra resume {self.run.folder}"
            raise WriterError(
                f"writer '{self.settings.writer}' delivered none of {delivery.ordered} examples in round {order.round}: "
                f"{causes or 'none were ordered'}; {advice}"
            )

    def _measure(
        self, order: LessonOrder, phase: str, start: float, verifier: CachedEngine | None
    ) -> tuple[Delivery, LedgerEntry]:
        """Return the delivery and the cost of a lesson. The verifier's calls are added to the ledger here.

        The cost is what is not yet in the ledger: seconds since `start`, and calls, including those of killed processes.
        """
        seconds, store = time.perf_counter() - start, self.run.store
        if verifier is not None:  # Its time is part of the lesson's.
            store.add_cost(
                verifier.spent(verifier.phase).entry_since(store.total(verifier.phase), verifier.phase, verifier.name)
            )
        engines = [self.engines[role] for role in self.models]
        if not engines:
            return order.delivery, LedgerEntry(phase, self.settings.teacher, seconds=seconds)
        # The engines share owner and phase, so either one's spending includes the calls of both.
        spent, names = engines[0].spent(phase), " and ".join(dict.fromkeys(engine.name for engine in engines))
        delivery = replace(order.delivery, unmeasured=spent.unmeasured)
        return delivery, spent.entry_since(store.total(phase), phase, names, seconds)


def load_prompts(settings: TeachSettings) -> TeacherPrompts:
    """Load the prompts of the models that write, plan and discover: the built-in ones, or the user's instead."""
    return TeacherPrompts(Path(settings.prompts) if settings.prompts else None)


def _list_planner_options(settings: TeachSettings, engine: LateEngine) -> dict[str, object]:
    """The teacher's arguments for a planner: the engine, and the prompts if the teacher takes any."""
    parameters = signature(TEACHERS.get(settings.teacher)).parameters
    options = dict(settings.teacher_kwargs)
    ignores = "policy" in parameters and options.get("policy") != "model" and not options.get("proposals")
    if "engine" not in parameters or ignores:
        reason = f"would not use the planner '{settings.planner}'" if "engine" in parameters else "uses no planner"
        advice = "leave planner empty, or use the teacher 'skill_tree' with the option policy=model"
        raise SettingsError(f"teacher '{settings.teacher}' {reason}; {advice}")
    return {"engine": engine} | ({"prompts": load_prompts(settings)} if "prompts" in parameters else {})


def select_checks(settings: TeachSettings) -> list[Check]:
    """Make the quality checks of a run; none by default if the task's own generators are the writer."""
    names = settings.checks
    wants_checks = settings.writer != TASK_WRITER or names or settings.verify
    if settings.quality == "off" or (settings.quality == "auto" and not wants_checks):
        return []
    return make_checks(tuple(dict.fromkeys((*names, "agreement"))) if names and settings.verify else names)


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
        verifier: CachedEngine | None = None,
    ) -> None:
        self.settings, self.teacher, self.checks, self.env, self.state = settings, teacher, checks, env, state
        self.verifier, self.round = verifier, state.round + 1
        self.size = min(settings.get_amounts(env.task).lesson_size, state.budget)
        self.inspection: Inspection | None = None
        self.failures: list[Failure] = []
        self._by_task = isinstance(teacher, PlanningTeacher) and isinstance(teacher.writer, TaskWriter)
        self._kept, self._decisions = list[Example](), list[Decision]()
        self._leaked, self._verified = Counter[str](), Counter[str]()
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
            missing = list(again.values())
            results = self.teacher.writer.write(missing, seeds.derive("top up", attempt).generator())
            owners |= {id(e): place for place, result in zip(again, results, strict=True) for e in result.examples}
            before = len(self._kept)
            self._add([example for result in results for example in result.examples], results)
            count, came = sum(order.count for order in missing), len(self._kept) - before
            self._asked_again += 1
            self._decisions.append(Decision("", "ordered again", f"{count} examples were missing; {came} came"))
            self._decisions += [d for d in list_decisions(missing, results) if d.action == "failed"]
            causes = {failure.cause for result in results for failure in result.failures}
            answers = any(result.examples for result in results) or causes <= PERMANENT
        if self.inspection is not None and len(self.inspection.kept) < self.inspection.count:
            self._decisions.append(Decision("", "checked", str(self.inspection)))

    def _ask_teacher(self, generator: np.random.Generator) -> tuple[Lesson, list[tuple[Order, Written]]]:
        """Call the teacher `accumulate` times. Returns the joined lesson and the orders that went to a writer."""
        whole, written, parts = Lesson(()), list[tuple[Order, Written]](), self.settings.accumulate
        for part in range(min(parts, self.size)):
            size = self.size // parts + (part < self.size % parts)
            lesson = write_lesson(self.teacher, self.settings.teacher, self.state, size, generator)
            if lesson.examples != ():
                try:
                    check_lesson(lesson, self.env.task.skills())
                except LessonError as error:
                    raise self.refuse(str(error)) from error
            whole = Lesson((*whole.examples, *lesson.examples), (*whole.decisions, *lesson.decisions))
            if isinstance(self.teacher, PlanningTeacher):
                written += self.teacher.written
        return whole, written

    def refuse(self, reason: str) -> LessonError:
        """Make an error that names the teacher and the file and line of user code."""
        teacher, location = self.teacher, describe_location(type(self.teacher).write)
        if not location and isinstance(teacher, PlanningTeacher) and isinstance(teacher.writer, TaskWriter):
            location = describe_location(teacher.writer.task.write_examples)
        return LessonError(
            f"teacher '{self.settings.teacher}' wrote a lesson that cannot be taught: {reason}{location}"
        )

    def _add(self, examples: Sequence[Example], written: Sequence[Written]) -> None:
        """Add the examples that pass the checks, and record the failures of the writer."""
        self.failures += [failure for result in written for failure in result.failures]
        methods: dict[int, str] = {}
        if self.checks and examples:
            env, seeds = self.env, Seeds(self.settings.seed).derive("checks", self.round)
            context = Context(
                env.task,
                env.held_out,
                earlier=(*env.data, *self._kept),
                student=env.student,
                engine=env.engine,
                sampling=env.sampling,
                seed=seeds.integer(),
                verifier=self.verifier,
                samples=self.settings.samples,
            )
            inspection = inspect(Lesson(tuple(examples)), self.checks, context)
            self.inspection = inspection if self.inspection is None else self.inspection.join(inspection)
            examples, methods = inspection.kept, dict(zip(map(id, inspection.kept), inspection.verified, strict=True))
        if examples:
            kept, leaked = self.env.screen(Lesson(tuple(examples)))
            self._kept += kept
            self._leaked.update(leaked)
            by_task = BY_TASK if self._by_task else ""
            self._verified.update(filter(None, (methods.get(id(example)) or by_task for example in kept)))

    def _list_missing(self, orders: Sequence[Order], owners: Mapping[int, int]) -> dict[int, Order]:
        """List new orders for the missing examples, by position. Together they do not exceed the lesson size."""
        came = Counter(owners.get(id(example)) for example in self._kept)
        left, missing = self.size - len(self._kept), {}
        for place, order in enumerate(orders):
            if (count := min(order.count - came[place], left)) > 0:
                missing[place] = replace(order, count=count)
                left -= count
        return missing

    @property
    def lesson(self) -> Lesson:
        return Lesson(tuple(self._kept), tuple(self._decisions))

    @property
    def delivery(self) -> Delivery:
        inspection = self.inspection or Inspection((), ())
        dropped = Counter({f"{LEAKAGE}: {reason}": count for reason, count in self._leaked.items()})
        dropped.update(f"{drop.check}: {drop.reason}" for drop in inspection.dropped)
        messages: dict[str, str] = {}
        for failure in self.failures:
            messages.setdefault(str(failure.cause), failure.message)
        skills = [{**report.reasons, **report.remarks} for report in inspection.checks if report.name == "skill"]
        return Delivery(
            ordered=self.size,
            delivered=len(self._kept),
            dropped=dict(sorted(dropped.items())),
            withheld=inspection.withheld,
            failures=dict(sorted(Counter(str(failure.cause) for failure in self.failures).items())),
            messages=messages,
            asked_again=self._asked_again,
            verified=dict(sorted(self._verified.items())),
            examined=inspection.examined,
            wrong=inspection.wrong,
            skills=skills[0] if skills else {},
        )
