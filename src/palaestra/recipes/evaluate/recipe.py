"""`palaestra evaluate`: the accuracy of a model on a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from palaestra.core.errors import SettingsError
from palaestra.core.records import Attempt, Event, Json, Listener, Problem, Report, Split, StopReason, ignore
from palaestra.core.registry import load_plugins
from palaestra.core.statistics import first_failures, report_on, slice_by_metadata
from palaestra.recipes.embedded_models import choose_model
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.metered_engines import CALLS, MeteredEngines, open_cache, service_options
from palaestra.recipes.progress import announce_start, log_events
from palaestra.recipes.runs import (
    PERCENT,
    OpenRun,
    RecipeResult,
    change_settings,
    name_interval,
    open_workers,
    record_run,
    start_run,
    to_percent,
)
from palaestra.recipes.settings import check_prices, prepare_resume, resolve_settings, set_threads, to_plain
from palaestra.runs.files import to_data
from palaestra.runs.provenance import LedgerEntry, Spending
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.core.records import Engine
    from palaestra.recipes.keywords import EvaluateKeywords
    from palaestra.tasks.base import Task

RECIPE = "evaluate"


@dataclass(frozen=True, slots=True, repr=False)
class EvaluateResult(RecipeResult):
    """The result: the run folder, the report by skill, and the contents of `summary.json`."""

    folder: Path
    report: Report
    summary: Json


def evaluate(
    settings: EvaluateSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Unpack[EvaluateKeywords],
) -> EvaluateResult:
    """Evaluate a model on a task. The run folder stores all attempts.

    Arguments:
        settings: all settings; or pass single ones as keywords.
        out: the run folder; empty: a new one below `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.
        values: fields of `EvaluateSettings`. `task` may be rows or a dataset, `model` a transformers model with its
            `tokenizer`.

    Example:
        >>> from palaestra import evaluate                              # doctest: +SKIP
        >>> evaluate(model="nano", problems=10).report.accuracy         # doctest: +SKIP
    """
    settings = resolve_settings(EvaluateSettings, settings, values)
    if not settings.model:
        settings = replace(settings, model=choose_model(make_run_task(settings), settings.skills))
    settings.check_effects()
    task, problems = check(settings)
    with start_run(RECIPE, out, listener, progress) as (folder, listener):
        kept = prepare_resume(settings, folder, listener)
        return _run(kept, task, problems, folder, listener, lambda: Run.create(folder, RECIPE, to_plain(kept)), True)


def resume(run: Run, *, listener: Listener = ignore, **changes: Any) -> EvaluateResult:
    """Resume an evaluation where it stopped, optionally with another `max_cost` or `executor`."""
    settings = change_settings(EvaluateSettings, run, changes)
    task, problems = check(settings)
    return _run(settings, task, problems, run.folder, listener, lambda: nullcontext(run), False)


def check(settings: EvaluateSettings) -> tuple[Task, list[Problem]]:
    """Check all names, and that the model can read the problems and the task can be scored. Loads no model.

    Returns:
        The task and its problems.
    """
    from palaestra.engines.base import is_remote
    from palaestra.engines.factory import check_model, check_reads
    from palaestra.models.registry import check_device
    from palaestra.tasks.base import check_skills, get_hooks
    from palaestra.tasks.evaluate import choose

    load_plugins(settings.plugins)
    model = settings.engine_model
    check_prices(settings.max_cost, model)
    settings.check_engine()
    settings.check_executor()
    check_model(model)
    check_device(settings.device)
    if is_remote(model) and settings.prompt == "plain":
        raise SettingsError(f"{settings.model} applies its own chat template; leave the prompt at 'chat'")
    task = make_run_task(settings)
    check_skills(task, settings.skills)
    problems = choose(task, Split(settings.split), settings.problems, settings.seed, settings.skills, settings.limit)
    check_reads(model, problems)
    get_hooks(task).check_scoring()
    return task, problems


def make_run_task(settings: EvaluateSettings) -> Task:
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
    return {"": make_run_task(settings)}


def _load(settings: EvaluateSettings, listener: Listener) -> Engine:
    from palaestra.core.records import LOCAL_SCHEME
    from palaestra.engines.base import get_scheme, is_remote
    from palaestra.engines.factory import open_engine
    from palaestra.models import registry as models

    listener(Event("load"))
    name, plain = settings.engine_model, settings.prompt == "plain"
    if is_remote(name):
        return open_engine(name, listener=listener, **service_options(settings.call_timeout))
    if get_scheme(name) != LOCAL_SCHEME:
        return open_engine(name, listener=listener, plain=plain, **settings.engine_kwargs)
    set_threads(settings.threads)
    from palaestra.engines.transformers import TransformersEngine

    model = models.load(name, device=settings.device, listener=listener)
    return TransformersEngine.from_loaded(model, settings.engine_batch, plain=plain)


def _run(
    settings: EvaluateSettings,
    task: Task,
    problems: list[Problem],
    folder: Path,
    listener: Listener,
    open_run: OpenRun,
    is_new: bool,
) -> EvaluateResult:
    """Generate answers to the problems without a stored attempt. The engine is loaded on first use."""
    from palaestra.core.records import Sampling
    from palaestra.engines.base import close_engine, is_remote
    from palaestra.tasks.base import get_hooks
    from palaestra.tasks.evaluate import evaluate as ask
    from palaestra.tasks.evaluate import measures, outcomes

    shots = str(settings.shots) if settings.shots else ""
    model, split = settings.engine_model, settings.split
    listener(announce_start(RECIPE, folder, model=model, task=settings.task, split=split, shots=shots))
    # Calls to a service stay in this process.
    make_engine = None if is_remote(model) else partial(_load, settings, ignore)
    max_tokens = settings.max_tokens or get_hooks(task).max_tokens
    sampling = Sampling(max_tokens, settings.temperature, settings.top_p, stop=settings.stop, count=settings.samples)
    with (
        open_workers(settings, partial(_make_tasks, settings), make_engine, listener) as workers,
        ExitStack() as opened,
    ):

        @cache
        def load_engine() -> Engine:
            engine = _load(settings, listener)
            opened.callback(close_engine, engine)
            return engine

        if is_new and workers is None:
            load_engine()  # Before the run folder exists, so that a failed load leaves no folder.
        run = opened.enter_context(open_run())
        listener = log_events(run, listener)
        record_run(run, model)
        phase = f"0/{split}"
        run.store.plan(len(problems) * settings.samples)
        calls = opened.enter_context(_meter(run, settings)) if is_remote(model) else None

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
        report, total = report_on(attempts, split), run.store.total()
        listener(Event(f"evaluated {split}", len(attempts), len(attempts), 0, {"report": report}))
        summary: Json = {
            "recipe": RECIPE,
            "task": settings.task,
            "model": model,
            "split": split,
            "seed": settings.seed,
            "before": None,
            **name_interval("after", *map(to_percent, (report.accuracy, report.low, report.high))),
            **name_interval("gain", None, None, None),
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
        run.write_summary(summary)
        return EvaluateResult(run.folder, report, summary)


@contextmanager
def _meter(run: Run, settings: EvaluateSettings) -> Iterator[MeteredEngines]:
    """Meter the calls to a service. The cache is in the run folder, so that paid answers stay with the run."""
    from palaestra.engines.budget import Budget

    with open_cache(str(run.folder / CALLS)) as answers:
        budget = Budget(max_cost=settings.max_cost or None, spent=answers.spent(run.store.id))
        yield MeteredEngines(answers, run.store.id, budget)
