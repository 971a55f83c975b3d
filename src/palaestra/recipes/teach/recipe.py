"""`palaestra teach`: a teacher teaches a student in rounds, and the gain is measured on a test split."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from palaestra.core.errors import EngineError, LessonError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.records import Completion, Example, Failure, Score, Trajectory
from palaestra.recipes.metered_engines import check_prices
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.provenance import record_run
from palaestra.recipes.settings import build, load_run_settings, resolve_settings, to_plain
from palaestra.recipes.summary import RecipeResult
from palaestra.recipes.teach.lessons import check_writer, open_lessons
from palaestra.recipes.teach.run_folder import RunJournal, write_lessons
from palaestra.recipes.teach.settings import TASK_WRITER, TeachOptions, TeachSettings
from palaestra.recipes.teach.skills import check_discovery, has_skills, label_tasks, regroup
from palaestra.recipes.teach.summary import store_rewards, summarize_run
from palaestra.recipes.teach.task_groups import TeachTasks, check_tasks, make_tasks
from palaestra.runs.run import Run, RunClock, new_folder

if TYPE_CHECKING:
    from palaestra.learn.llama_factory import LlamaFactory
    from palaestra.learn.student import Scorer, Student
    from palaestra.tasks.base import Task

RECIPE = "teach"


@dataclass(frozen=True, slots=True, repr=False)
class TeachResult(RecipeResult):
    """The result of a run: its folder, the contents of its `summary.json`, and the episode."""

    folder: Path
    summary: dict[str, Any]
    trajectory: Trajectory


def teach(
    settings: TeachSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Unpack[TeachOptions],
) -> TeachResult:
    """Run an episode at the lesson scale and measure the student's gain.

    Arguments:
        settings: all settings; or pass single ones as keywords.
        out: the run folder; empty: a new one below `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.

    Example:
        >>> from palaestra import teach                                       # doctest: +SKIP
        >>> result = teach(teacher="skill_tree", student="nano", seed=0)      # doctest: +SKIP
        >>> result.summary["gain"]                                            # doctest: +SKIP
    """
    settings = resolve_settings(TeachSettings, settings, values)
    folder = Path(out) if out else new_folder(RECIPE)
    tasks = check(settings)
    Run.check_new(folder)
    rounds = settings.rounds
    with show_progress(listener, progress, lambda console: RunProgress(console, rounds)) as listener:
        return start(settings, tasks, folder, listener)


def start(settings: TeachSettings, tasks: TeachTasks, folder: Path, listener: Listener) -> TeachResult:
    """Start a run whose settings have been checked.

    Arguments:
        tasks: as returned by `check`.
    """
    started = time.perf_counter()
    listener(_announce(settings, folder))
    student = _load(settings, tasks.taught, listener)
    with Run.create(folder, RECIPE, to_plain(settings)) as run:
        return _play(run, settings, tasks, student, started, listener)


def resume(run: Run, *, listener: Listener = ignore, categories: int | None = None, **limits: float) -> TeachResult:
    """Resume a run where it stopped. A finished run returns its result.

    Arguments:
        categories: cluster the names of discovered skills to this number; only before the first lesson is written.
        limits: new limits of calls: `max_cost`, `max_calls`, `max_tokens`.
    """
    settings = load_run_settings(TeachSettings, run)
    run.forget_failure()
    changes: dict[str, Any] = {**limits, **({} if categories is None else {"categories": categories})}
    if changes:
        changed = build(TeachSettings, {**to_plain(settings), **changes})
        if categories is not None:
            regroup(run, settings, categories)
        settings = changed
        run.write_settings(to_plain(settings))
    # A run with stored skills does not read the skills file again.
    tasks = check(settings if not has_skills(run) else replace(settings, skills_file=""))
    started = time.perf_counter()
    listener(_announce(settings, run.folder))
    return _play(run, settings, tasks, _load(settings, tasks.taught, listener), started, listener)


def check(settings: TeachSettings) -> TeachTasks:
    """Check all names and options, and that the tasks can be scored. Loads no model and writes nothing.

    Returns:
        The tasks of the run.
    """
    from palaestra.engines import models
    from palaestra.learn.students import check_student
    from palaestra.teachers.base import TEACHERS

    load_plugins(settings.plugins)
    check_prices(settings.max_cost, settings.writer, settings.planner, settings.discover)
    TEACHERS.check(settings.teacher)
    tasks = make_tasks(settings)
    models.check(settings.student)
    models.check_device(settings.device)
    check_student(settings.learning, settings.parse("student_options"))
    make_trainer(settings)
    check_writer(settings, tasks.taught)
    check_problems(settings, tasks)
    return tasks


def check_problems(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Check the problems that the seed of `settings` draws. This is the part of `check` that depends on the seed."""
    check_discovery(settings, tasks)
    check_tasks(settings, tasks)


def _announce(settings: TeachSettings, folder: Path) -> Event:
    writer = "" if settings.writer == TASK_WRITER else settings.writer
    return announce_start(
        RECIPE, folder, student=settings.student, teacher=settings.teacher, writer=writer, task=settings.task
    )


def _load(settings: TeachSettings, task: Task, listener: Listener) -> Student:
    from palaestra.engines import models
    from palaestra.envs.token import TokenVectorEnv
    from palaestra.learn.students import STUDENTS, make_student
    from palaestra.learn.supervised import supervision_for
    from palaestra.tasks.base import get_hooks

    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    listener(Event("load"))
    model = models.load(settings.student, device=settings.device, listener=listener)
    supervision = supervision_for(
        model.weights,
        "lora" if settings.trainer == "llama-factory" else settings.method,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        rank=settings.rank,
    )
    options = settings.parse("student_options")
    if hasattr(getattr(STUDENTS.get(settings.learning), "Settings", None), "max_tokens"):
        options.setdefault("max_tokens", settings.answer_tokens or get_hooks(task).max_tokens)
    return make_student(
        settings.learning, model, supervision, start=settings.start, score=make_scorer(task), environment=TokenVectorEnv,
        batch_size=settings.engine_batch, keep_every=settings.checkpoint_seconds,
        trainer=make_trainer(settings), **options,
    )  # fmt: skip


def make_trainer(settings: TeachSettings) -> LlamaFactory | None:
    """The trainer that replaces our own loop; `None` for our own.

    Raises:
        SettingsError: its command does not exist, or an option is not allowed.
    """
    from palaestra.learn.llama_factory import COMMAND, LlamaFactory

    if settings.trainer == "palaestra":
        return None
    options = settings.parse("trainer_options")
    return LlamaFactory(str(options.pop("command", COMMAND)), options)


def make_scorer(task: Task) -> Scorer:
    """A function that scores an answer to an example's question with the task's scorer; `None` without a reference."""
    from palaestra.tasks.scoring import score as score_answer
    from palaestra.teachers.quality.answers import pose
    from palaestra.teachers.quality.base import Context

    context = Context(task)

    def score(example: Example, completion: Completion) -> Score | Failure | None:
        problem, _ = pose(example, context)
        return None if problem is None else score_answer(task, problem, completion)

    return score


def _play(
    run: Run, settings: TeachSettings, tasks: TeachTasks, student: Student, started: float, listener: Listener
) -> TeachResult:
    """Play the episode from its start. Stored work is not repeated."""
    from palaestra.engines.base import Sampling
    from palaestra.envs.lesson import LessonEnv

    writer = settings.writer if settings.writer != TASK_WRITER else ""
    record_run(run, settings.student, writer, settings.planner, settings.discover)
    clock, journal = RunClock(run, started), RunJournal(run, keep_all=settings.checkpoints == "all")
    tasks = label_tasks(run, settings, tasks, listener)
    env = LessonEnv(
        tasks.taught,
        student,
        rounds=settings.rounds,
        budget=settings.data_budget,
        validation=settings.validation,
        test=settings.test,
        skills=settings.chosen_skills,
        sampling=Sampling(max_tokens=settings.answer_tokens) if settings.answer_tokens else None,
        show_state=settings.state == "on",
        show_references=settings.references,
        keep=settings.keep,
        test_task=tasks.tested,
        test_every_round=settings.test_every_round,
        journal=journal,
        listener=listener,
    )
    clock.book("load")
    state, info = env.reset(seed=settings.seed)
    rewards, infos, terminated, truncated = [], [], False, False
    try:
        with open_lessons(run, settings, tasks.taught, listener) as lessons:
            while not (terminated or truncated):
                lesson = lessons.write(env, state, listener)
                count, decisions = len(lesson.examples), {"decisions": lesson.decisions}
                listener(Event("lesson", count, count, state.round + 1, decisions))
                state, reward, terminated, truncated, info = env.step(lesson) if count else env.skip_round()
                store_rewards(run, state.round)
                rewards.append(reward)
                infos.append({"examples": info["taught"], "weights_sha256": info["weights_sha256"]})
    except (LessonError, EngineError) as error:
        # A run without lessons has no gain. Its summary says why, for its report and for a study.
        run.write_summary(summarize_run(run, settings, state.round, state.examples, state.round, "", error))
        raise
    # The seconds cover the committed work of all processes of the run.
    clock.book("rest")
    journal.tidy(env.trained_round)
    summary = summarize_run(run, settings, state.round, state.examples, env.kept_round, info["kept_sha256"])
    write_lessons(run)
    run.write_summary(summary)
    trajectory = Trajectory(
        "palaestra/Lesson-v0", settings.seed, tuple(rewards), (), terminated, truncated, tuple(infos)
    )
    return TeachResult(run.folder, summary, trajectory)
