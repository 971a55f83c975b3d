"""`palaestra teach`: a teacher teaches a student, round by round, and the gain is measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import LessonError, RunError, SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Attempt, Lesson, Split, Trajectory
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import gain_between, report_on
from palaestra.recipes.settings import build, require, setting, to_plain
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from palaestra.learn.student import Student
    from palaestra.learn.supervised import Supervision

RECIPE = "teach"


@dataclass(frozen=True)
class TeachSettings:
    """What a teach run does. The same as the command line's options and as `settings.json`."""

    task: str = setting("math-skills", "What is taught; `palaestra list tasks` names them.")
    student: str = setting("nano", "The model that learns: a name of the shelf, a folder, or a hub id.")
    teacher: str = setting("skill_tree", "Who teaches; `palaestra list teachers` names them.")
    skills: tuple[str, ...] = setting((), "Only these skills of the task; all if none is given.")
    rounds: int = setting(3, "Rounds of lesson, training and evaluation.")
    lesson_size: int = setting(160, "Examples in one lesson.")
    budget: int = setting(0, "Most examples in all; 0 means rounds times lesson size.")
    validation: int = setting(12, "Validation problems a skill: what the teacher sees.")
    test: int = setting(25, "Test problems a skill: what the gain is measured on.")
    max_tokens: int = setting(72, "Most tokens of an answer.")
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
    seed: int = setting(0, "Seed of problems, lessons and training.")

    def __post_init__(self) -> None:
        for name in (
            "rounds",
            "lesson_size",
            "validation",
            "test",
            "max_tokens",
            "epochs",
            "batch_size",
            "rank",
            "engine_batch",
        ):
            require(getattr(self, name) >= 1, f"setting '{name}': expected at least 1; got {getattr(self, name)}")
        for name in ("budget", "learning_rate", "threads", "seed"):
            require(getattr(self, name) >= 0, f"setting '{name}': expected at least 0; got {getattr(self, name)}")

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
    settings: TeachSettings | None = None, *, out: str | Path = "", listener: Listener = ignore, **values: Any
) -> TeachResult:
    """Run a whole episode at the lesson scale and measure what the student gained.

    Arguments:
        settings: all of them at once, or give single ones as keywords.
        out: the run folder; a new one below `runs/` if empty.
        listener: is told of the progress.

    Example:
        >>> from palaestra import teach                                       # doctest: +SKIP
        >>> result = teach(teacher="skill_tree", student="nano", seed=0)      # doctest: +SKIP
        >>> result.summary["gain"]                                            # doctest: +SKIP
    """
    if settings is not None and values:
        raise SettingsError(f"give the settings or single values, not both; got both: {', '.join(sorted(values))}")
    settings = settings or build(TeachSettings, values)
    check(settings)
    with Run.create(Path(out) if out else new_folder(RECIPE), RECIPE, to_plain(settings)) as run:
        return _play(run, settings, listener)


def resume(run: Run, *, listener: Listener = ignore) -> TeachResult:
    """Go on with a run from wherever it was stopped; a finished run just gives its result."""
    settings = build(TeachSettings, run.settings)
    check(settings)
    return _play(run, settings, listener)


def check(settings: TeachSettings) -> None:
    """Raise for every name that does not exist, before anything is loaded or written."""
    from palaestra.engines import shelf
    from palaestra.tasks.base import GenerativeTask, check_skills, make_task
    from palaestra.teachers.base import TEACHERS

    task = make_task(settings.task)
    TEACHERS.check(settings.teacher)
    check_skills(task, settings.skills)
    shelf.check(settings.student)
    if not isinstance(task, GenerativeTask):
        raise SettingsError(
            f"the teacher '{settings.teacher}' writes with the task's own generators; '{settings.task}' has none"
        )


def _play(run: Run, settings: TeachSettings, listener: Listener) -> TeachResult:
    """The episode, from its start. What the store knows already passes in an instant."""
    from palaestra.engines import shelf
    from palaestra.engines.base import Sampling
    from palaestra.envs.lesson import LessonEnv
    from palaestra.learn.student import SupervisedStudent
    from palaestra.tasks.base import GenerativeTask, make_task
    from palaestra.teachers.base import make_teacher

    task = make_task(settings.task)
    assert isinstance(task, GenerativeTask)
    teacher = make_teacher(settings.teacher, task, settings.skills)
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    clock = _Clock(run)
    listener(Event("load"))
    model = shelf.load(settings.student, device=settings.device, listener=listener)
    student = SupervisedStudent(model, supervision_of(settings, model.weights), batch_size=settings.engine_batch)
    env = LessonEnv(
        task,
        student,
        rounds=settings.rounds,
        budget=settings.data_budget,
        validation=settings.validation,
        test=settings.test,
        skills=settings.skills,
        sampling=Sampling(max_tokens=settings.max_tokens),
        journal=RunJournal(run),
        listener=listener,
    )
    seeds = Seeds(settings.seed)
    clock.lap("load")
    state, info = env.reset(seed=settings.seed)
    rewards, infos, terminated, truncated = [], [], False, False
    while not (terminated or truncated):
        round_ = state.round + 1
        lesson = run.store.lesson(round_)
        if lesson is None:
            lesson = _write_lesson(teacher, state, settings, seeds.derive("teacher", round_), run, round_)
        listener(Event("lesson", len(lesson.examples), len(lesson.examples), round_, {"decisions": lesson.decisions}))
        state, reward, terminated, truncated, info = env.step(lesson)
        rewards.append(reward)
        infos.append({"examples": len(lesson.examples), "weights_sha256": info["weights_sha256"]})
    # Seconds are those of committed work, over all the processes that did it.
    clock.lap("rest")
    summary = run.summary
    if summary is None:
        summary = _summary(run, settings, state.round, state.examples, info["weights_sha256"])
        run.write_summary(summary)
    trajectory = Trajectory(
        "palaestra/Lesson-v0", settings.seed, tuple(rewards), (), terminated, truncated, tuple(infos)
    )
    return TeachResult(run.folder, summary, trajectory)


def _write_lesson(teacher: Any, state: Any, settings: TeachSettings, seeds: Seeds, run: Run, round_: int) -> Lesson:
    start = time.perf_counter()
    size = min(settings.lesson_size, state.budget)
    lesson: Lesson = teacher.write(state, size, seeds.generator())
    if len(lesson.examples) > size:
        raise LessonError(
            f"teacher '{settings.teacher}' was asked for {size} examples and wrote {len(lesson.examples)}"
        )
    cost = LedgerEntry(f"{round_}/lesson", settings.teacher, seconds=time.perf_counter() - start)
    run.store.add_lesson(round_, lesson, cost)
    return lesson


def supervision_of(settings: TeachSettings, weights: Any) -> Supervision:
    """How this student is to be trained: small models whole, large ones by an adapter."""
    from palaestra.learn.supervised import Supervision

    method = settings.method
    if method == "auto":
        method = "full" if sum(p.numel() for p in weights.parameters()) <= 20_000_000 else "lora"
    rate = settings.learning_rate or {"full": 5e-4, "lora": 2e-4}[method]
    return Supervision(method, settings.epochs, settings.batch_size, rate, rank=settings.rank, alpha=2 * settings.rank)


def _summary(run: Run, settings: TeachSettings, rounds: int, examples: int, weights_sha256: str) -> dict[str, Any]:
    before, after = run.store.attempts(f"0/{Split.TEST}"), run.store.attempts(f"{rounds}/{Split.TEST}")
    failures: dict[str, int] = {}
    for phase in run.store.phases():
        for cause, count in report_on(run.store.attempts(phase)).failures.items():
            failures[cause] = failures.get(cause, 0) + count
    total = run.store.total()
    by_skill = {}
    for skill in sorted({attempt.problem.skill for attempt in before}):
        by_skill[skill] = _figures(_of(before, skill), _of(after, skill)) | {
            "examples": sum(n for parts in run.store.allocation().values() for (s, _), n in parts.items() if s == skill)
        }
    return {
        "recipe": RECIPE,
        "task": settings.task,
        "student": settings.student,
        "teacher": settings.teacher,
        "seed": settings.seed,
        **_figures(before, after),
        "rounds": rounds,
        "examples": examples,
        "failures": failures,
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        "weights_sha256": weights_sha256,
        "by_skill": by_skill,
    }


def _of(attempts: Sequence[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]


def _figures(before: Sequence[Attempt], after: Sequence[Attempt]) -> dict[str, Any]:
    """Before, after and gain in points, with intervals, on the same problems."""
    first, second, gain = report_on(before), report_on(after), gain_between(before, after)

    def points(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 2)

    return {
        "test_before": points(first.accuracy),
        "test_before_low": points(first.low),
        "test_before_high": points(first.high),
        "test_after": points(second.accuracy),
        "test_after_low": points(second.low),
        "test_after_high": points(second.high),
        "gain": round(gain.points, 2),
        "gain_low": round(gain.low, 2),
        "gain_high": round(gain.high, 2),
        "problems": gain.count,
    }


class RunJournal:
    """A lesson episode's memory in a run folder."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def attempts(self, phase: str) -> list[Attempt]:
        return self.run.store.attempts(phase)

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.run.store.add_attempts(phase, attempts, cost)

    def weights_sha256(self, round_: int) -> str | None:
        return self.run.store.weights_sha256(round_)

    def add_training(
        self, round_: int, student: Student, curve: Sequence[tuple[int, float]], cost: LedgerEntry
    ) -> None:
        from palaestra.runs.files import write_folder

        # First the weights, then the note that they are there: a kill in between trains once more.
        write_folder(self._folder(round_), student.save)
        self.run.store.add_training(round_, student.weights_sha256(), curve, cost)
        # Every training starts from the base, so only the newest weights are needed.
        for old in range(1, round_):
            shutil.rmtree(self._folder(old), ignore_errors=True)
        shutil.rmtree(self.run.checkpoints / "training", ignore_errors=True)

    def load(self, round_: int, student: Student) -> None:
        folder = self._folder(round_)
        if not folder.is_dir():
            raise RunError(
                f"the run folder is damaged: the checkpoint {folder} is missing; restore it or start a new run"
            )
        student.load(folder)
        expected, found = self.weights_sha256(round_), student.weights_sha256()
        if expected != found:
            raise RunError(f"the run folder is damaged: the weights in {folder} are not those that were saved")

    def progress_folder(self) -> Path | None:
        return self.run.checkpoints / "training"

    def _folder(self, round_: int) -> Path:
        return self.run.checkpoints / f"round-{round_}"


class _Clock:
    """Puts the seconds that no other entry of the ledger covers into the ledger."""

    def __init__(self, run: Run) -> None:
        self.run, self.start, self.known = run, time.perf_counter(), run.store.total().seconds

    def lap(self, phase: str) -> None:
        now, total = time.perf_counter(), self.run.store.total().seconds
        rest = (now - self.start) - (total - self.known)
        if rest > 0 and self.run.summary is None:
            self.run.store.add_cost(LedgerEntry(phase, seconds=rest))
            total += rest
        self.start, self.known = now, total
