"""`palaestra evaluate`: the accuracy of a model on a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from palaestra.core.errors import SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.records import Attempt, Problem, Report, Split, StopReason
from palaestra.core.statistics import first_failures, report_on, slice_by_metadata
from palaestra.executors.base import open_executor
from palaestra.recipes.evaluate.settings import EvaluateOptions, EvaluateSettings
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.metered_engines import CALLS, MeteredEngines, check_prices, open_cache, service_options
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.settings import build, load_run_settings, resolve_settings, to_plain
from palaestra.recipes.summary import PERCENT, RecipeResult, record_run, to_percent
from palaestra.runs.files import to_data
from palaestra.runs.ledger import LedgerEntry, Spending
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.tasks.base import Task
    from palaestra.tasks.evaluate import EvaluationWorkers

RECIPE = "evaluate"


@dataclass(frozen=True, slots=True, repr=False)
class EvaluateResult(RecipeResult):
    """The result: the run folder, the report by skill, and the contents of `summary.json`."""

    folder: Path
    report: Report
    summary: dict[str, Any]


def evaluate(
    settings: EvaluateSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Unpack[EvaluateOptions],
) -> EvaluateResult:
    """Evaluate a model on a task. The run folder stores all attempts.

    Arguments:
        settings: all settings; or pass single ones as keywords.
        out: the run folder; empty: a new one below `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.

    Example:
        >>> from palaestra import evaluate                              # doctest: +SKIP
        >>> evaluate(model="nano", problems=10).report.accuracy         # doctest: +SKIP
    """
    settings = resolve_settings(EvaluateSettings, settings, values)
    folder = Path(out) if out else new_folder(RECIPE)
    task, problems = check(settings)
    Run.check_new(folder)
    with show_progress(listener, progress, RunProgress) as listener:
        listener(_announce(settings, folder))
        with _open_workers(settings, listener) as workers, _make_loader(settings, listener) as load_engine:
            # Load before the run folder exists, so that a failed load leaves no folder.
            if settings.executor == INLINE:
                load_engine()
            with Run.create(folder, RECIPE, to_plain(settings)) as run:
                return _run(run, settings, task, problems, load_engine, workers, listener)


def resume(run: Run, *, listener: Listener = ignore, **changes: Any) -> EvaluateResult:
    """Resume an evaluation where it stopped, optionally with another `max_cost` or `executor`."""
    settings = load_run_settings(EvaluateSettings, run)
    if changes:
        settings = build(EvaluateSettings, {**to_plain(settings), **changes})
        run.write_settings(to_plain(settings))
    task, problems = check(settings)
    listener(_announce(settings, run.folder))
    with _open_workers(settings, listener) as workers, _make_loader(settings, listener) as load_engine:
        return _run(run, settings, task, problems, load_engine, workers, listener)


def check(settings: EvaluateSettings) -> tuple[Task, list[Problem]]:
    """Check all names, and that the model can read the problems and the task can be scored. Loads no model.

    Returns:
        The task and its problems.
    """
    from palaestra.engines.base import is_remote
    from palaestra.engines.factory import check_model, check_reads
    from palaestra.engines.models import check_device
    from palaestra.tasks.base import check_skills, get_hooks
    from palaestra.tasks.evaluate import choose

    load_plugins(settings.plugins)
    model = settings.engine_model
    check_prices(settings.max_cost, model)
    settings.check_engine()
    check_model(model)
    check_device(settings.device)
    if is_remote(model) and settings.prompt == "plain":
        raise SettingsError(f"{settings.model} applies its own chat template; leave the prompt at 'chat'")
    task = _make_task(settings)
    check_skills(task, settings.skills)
    split = Split(settings.split)
    problems = choose(task, split, settings.problems, settings.seed, settings.skills, settings.limit)
    check_reads(model, problems)
    get_hooks(task).check_scoring()
    return task, problems


def _make_task(settings: EvaluateSettings) -> Task:
    """Make the task."""
    from palaestra.tasks.base import make_task, task_signature

    load_plugins(settings.plugins)
    options = settings.options
    if settings.split == "test" and "parts" in task_signature(settings.task).parameters:
        # An evaluation uses the published test split. `teach` divides it, to have problems to teach on.
        options.setdefault("parts", "published")
    return make_task(settings.task, **options)


def _make_tasks(settings: EvaluateSettings) -> dict[str, Task]:
    """The tasks of a worker: only one, without a name."""
    return {"": _make_task(settings)}


def _announce(settings: EvaluateSettings, folder: Path) -> Event:
    shots = str(settings.shots) if settings.shots else ""
    return announce_start(
        RECIPE, folder, model=settings.engine_model, task=settings.task, split=settings.split, shots=shots
    )


def _load(settings: EvaluateSettings, listener: Listener) -> Engine:
    from palaestra.engines import models
    from palaestra.engines.base import LOCAL_SCHEME, get_scheme, is_remote
    from palaestra.engines.factory import open_engine

    listener(Event("load"))
    name, plain = settings.engine_model, settings.prompt == "plain"
    if is_remote(name):
        return open_engine(name, listener=listener, **service_options(settings.call_timeout))
    if get_scheme(name) != LOCAL_SCHEME:
        return open_engine(name, listener=listener, plain=plain, **settings.parse_engine_options())
    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    model = models.load(name, device=settings.device, listener=listener)
    return model.engine(settings.engine_batch, plain=plain)


@contextmanager
def _make_loader(settings: EvaluateSettings, listener: Listener) -> Iterator[Callable[[], Engine]]:
    """Yield a function that loads the engine on its first call. The engine is closed at the end."""
    from palaestra.engines.base import close_engine

    opened: list[Engine] = []

    def load() -> Engine:
        if not opened:
            opened.append(_load(settings, listener))
        return opened[0]

    try:
        yield load
    finally:
        for engine in opened:
            close_engine(engine)


@contextmanager
def _open_workers(settings: EvaluateSettings, listener: Listener) -> Iterator[EvaluationWorkers | None]:
    """Open the executor of the settings; `None` to evaluate in this process. Calls to a service stay in this process."""
    from palaestra.engines.base import is_remote
    from palaestra.tasks.evaluate import EvaluationWorkers

    if settings.executor == INLINE:
        yield None
        return
    make_engine = None if is_remote(settings.engine_model) else partial(_load, settings, ignore)
    make_tasks = partial(_make_tasks, settings)
    with (
        open_executor(settings.executor) as executor,
        EvaluationWorkers.open(executor, settings.resources, make_tasks, make_engine, listener) as workers,
    ):
        yield workers


def _run(
    run: Run,
    settings: EvaluateSettings,
    task: Task,
    problems: list[Problem],
    load_engine: Callable[[], Engine],
    workers: EvaluationWorkers | None,
    listener: Listener,
) -> EvaluateResult:
    """Generate answers to the problems without a stored attempt."""
    from palaestra.engines.base import Sampling, is_remote
    from palaestra.tasks.base import get_hooks
    from palaestra.tasks.evaluate import evaluate as ask

    model = settings.engine_model
    record_run(run, model)
    phase = f"0/{settings.split}"
    max_tokens = settings.max_tokens or get_hooks(task).max_tokens
    sampling = Sampling(max_tokens, settings.temperature, settings.top_p, stop=settings.stop, count=settings.samples)
    with ExitStack() as stack:
        calls = stack.enter_context(_meter(run, settings)) if is_remote(model) else None

        def keep(attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
            if calls is not None:  # The cache also counts calls without an answer.
                cost = calls.spent().entry_since(run.store.total(), phase, model, cost.seconds)
            run.store.add_attempts(phase, attempts, cost)

        attempts = ask(
            task,
            problems,
            cache(load_engine if calls is None else lambda: calls.open(model, load_engine())),
            sampling=sampling,
            seed=settings.seed,
            phase=phase,
            known=run.store.attempts(phase),
            keep=keep,
            workers=workers,
            listener=listener,
        )
        spent = Spending() if calls is None else calls.spent()
    report = report_on(attempts, settings.split)
    listener(Event(f"evaluated {settings.split}", len(attempts), len(attempts), 0, {"report": report}))
    summary = _summarize(run, settings, task, problems, attempts, report, max_tokens, spent)
    run.write_summary(summary)
    return EvaluateResult(run.folder, report, summary)


def _summarize(
    run: Run,
    settings: EvaluateSettings,
    task: Task,
    problems: list[Problem],
    attempts: Sequence[Attempt],
    report: Report,
    max_tokens: int,
    spent: Spending,
) -> dict[str, Any]:
    from palaestra.tasks.evaluate import measures, outcomes

    total = run.store.total()
    return {
        "recipe": RECIPE,
        "task": settings.task,
        "model": settings.engine_model,
        "split": settings.split,
        "seed": settings.seed,
        "before": None,
        "after": to_percent(report.accuracy),
        "after_low": to_percent(report.low),
        "after_high": to_percent(report.high),
        "gain": None,
        "gain_low": None,
        "gain_high": None,
        "unit": PERCENT,
        "problems": len(problems),
        "samples": settings.samples,
        "shots": settings.shots,
        "max_tokens": max_tokens,
        "report": to_data(report),
        "cuts": {cut: [to_data(part) for part in parts] for cut, parts in slice_by_metadata(attempts).items()},
        "measures": {name: to_data(mean) for name, mean in measures(task, attempts, settings.samples).items()},
        "outcomes": outcomes(attempts),
        "truncated": sum(a.completion.stop_reason is StopReason.LENGTH for a in attempts if a.completion),
        "failures": dict(report.failures),
        "first_failures": first_failures(attempts),
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "calls": total.calls,
        "calls_again": spent.again,
        "cost": total.money,
        **spent.gaps(),
    }


@contextmanager
def _meter(run: Run, settings: EvaluateSettings) -> Iterator[MeteredEngines]:
    """Meter the calls to a service. The cache is in the run folder, so that paid answers stay with the run."""
    from palaestra.engines.budget import Budget

    with open_cache(str(run.folder / CALLS)) as answers:
        budget = Budget(max_cost=settings.max_cost or None, spent=answers.spent(run.store.id))
        yield MeteredEngines(answers, run.store.id, budget)
