"""`palaestra teach`: a teacher teaches a student, round by round, and the gain is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import EngineError, LessonError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.records import Completion, Example, Failure, Score, Trajectory
from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP, check_call_timeout, check_prices
from palaestra.recipes.progress import RunProgress, show_progress
from palaestra.recipes.provenance import record_run
from palaestra.recipes.settings import (
    build,
    check_finite,
    check_minimum,
    load_run_settings,
    parse_options,
    resolve_settings,
    setting,
    to_plain,
)
from palaestra.recipes.teach.export import write_lessons
from palaestra.recipes.teach.journal import RunJournal
from palaestra.recipes.teach.rewards import store_rewards
from palaestra.recipes.teach.skills import check_discovery, has_skills, label_tasks, regroup
from palaestra.recipes.teach.summary import summarize_run
from palaestra.recipes.teach.task_groups import check_tasks, make_taught_task, make_test_task
from palaestra.runs.run import Run, RunClock, new_folder

if TYPE_CHECKING:
    from palaestra.learn.student import Scorer, Student
    from palaestra.tasks.base import Task

RECIPE = "teach"


@dataclass(frozen=True)
class TeachSettings:
    """What a teach run does. The same as the command line's options and as `settings.json`."""

    plugins: tuple[str, ...] = setting(
        (), "Files (my_task.py) or modules of one's own that register tasks, teachers and the like."
    )
    task: str = setting("math-skills", "What is taught; `palaestra list tasks` names them.")
    task_options: tuple[str, ...] = setting((), "Options of the task, each as name=value, for example path=FOLDER.")
    validation_tasks: tuple[str, ...] = setting(
        (),
        "Tasks whose validation problems the teacher sees, each NAME or 'NAME option=value ...' (also problems=N, "
        "skills=A,B, taught=false), or several names with commas; the task that is taught if none is given.",
    )
    test_tasks: tuple[str, ...] = setting(
        (), "Tasks that the gain is measured on, written alike; those of validation if none is given."
    )
    student: str = setting("nano", "The model that learns: a registered name, a folder or a hub id.")
    learning: str = setting("supervised", "How it learns; `palaestra list students` names the ways.")
    student_options: tuple[str, ...] = setting((), "Options of that way of learning, each as name=value.")
    start: Literal["base", "last"] = setting(
        "base",
        "Where a round's training starts: at the base, on all data so far; or where the last round ended, on the new.",
    )
    keep: Literal["last", "best"] = setting(
        "last",
        "Which student is kept and tested: the last round's, or the best round's on validation, the base included.",
    )
    checkpoints: Literal["kept", "all"] = setting(
        "kept", "Which weights stay in the run folder: those of the student that is kept, or those of every round."
    )
    teacher: str = setting("skill_tree", "Who teaches; `palaestra list teachers` names them.")
    teacher_options: tuple[str, ...] = setting((), "Options of the teacher, each as name=value.")
    writer: str = setting(
        "task",
        "Who writes the examples: task (its own generators), or a model: openai:MODEL, ADDRESS#MODEL, a folder, ...",
    )
    planner: str = setting(
        "",
        "The model that a teacher asks what to do (skill_tree with policy=model), named as for writer; empty: the writer.",
    )
    prompts: str = setting("", "A folder of prompts that come before ours, under the same names.")
    state: Literal["on", "off"] = setting("on", "Whether the teacher sees how the student does.")
    references: bool = setting(False, "Whether it sees the expected answers of validation problems too.")
    quality: Literal["auto", "on", "off"] = setting(
        "auto", "Whether lessons are checked before they are taught; auto: where a language model writes them."
    )
    checks: tuple[str, ...] = setting((), "Only these checks; all if none is given.")
    skills: tuple[str, ...] = setting((), "Only these skills of the task; all if none is given.")
    discover: str = setting(
        "",
        "Who says which skill a problem needs: empty, the task; or a model that discovers skills, named as a writer.",
    )
    skills_file: str = setting(
        "",
        "A file that says which skill a problem exercises: JSON or JSON Lines of problem ids and skills, or the "
        "skills.json of a run with discover.",
    )
    categories: int = setting(0, "How many skills it makes of the names that it gave; 0: as many as it likes.")
    discover_train: int = setting(0, "Train problems a skill that it names beside those of validation.")
    rounds: int = setting(3, "Rounds of lesson, training and evaluation.")
    lesson_size: int = setting(160, "Examples in one lesson.")
    budget: int = setting(0, "Most examples in all; 0 means rounds times lesson size.")
    validation: int = setting(12, "Validation problems a skill: what the teacher sees.")
    test: int = setting(25, "Test problems a skill: what the gain is measured on.")
    test_every_round: bool = setting(False, "Test the student after every round; the teacher never sees it.")
    top_up: int = setting(2, "Times that examples which are missing of a lesson are ordered again; 0: never.")
    accumulate: int = setting(1, "Times that the teacher is called for one lesson.")
    answer_tokens: int = setting(0, "Most tokens of the student's answer; 0: as many as the task needs.")
    max_cost: float = setting(0.0, "Most dollars for calls of models (writer, planner, discover); 0: no limit.")
    max_calls: int = setting(0, "Most calls of these models; 0: no limit.")
    max_tokens: int = setting(0, "Most tokens of these calls, in and out; 0: no limit.")
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP)
    in_flight: int = setting(16, "Calls of a service that are under way at once.")
    cache: str = setting(
        "", "The file that keeps every answer of these models; empty: one for all runs, in the user's cache."
    )
    method: Literal["auto", "full", "lora"] = setting(
        "auto", "Train all weights or a LoRA adapter; auto: all up to 20 M parameters."
    )
    epochs: int = setting(4, "Passes over all data so far in each round's training.")
    batch_size: int = setting(8, "Examples in a training batch.")
    learning_rate: float = setting(0.0, "Peak learning rate; 0 means 5e-4 for all weights and 2e-4 for LoRA.")
    rank: int = setting(16, "Rank of a LoRA adapter.")
    engine_batch: int = setting(128, "Answers that are generated side by side.")
    device: str = setting("", "Where to compute, for example cuda; empty means a GPU where there is one.")
    threads: int = setting(0, "CPU threads; 0 leaves torch's own choice.")
    checkpoint_seconds: float = setting(120.0, "Seconds between two saves of a training that goes on.")
    seed: int = setting(0, "Seed of problems, lessons and training.")

    def __post_init__(self) -> None:
        check_finite(self)
        check_minimum(
            self,
            1,
            "rounds",
            "lesson_size",
            "validation",
            "test",
            "epochs",
            "batch_size",
            "rank",
            "engine_batch",
            "accumulate",
            "in_flight",
        )
        check_minimum(
            self, 0, "answer_tokens", "max_cost", "max_calls", "max_tokens", "categories", "discover_train", "top_up"
        )
        check_minimum(self, 0, "budget", "learning_rate", "threads", "checkpoint_seconds", "seed")

        check_call_timeout(self.call_timeout)

    @property
    def options(self) -> dict[str, Any]:
        """The task's own options."""
        return parse_options(self.task_options, "task_options")

    @property
    def chosen_skills(self) -> tuple[str, ...]:
        """Those that a teacher is held to. Discovered ones are all meant: they come from the problems of `skills`."""
        return () if self.discover or self.skills_file else self.own_skills

    @property
    def own_skills(self) -> tuple[str, ...]:
        """The skills to ask the taught task for. A group of tasks selects them by itself."""
        return () if self.validation_tasks else self.skills

    @property
    def data_budget(self) -> int:
        return self.budget or self.rounds * self.lesson_size


@dataclass(frozen=True, slots=True)
class TeachResult:
    """The outcome of a run: its folder, and what is in its `summary.json`."""

    folder: Path
    summary: dict[str, Any]
    trajectory: Trajectory


def teach(
    settings: TeachSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Any,
) -> TeachResult:
    """Run a whole episode at the lesson scale and measure what the student gained.

    Arguments:
        settings: all of them at once, or give single ones as keywords.
        out: the run folder; a new one below `runs/` if empty.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` turns the display off, too.

    Example:
        >>> from palaestra import teach                                       # doctest: +SKIP
        >>> result = teach(teacher="skill_tree", student="nano", seed=0)      # doctest: +SKIP
        >>> result.summary["gain"]                                            # doctest: +SKIP
    """
    settings = resolve_settings(TeachSettings, settings, values)
    folder = Path(out) if out else new_folder(RECIPE)
    check(settings)
    Run.check_new(folder)
    started = time.perf_counter()
    rounds = settings.rounds
    with show_progress(listener, progress, lambda console: RunProgress(console, rounds)) as listener:
        student = _load(settings, listener)
        with Run.create(folder, RECIPE, to_plain(settings)) as run:
            return _play(run, settings, student, started, listener)


def resume(run: Run, *, listener: Listener = ignore, categories: int | None = None, **limits: float) -> TeachResult:
    """Go on with a run from wherever it was stopped; a finished run just gives its result.

    Arguments:
        categories: cluster the names of discovered skills to so many; only before the first lesson is written.
        limits: other limits of calls than the run has: `max_cost`, `max_calls`, `max_tokens`.
    """
    settings = load_run_settings(TeachSettings, run)
    run.forget_failure()
    changed: dict[str, Any] = {**limits, **({} if categories is None else {"categories": categories})}
    if changed:
        other = build(TeachSettings, {**to_plain(settings), **changed})
        if categories is not None:
            regroup(run, settings, categories)
        settings = other
        run.write_settings(to_plain(settings))
    # A run that has stored its skills does not need the file any more.
    check(settings if not has_skills(run) else replace(settings, skills_file=""))
    started = time.perf_counter()
    return _play(run, settings, _load(settings, listener), started, listener)


def check(settings: TeachSettings) -> None:
    """Raise for every name that does not exist and a task that cannot be scored, before anything is loaded or written."""
    from palaestra.engines import models
    from palaestra.learn.students import check_student
    from palaestra.recipes.teach.lessons import check_writer
    from palaestra.tasks.base import check_skills, make_task
    from palaestra.teachers.base import TEACHERS

    load_plugins(settings.plugins)
    check_prices(settings.max_cost, settings.writer, settings.planner, settings.discover)
    task = make_task(settings.task, **settings.options)
    TEACHERS.check(settings.teacher)
    check_skills(task, settings.skills)
    taught, tested = make_taught_task(settings), make_test_task(settings)
    models.check(settings.student)
    models.check_device(settings.device)
    check_student(settings.learning, parse_options(settings.student_options, "student_options"))
    check_discovery(settings, taught, tested)
    check_writer(settings, taught)
    check_tasks(settings, taught, tested)


def _load(settings: TeachSettings, listener: Listener) -> Student:
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
        settings.method,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        rank=settings.rank,
    )
    task = make_taught_task(settings)
    options = parse_options(settings.student_options, "student_options")
    if hasattr(getattr(STUDENTS.get(settings.learning), "Settings", None), "max_tokens"):
        options.setdefault("max_tokens", settings.answer_tokens or get_hooks(task).max_tokens)
    return make_student(
        settings.learning, model, supervision, start=settings.start, score=scorer_of(task), environment=TokenVectorEnv,
        batch_size=settings.engine_batch, keep_every=settings.checkpoint_seconds, **options,
    )  # fmt: skip


def scorer_of(task: Task) -> Scorer:
    """Judges an answer to the question of an example by the task's own scorer, where anything says what is right."""
    from palaestra.tasks.scoring import score as score_answer
    from palaestra.teachers.quality.base import Context
    from palaestra.teachers.quality.problems import pose

    context = Context(task)

    def score(example: Example, completion: Completion) -> Score | Failure | None:
        problem = pose(example, context).problem
        return None if problem is None else score_answer(task, problem, completion)

    return score


def _play(run: Run, settings: TeachSettings, student: Student, started: float, listener: Listener) -> TeachResult:
    """The episode, from its start. What the store knows already passes in an instant."""
    from palaestra.engines.base import Sampling
    from palaestra.envs.lesson import LessonEnv
    from palaestra.recipes.teach.lessons import OWN, lessons_of

    writers = (settings.writer if settings.writer != OWN else "", settings.planner, settings.discover)
    record_run(run, settings.student, *writers)
    clock, journal = RunClock(run, started), RunJournal(run, keep_all=settings.checkpoints == "all")
    task, test_task = label_tasks(run, settings, make_taught_task(settings), make_test_task(settings), listener)
    env = LessonEnv(
        task,
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
        test_task=test_task,
        test_every_round=settings.test_every_round,
        journal=journal,
        listener=listener,
    )
    clock.book("load")
    state, info = env.reset(seed=settings.seed)
    rewards, infos, terminated, truncated = [], [], False, False
    try:
        with lessons_of(run, settings, task, listener) as lessons:
            while not (terminated or truncated):
                lesson = lessons.write(env, state, listener)
                told = {"decisions": lesson.decisions}
                listener(Event("lesson", len(lesson.examples), len(lesson.examples), state.round + 1, told))
                state, reward, terminated, truncated, info = env.step(lesson) if lesson.examples else env.skip_round()
                store_rewards(run, state.round)
                rewards.append(reward)
                infos.append({"examples": info["taught"], "weights_sha256": info["weights_sha256"]})
    except (LessonError, EngineError) as error:
        # A run without lessons has no gain. Its summary says why, for the report and for a study of many runs.
        run.write_summary(summarize_run(run, settings, state.round, state.examples, state.round, "", error))
        raise
    # Seconds are those of committed work, over all the processes that did it.
    clock.book("rest")
    journal.tidy(env.trained_round)
    summary = summarize_run(run, settings, state.round, state.examples, env.kept_round, info["kept_sha256"])
    write_lessons(run)
    run.write_summary(summary)
    trajectory = Trajectory(
        "palaestra/Lesson-v0", settings.seed, tuple(rewards), (), terminated, truncated, tuple(infos)
    )
    return TeachResult(run.folder, summary, trajectory)
