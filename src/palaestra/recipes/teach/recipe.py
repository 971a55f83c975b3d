"""`palaestra teach`: a teacher teaches a student in rounds, and the gain is measured on a test split."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from palaestra.core.errors import EngineError, LessonError, RunError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.records import Attempt, Completion, Example, Failure, Message, Score, Split, Trajectory
from palaestra.executors.base import open_executor
from palaestra.recipes.chat_rows import to_chat_rows
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.metered_engines import check_prices
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.settings import build, load_run_settings, resolve_settings, to_plain
from palaestra.recipes.summary import RecipeResult, record_run
from palaestra.recipes.teach.lessons import check_writer, open_lessons
from palaestra.recipes.teach.settings import TASK_WRITER, TeachOptions, TeachSettings
from palaestra.recipes.teach.skills import check_discovery, has_skills, label_tasks, regroup
from palaestra.recipes.teach.summary import store_rewards, summarize_run
from palaestra.recipes.teach.task_groups import TeachTasks, check_tasks, make_tasks
from palaestra.runs.files import PARTIAL, write_folder, write_text
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import Run, RunClock, new_folder

if TYPE_CHECKING:
    from palaestra.learn.llama_factory import LlamaFactory
    from palaestra.learn.student import Scorer, Student
    from palaestra.tasks.base import Task
    from palaestra.tasks.evaluate import EvaluationWorkers


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
    with (
        _open_student(settings, tasks.taught, listener) as student,
        _open_workers(settings, listener) as workers,
        Run.create(folder, RECIPE, to_plain(settings)) as run,
    ):
        return _play(run, settings, tasks, student, workers, started, listener)


def resume(run: Run, *, listener: Listener = ignore, categories: int | None = None, **limits: Any) -> TeachResult:
    """Resume a run where it stopped. A finished run returns its result.

    Arguments:
        categories: cluster the names of discovered skills to this number; only before the first lesson is written.
        limits: new call limits: `max_cost`, `max_calls`, `max_tokens`; and another `executor`.
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
    with _open_student(settings, tasks.taught, listener) as student, _open_workers(settings, listener) as workers:
        return _play(run, settings, tasks, student, workers, started, listener)


def check(settings: TeachSettings) -> TeachTasks:
    """Check all names and options, and that the tasks can be scored. Loads no model and writes nothing.

    Returns:
        The tasks of the run.
    """
    from palaestra.engines.base import check_serves_weights, get_scheme
    from palaestra.engines.factory import check_model
    from palaestra.engines.models import check_device
    from palaestra.learn.students import check_student
    from palaestra.teachers.base import TEACHERS

    load_plugins(settings.plugins)
    check_prices(settings.max_cost, settings.writer, settings.planner, settings.discover, settings.verifier)
    TEACHERS.check(settings.teacher)
    tasks = make_tasks(settings)
    settings.check_engine()
    student = settings.resolve_model(settings.student)
    check_serves_weights(get_scheme(student), "student")
    check_model(student)
    check_device(settings.device)
    check_student(settings.learning, settings.parse("student_options"))
    trainer = make_trainer(settings)
    check_writer(settings, tasks.taught)
    check_problems(settings, tasks)
    if trainer is not None:
        trainer.check()  # It takes the longest.
    return tasks


def check_problems(settings: TeachSettings, tasks: TeachTasks) -> None:
    """Check the problems that are drawn with the seed of `settings`. This is the seed-dependent part of `check`."""
    check_discovery(settings, tasks)
    check_tasks(settings, tasks)


def _announce(settings: TeachSettings, folder: Path) -> Event:
    writer = "" if settings.writer == TASK_WRITER else settings.writer
    return announce_start(
        RECIPE,
        folder,
        student=settings.resolve_model(settings.student),
        teacher=settings.teacher,
        writer=writer,
        task=settings.task,
    )


@contextmanager
def _open_student(settings: TeachSettings, task: Task, listener: Listener) -> Iterator[Student]:
    """Load the student, and the engine that predicts for it if that is not transformers."""
    from palaestra.engines import models
    from palaestra.engines.base import LOCAL_SCHEME, close_engine, get_scheme, strip_scheme
    from palaestra.engines.factory import open_engine
    from palaestra.envs.token import TokenVectorEnv
    from palaestra.learn.students import STUDENTS, make_student
    from palaestra.learn.supervised import supervision_for
    from palaestra.tasks.base import get_hooks

    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    listener(Event("load"))
    model = models.load(strip_scheme(settings.student), device=settings.device, listener=listener)
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
    predictor: Any = None
    if get_scheme(name := settings.resolve_model(settings.student)) != LOCAL_SCHEME:
        rank = supervision.rank if supervision.method == "lora" else 0
        predictor = open_engine(name, listener=listener, max_lora_rank=rank, **settings.parse_engine_options())
    try:
        yield make_student(
            settings.learning, model, supervision, start=settings.start, score=make_scorer(task),
            environment=TokenVectorEnv, batch_size=settings.engine_batch, keep_every=settings.checkpoint_seconds,
            trainer=make_trainer(settings), predictor=predictor, **options,
        )  # fmt: skip
    finally:
        if predictor is not None:
            close_engine(predictor)


def make_trainer(settings: TeachSettings) -> LlamaFactory | None:
    """The external trainer; `None` for the built-in loop.

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
    from palaestra.tasks.evaluate import score as score_answer
    from palaestra.teachers.quality.answers import pose
    from palaestra.teachers.quality.base import Context

    context = Context(task)

    def score(example: Example, completion: Completion) -> Score | Failure | None:
        problem, _ = pose(example, context)
        return None if problem is None else score_answer(task, problem, completion)

    return score


@contextmanager
def _open_workers(settings: TeachSettings, listener: Listener) -> Iterator[EvaluationWorkers | None]:
    """Open the executor of the settings; `None` to score and write in this process.

    The workers score the student's answers. A local model that writes the examples lives in the workers; calls to a
    service stay in this process, with its cache and budget.
    """
    from palaestra.engines.base import is_remote
    from palaestra.engines.factory import open_engine
    from palaestra.tasks.evaluate import EvaluationWorkers

    if settings.executor == INLINE:
        yield None
        return
    writer = settings.resolve_model(settings.writer)
    is_local = settings.writer != TASK_WRITER and not is_remote(writer)
    make_engine = partial(open_engine, writer) if is_local else None
    with (
        open_executor(settings.executor) as executor,
        EvaluationWorkers.open(
            executor, settings.resources, partial(_make_worker_tasks, settings), make_engine, listener
        ) as workers,
    ):
        yield replace(workers, generate=False)


def _make_worker_tasks(settings: TeachSettings) -> dict[str, Task]:
    load_plugins(settings.plugins)
    tasks = make_tasks(settings)
    return {Split.VALIDATION: tasks.taught, Split.TEST: tasks.tested or tasks.taught}


def _play(
    run: Run,
    settings: TeachSettings,
    tasks: TeachTasks,
    student: Student,
    workers: EvaluationWorkers | None,
    started: float,
    listener: Listener,
) -> TeachResult:
    """Play the episode from its start. Stored work is not repeated."""
    from palaestra.engines.base import Sampling
    from palaestra.envs.lesson import LessonEnv

    writer = settings.writer if settings.writer != TASK_WRITER else ""
    record_run(run, settings.student, writer, settings.planner, settings.discover, settings.verifier)
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
        workers=workers,
        listener=listener,
    )
    clock.book("load")
    state, info = env.reset(seed=settings.seed)
    rewards, infos, terminated, truncated = [], [], False, False
    try:
        with open_lessons(run, settings, tasks.taught, listener, workers) as lessons:
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
    journal.tidy(env.trained_round)
    summary = summarize_run(run, settings, state.round, state.examples, env.kept_round, info["kept_sha256"])
    write_lessons(run)
    run.write_summary(summary)
    trajectory = Trajectory(
        "palaestra/Lesson-v0", settings.seed, tuple(rewards), (), terminated, truncated, tuple(infos)
    )
    return TeachResult(run.folder, summary, trajectory)


LESSONS = "lessons.jsonl"


class RunJournal:
    """The journal of a lesson episode in a run folder; see `palaestra.envs.lesson.journal`.

    Arguments:
        keep_all: keep the weights of every round, not only those that may still be needed.
    """

    def __init__(self, run: Run, *, keep_all: bool = False) -> None:
        self.run, self.keep_all = run, keep_all

    def attempts(self, phase: str) -> list[Attempt]:
        return self.run.store.attempts(phase)

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.run.store.add_attempts(phase, attempts, cost)

    def weights_sha256(self, round_: int) -> str | None:
        return self.run.store.weights_sha256(round_)

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        # The weights are saved before the store records them. A kill in between repeats the training.
        write_folder(self._folder(round_), student.save)
        self.run.store.add_training(round_, student.weights_sha256(), curve, cost)
        self.tidy(round_, *needed)

    def tidy(self, *rounds: int) -> None:
        """Remove all weights except those of `rounds`, and the saved state of a finished training."""
        wanted = {self._folder(round_) for round_ in rounds}
        for folder in self.run.checkpoints.iterdir() if self.run.checkpoints.is_dir() else ():
            is_round = folder.name.startswith("round-") and not folder.name.endswith(PARTIAL)
            if folder not in wanted and not (self.keep_all and is_round):
                shutil.rmtree(folder, ignore_errors=True)

    def load(self, round_: int, student: Student) -> None:
        folder = self._folder(round_)
        if not folder.is_dir():
            raise RunError(
                f"the run folder is damaged: the checkpoint {folder} is missing; restore it or start a new run"
            )
        student.load(folder)
        if student.weights_sha256() != self.weights_sha256(round_):
            raise RunError(f"the run folder is damaged: the weights in {folder} were changed after they were saved")

    def progress_folder(self) -> Path | None:
        return self.run.checkpoints / "training"

    def _folder(self, round_: int) -> Path:
        return self.run.checkpoints / f"round-{round_}"


def list_lesson_rows(run: Run) -> list[dict[str, Any]]:
    """List every example that was taught as a row of a table.

    Each row has `messages` (roles and contents; the response is the last message of the assistant), `round`, `position`,
    `skill`, `subskill`, `reference`, and `metadata` as JSON text. All rows have the same fields with the same types.
    """
    rows: list[tuple[int, int, Example]] = []
    for round_ in run.store.lesson_rounds():
        lesson = run.store.lesson(round_)
        rows += [(round_, position, example) for position, example in enumerate(lesson.examples if lesson else ())]
    conversations = [(*example.messages, Message("assistant", example.response)) for _, _, example in rows]
    return [
        {
            "messages": messages,
            "round": round_,
            "position": position,
            "skill": example.skill,
            "subskill": example.subskill,
            "reference": example.reference,
            "metadata": json.dumps(dict(example.metadata), ensure_ascii=False, default=str),
        }
        for messages, (round_, position, example) in zip(to_chat_rows(conversations), rows, strict=True)
    ]


def write_lessons(run: Run) -> Path:
    """Write the rows of `list_lesson_rows` to `lessons.jsonl` in the run folder, one object per line. Returns its path."""
    path = run.folder / LESSONS
    write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in list_lesson_rows(run)))
    return path
