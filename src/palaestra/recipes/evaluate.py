"""`palaestra evaluate`: how well does a model solve a task?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.events import Event, Listener, ignore
from palaestra.core.records import Report, Split
from palaestra.core.statistics import report_on
from palaestra.recipes.settings import at_least, given, named_values, of_run, require, setting, to_plain
from palaestra.runs.records import to_data
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from palaestra.engines.base import Engine

RECIPE = "evaluate"


@dataclass(frozen=True)
class EvaluateSettings:
    """What an evaluation asks."""

    task: str = setting("math-skills", "What is asked; `palaestra list tasks` names them.")
    task_options: tuple[str, ...] = setting((), "Options of the task, each as name=value, for example path=FOLDER.")
    model: str = setting("nano", "Who is asked: a name of the shelf, a folder, or a hub id.")
    split: Literal["train", "validation", "test"] = setting("test", "Which problems.")
    problems: int = setting(25, "Problems a skill.")
    skills: tuple[str, ...] = setting((), "Only these skills; all if none is given.")
    max_tokens: int = setting(72, "Most tokens of an answer.")
    temperature: float = setting(0.0, "0 takes the likeliest token; above, answers are sampled.")
    top_p: float = setting(1.0, "Sample from the likeliest tokens of this probability.")
    engine_batch: int = setting(128, "Answers that are generated side by side.")
    device: str = setting("", "Where to compute, for example cuda; empty means a GPU where there is one.")
    seed: int = setting(0, "Seed of problems and sampling.")

    def __post_init__(self) -> None:
        at_least(self, 1, "problems", "max_tokens", "engine_batch")
        require(0 < self.top_p <= 1, f"setting 'top_p': expected above 0 and at most 1; got {self.top_p}")
        at_least(self, 0, "temperature", "seed")

    @property
    def options(self) -> dict[str, Any]:
        """The task's own options."""
        return named_values(self.task_options, "task_options")


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """The outcome: the run folder, the report by skill, and what is in `summary.json`."""

    folder: Path
    report: Report
    summary: dict[str, Any]


def evaluate(
    settings: EvaluateSettings | None = None, *, out: str | Path = "", listener: Listener = ignore, **values: Any
) -> EvaluateResult:
    """Evaluate a model on a task; the attempts go to a run folder.

    Example:
        >>> from palaestra import evaluate                              # doctest: +SKIP
        >>> evaluate(model="nano", problems=10).report.accuracy         # doctest: +SKIP
    """
    settings = given(EvaluateSettings, settings, values)
    check(settings)
    engine = _load(settings, listener)
    with Run.create(Path(out) if out else new_folder(RECIPE), RECIPE, to_plain(settings)) as run:
        return _play(run, settings, lambda: engine, listener)


def resume(run: Run, *, listener: Listener = ignore) -> EvaluateResult:
    """Go on with an evaluation from wherever it was stopped."""
    settings = of_run(EvaluateSettings, run)
    check(settings)
    return _play(run, settings, lambda: _load(settings, listener), listener)


def check(settings: EvaluateSettings) -> None:
    """Raise for every name that does not exist, before anything is loaded or written."""
    from palaestra.engines import shelf
    from palaestra.tasks.base import check_skills, make_task

    task = make_task(settings.task, **settings.options)
    check_skills(task, settings.skills)
    shelf.check(settings.model)
    task.problems(Split(settings.split), settings.problems, settings.seed, settings.skills)


def _load(settings: EvaluateSettings, listener: Listener) -> Engine:
    from palaestra.engines import shelf

    listener(Event("load"))
    return shelf.load(settings.model, device=settings.device, listener=listener).engine(settings.engine_batch)


def _play(run: Run, settings: EvaluateSettings, engine: Callable[[], Engine], listener: Listener) -> EvaluateResult:
    """Ask what the store does not know yet; `engine` is loaded at most once."""
    from palaestra.engines.base import Sampling
    from palaestra.tasks.base import make_task
    from palaestra.tasks.evaluate import evaluate as ask

    task = make_task(settings.task, **settings.options)
    problems = task.problems(Split(settings.split), settings.problems, settings.seed, settings.skills)
    attempts = ask(
        task,
        problems,
        cache(engine),
        sampling=Sampling(settings.max_tokens, settings.temperature, settings.top_p),
        seed=settings.seed,
        phase=f"0/{settings.split}",
        known=run.store.attempts(f"0/{settings.split}"),
        keep=lambda made, cost: run.store.add_attempts(f"0/{settings.split}", made, cost),
        listener=listener,
    )
    report = report_on(attempts, settings.split)
    total = run.store.total()
    summary = {
        "recipe": RECIPE,
        "task": settings.task,
        "model": settings.model,
        "split": settings.split,
        "seed": settings.seed,
        "report": to_data(report),
        "failures": dict(report.failures),
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
    }
    run.write_summary(summary)
    return EvaluateResult(run.folder, report, summary)
