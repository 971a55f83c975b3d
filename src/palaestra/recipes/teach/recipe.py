"""`palaestra teach`: a teacher teaches a student in rounds, and the gain is measured on a test split."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from palaestra.core.errors import EngineError, LessonError
from palaestra.core.records import (
    LOCAL_SCHEME,
    Completion,
    Event,
    Example,
    Failure,
    Json,
    Listener,
    Sampling,
    Score,
    Split,
    Trajectory,
    ignore,
)
from palaestra.core.registry import load_plugins
from palaestra.engines.base import (
    WeightsEngine,
    check_serves_weights,
    close_engine,
    get_scheme,
    is_remote,
    strip_scheme,
)
from palaestra.engines.factory import check_model, open_engine
from palaestra.envs.lesson import LessonEnv
from palaestra.envs.lesson.state import RoundCheckpoints
from palaestra.envs.lesson.student import STUDENTS, Student
from palaestra.models import registry as models
from palaestra.models.registry import check_device
from palaestra.recipes.embedded_models import check_reads_task, choose_model
from palaestra.recipes.export.tables import write_lessons
from palaestra.recipes.progress import RunProgress, announce_start, log_events
from palaestra.recipes.runs import OpenRun, RecipeResult, change_settings, open_workers, record_run, start_run
from palaestra.recipes.settings import check_prices, prepare_resume, resolve_settings, set_threads, to_plain
from palaestra.recipes.teach.lessons import Lessons
from palaestra.recipes.teach.settings import TASK_WRITER, TeachSettings
from palaestra.recipes.teach.skills import (
    TeachTasks,
    check_discovery,
    check_tasks,
    has_skills,
    label_tasks,
    make_tasks,
    regroup,
)
from palaestra.recipes.teach.summary import store_rewards, summarize_run
from palaestra.runs.run import Run, RunClock
from palaestra.students.llama_factory import COMMAND, LlamaFactory
from palaestra.students.registry import check_student, make_student
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.evaluate import EvaluationWorkers, score
from palaestra.teachers.base import TEACHERS
from palaestra.teachers.quality.answers import pose
from palaestra.teachers.quality.base import Context

if TYPE_CHECKING:
    from palaestra.recipes.keywords import TeachKeywords
    from palaestra.students.student import Scorer


RECIPE = "teach"


@dataclass(frozen=True, slots=True, repr=False)
class TeachResult(RecipeResult):
    """The result of a run: its folder, the contents of its `summary.json`, and the episode."""

    folder: Path
    summary: Json
    trajectory: Trajectory


def teach(
    settings: TeachSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Unpack[TeachKeywords],
) -> TeachResult:
    """Run an episode at the lesson scale and measure the student's gain.

    Arguments:
        settings: all settings; or pass single ones as keywords.
        out: the run folder; empty: a new one below `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.
        values: fields of `TeachSettings`. `task` may be rows or a dataset, `teacher` a class, `student` a transformers model
            with its `tokenizer`, of which a copy learns.

    Example:
        >>> from palaestra import teach                                       # doctest: +SKIP
        >>> result = teach(teacher="skill_tree", student="nano", seed=0)      # doctest: +SKIP
        >>> result.summary["gain"]                                            # doctest: +SKIP
    """
    settings = fill_student(resolve_settings(TeachSettings, settings, values))
    tasks, lessons = check(settings)
    settings.check_effects()
    lessons.check_effects()
    rounds = settings.rounds
    with start_run(RECIPE, out, listener, progress, lambda console: RunProgress(console, rounds)) as (folder, listener):
        kept = prepare_resume(settings, folder, listener)
        return start(kept, tasks, folder, listener, lessons if kept is settings else None)


def fill_student(settings: TeachSettings) -> TeachSettings:
    """These settings with the embedded model that fits the task, if they name no student."""
    if settings.student:
        return settings
    load_plugins(settings.plugins)
    return replace(settings, student=choose_model(make_tasks(settings).taught, settings.skills))


def start(
    settings: TeachSettings, tasks: TeachTasks, folder: Path, listener: Listener, lessons: Lessons | None = None
) -> TeachResult:
    """Start a run whose settings have been checked.

    Arguments:
        tasks, lessons: as returned by `check`. The tasks may be shared by several runs.
    """
    lessons = lessons or Lessons(settings, tasks.taught)
    return _run(tasks, lessons, folder, listener, lambda: Run.create(folder, RECIPE, to_plain(settings)))


def resume(run: Run, *, listener: Listener = ignore, categories: int | None = None, **limits: Any) -> TeachResult:
    """Resume a run where it stopped. A finished run returns its result.

    Arguments:
        categories: cluster the names of discovered skills to this number; only before the first lesson is written.
        limits: new call limits: `max_cost`, `max_calls`, `max_tokens`; and another `executor`.
    """
    changes = limits if categories is None else {**limits, "categories": categories}
    settings = change_settings(TeachSettings, run, changes, lambda before: regroup(run, before, categories))
    run.forget_failure()
    # A run with stored skills does not read the skills file again.
    tasks, lessons = check(settings, read_skills=not has_skills(run))
    return _run(tasks, lessons, run.folder, listener, lambda: nullcontext(run))


def check(settings: TeachSettings, *, read_skills: bool = True) -> tuple[TeachTasks, Lessons]:
    """Check all names and options, and that the tasks can be scored. Loads no model and writes nothing.

    Arguments:
        read_skills: check the skills file too.

    Returns:
        The tasks of the run, and its lessons, which have the teacher.
    """
    from palaestra.students.supervised import check_peft

    load_plugins(settings.plugins)
    check_prices(settings.max_cost, settings.writer, settings.planner, settings.discover, settings.verifier)
    TEACHERS.check(settings.teacher)
    tasks = make_tasks(settings)
    settings.check_engine()
    settings.check_executor()
    student = settings.resolve_model(settings.student)
    check_serves_weights(get_scheme(student), "student")
    check_device(settings.device)
    check_student(settings.learning, dict(settings.student_kwargs))
    for model in (student, settings.writer, settings.planner, settings.verifier):
        if model not in ("", TASK_WRITER):
            check_model(settings.resolve_model(model))
    check_peft(strip_scheme(student), "lora" if settings.trainer == "llama-factory" else settings.method)
    trainer, lessons = make_trainer(settings), Lessons(settings, tasks.taught)
    check_reads_task(settings.student, tasks.taught, settings.skills)
    check_problems(settings if read_skills else replace(settings, skills_file=""), tasks)
    if trainer is not None:
        trainer.check()  # It takes the longest.
    return tasks, lessons


def check_problems(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Check the problems that are drawn with the seed of `settings`. This is the seed-dependent part of `check`."""
    check_discovery(settings, tasks)
    check_tasks(settings, tasks)


@contextmanager
def _open_student(settings: TeachSettings, task: Task, listener: Listener) -> Iterator[Student]:
    """Load the student, and the engine that predicts for it if that is not transformers."""
    from palaestra.envs.token import TokenVectorEnv
    from palaestra.students.supervised import supervision_for

    set_threads(settings.threads)
    listener(Event("load"))
    model = models.load(strip_scheme(settings.student), device=settings.device, listener=listener)
    amounts = settings.get_amounts(task)
    supervision = supervision_for(
        model.weights,
        "lora" if settings.trainer == "llama-factory" else settings.method,
        epochs=amounts.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        rank=settings.rank,
        optimizer=settings.optimizer if settings.learning == "supervised" or settings.optimizer != "auto" else "adamw",
        freeze_vision=settings.freeze_vision,
    )
    if supervision.method == "full" and amounts.learning_rate:
        supervision = replace(supervision, learning_rate=amounts.learning_rate)
    options = dict(settings.student_kwargs)
    if hasattr(getattr(STUDENTS.get(settings.learning), "Settings", None), "max_tokens"):
        options.setdefault("max_tokens", settings.answer_tokens or get_hooks(task).max_tokens)
    predictor: WeightsEngine | None = None
    if get_scheme(name := settings.resolve_model(settings.student)) != LOCAL_SCHEME:
        rank = supervision.rank if supervision.method == "lora" else 0
        engine = open_engine(name, listener=listener, max_lora_rank=rank, **settings.engine_kwargs)
        predictor = cast("WeightsEngine", engine)  # `check` has refused other engines.
    try:
        yield make_student(
            settings.learning,
            model,
            supervision,
            start=settings.start,
            score=make_scorer(task),
            environment=TokenVectorEnv,
            batch_size=settings.engine_batch,
            keep_every=settings.checkpoint_seconds,
            trainer=make_trainer(settings),
            predictor=predictor,
            **options,
        )
    finally:
        if predictor is not None:
            close_engine(predictor)


def make_trainer(settings: TeachSettings) -> LlamaFactory | None:
    """The external trainer; `None` for the built-in loop.

    Raises:
        SettingsError: its command does not exist, or an option is not allowed.
    """
    options = dict(settings.trainer_kwargs)
    return None if settings.trainer == "palaestra" else LlamaFactory(str(options.pop("command", COMMAND)), options)


def make_scorer(task: Task) -> Scorer:
    """A function that scores an answer to an example's question with the task's scorer; `None` without a reference."""
    context = Context(task)

    def score_example(example: Example, completion: Completion) -> Score | Failure | None:
        problem, _ = pose(example, context)
        return None if problem is None else score(task, problem, completion)

    return score_example


def _open_workers(settings: TeachSettings, listener: Listener) -> AbstractContextManager[EvaluationWorkers | None]:
    """Open the workers, which score the student's answers.

    A local model that writes the examples lives in the workers; calls to a service stay in this process, with its cache
    and budget.
    """
    writer = settings.resolve_model(settings.writer)
    is_local = settings.writer != TASK_WRITER and not is_remote(writer)
    make_engine = partial(open_engine, writer) if is_local else None
    return open_workers(settings, partial(_make_worker_tasks, settings), make_engine, listener)


def _make_worker_tasks(settings: TeachSettings) -> dict[str, Task]:
    load_plugins(settings.plugins)
    tasks = make_tasks(settings)
    return {Split.VALIDATION: tasks.taught, Split.TEST: tasks.tested or tasks.taught}


def _run(tasks: TeachTasks, lessons: Lessons, folder: Path, listener: Listener, open_run: OpenRun) -> TeachResult:
    """Load the student, then play the episode from its start. Stored work is not repeated."""
    settings, started = lessons.settings, time.perf_counter()
    facts = {"student": settings.resolve_model(settings.student), "teacher": settings.teacher}
    writer = "" if settings.writer == TASK_WRITER else settings.writer
    listener(announce_start(RECIPE, folder, **facts, writer=writer, task=settings.task))
    with (
        _open_student(settings, tasks.taught, listener) as student,
        _open_workers(settings, listener) as workers,
        open_run() as run,
    ):
        # The student generates in this process.
        scorers, listener = workers and replace(workers, generate=False), log_events(run, listener)
        record_run(run, settings.student, writer, settings.planner, settings.discover, settings.verifier)
        clock = RunClock(run, started)
        checkpoints = RoundCheckpoints(run.checkpoints, keep_all=settings.checkpoints == "all")
        tasks = label_tasks(run, settings, tasks, listener)
        if tasks.taught is not lessons.task:
            lessons = Lessons(settings, tasks.taught)
        env = LessonEnv(
            tasks.taught,
            student,
            rounds=settings.rounds,
            budget=settings.budget or settings.rounds * settings.get_amounts(tasks.taught).lesson_size,
            validation=settings.validation,
            test=settings.test,
            skills=settings.chosen_skills,
            sampling=Sampling(max_tokens=settings.answer_tokens) if settings.answer_tokens else None,
            show_state=settings.state == "on",
            show_references=settings.references,
            keep=settings.keep,
            rehearsal=settings.rehearsal,
            test_task=tasks.tested,
            test_every_round=settings.test_every_round,
            journal=run.store,
            checkpoints=checkpoints,
            workers=scorers,
            listener=listener,
        )
        clock.book("load")
        state, info = env.reset(seed=settings.seed)
        rewards, infos, terminated, truncated = [], [], False, False
        try:
            with lessons.open(run, listener, scorers):
                while not (terminated or truncated):
                    lesson = lessons.write(env, state, listener)
                    count, decisions = len(lesson.examples), {"decisions": lesson.decisions}
                    listener(Event("lesson", count, count, state.round + 1, decisions))
                    state, reward, terminated, truncated, info = env.step(lesson) if count else env.skip_round()
                    store_rewards(run, state.round)
                    rewards.append(reward)
                    infos.append({"examples": info["taught"], "weights_sha256": info["weights_sha256"]})
        except (LessonError, EngineError) as error:
            # A run without lessons has no gain. Its summary contains the error, for its report and for a study.
            run.write_summary(summarize_run(run, settings, state.round, state.examples, state.round, "", error))
            raise
        # The seconds cover the stored work of all processes of the run.
        clock.book("rest")
        checkpoints.tidy(env.trained_round)
        summary = summarize_run(run, settings, state.round, state.examples, env.kept_round, info["kept_sha256"])
        write_lessons(run)
        run.write_summary(summary)
        trajectory = Trajectory(
            "palaestra/Lesson-v0", settings.seed, tuple(rewards), (), terminated, truncated, tuple(infos)
        )
        return TeachResult(run.folder, summary, trajectory)
