"""`palaestra evaluate`: how well does a model solve a task?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.records import Attempt, Problem, Report, Split, StopReason
from palaestra.core.statistics import first_failures, report_on, slice_by_metadata
from palaestra.recipes.metered_engines import (
    CALL_TIMEOUT,
    CALL_TIMEOUT_HELP,
    CALLS,
    MeteredEngines,
    check_call_timeout,
    check_prices,
    open_cache,
    service_options,
)  # fmt: skip
from palaestra.recipes.progress import RunProgress, show_progress
from palaestra.recipes.provenance import record_run
from palaestra.recipes.settings import (
    build,
    check_finite,
    check_minimum,
    load_run_settings,
    parse_options,
    require,
    resolve_settings,
    setting,
    to_plain,
)
from palaestra.runs.ledger import LedgerEntry, Spending
from palaestra.runs.records import to_data
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from palaestra.engines.base import Engine
    from palaestra.tasks.base import Task

RECIPE = "evaluate"


@dataclass(frozen=True)
class EvaluateSettings:
    """What an evaluation asks."""

    plugins: tuple[str, ...] = setting((), "Files (my_task.py) or modules of one's own that register tasks.")
    task: str = setting("math-skills", "What is asked; `palaestra list tasks` names them.")
    task_options: tuple[str, ...] = setting((), "Options of the task, each as name=value, for example path=FOLDER.")
    model: str = setting(
        "nano",
        "The model: a registered name, a folder, a hub id, or a service such as openai:MODEL or ADDRESS#MODEL.",
    )
    split: Literal["train", "validation", "test"] = setting("test", "Which problems.")
    problems: int = setting(0, "Problems a skill; 0: all of a published data set, 25 of a task that draws its own.")
    limit: int = setting(0, "Most problems in all, of the skills in turn; 0: no limit.")
    skills: tuple[str, ...] = setting((), "Only these skills; all if none is given.")
    shots: int = setting(0, "Worked problems of the train split that are shown before each question.")
    samples: int = setting(1, "Answers to each problem; with several, pass@k is reported.")
    max_tokens: int = setting(0, "Most tokens of an answer; 0: as many as the task needs.")
    temperature: float = setting(0.0, "0 takes the likeliest token; above, answers are sampled.")
    top_p: float = setting(1.0, "Sample from the likeliest tokens of this probability.")
    stop: tuple[str, ...] = setting((), "Texts that end an answer, beside the model's own end.")
    prompt: Literal["chat", "plain"] = setting(
        "chat", "chat: by the model's own chat template, where it has one; plain: the bare text, whatever it has."
    )
    max_cost: float = setting(0.0, "Most dollars for the calls of a service; 0: no limit.")
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP)
    engine_batch: int = setting(128, "Answers that are generated side by side.")
    device: str = setting("", "Where to compute, for example cuda; empty means a GPU where there is one.")
    seed: int = setting(0, "Seed of problems and sampling.")

    def __post_init__(self) -> None:
        check_finite(self)
        check_minimum(self, 1, "samples", "engine_batch")
        require(0 < self.top_p <= 1, f"setting 'top_p': expected above 0 and at most 1; got {self.top_p}")
        check_minimum(self, 0, "problems", "limit", "shots", "max_tokens", "temperature", "max_cost", "seed")
        check_call_timeout(self.call_timeout)
        require(all(self.stop), "setting 'stop': expected texts that are not empty")
        require(
            self.samples == 1 or self.temperature > 0,
            f"setting 'samples': {self.samples} answers at temperature 0 would all be the same; set a temperature",
        )

    @property
    def options(self) -> dict[str, Any]:
        """The task's own options."""
        options = parse_options(self.task_options, "task_options")
        require("shots" not in options, "setting 'task_options': give shots as the setting 'shots'")
        return {"shots": self.shots, **options}


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """The outcome: the run folder, the report by skill, and what is in `summary.json`."""

    folder: Path
    report: Report
    summary: dict[str, Any]


def evaluate(
    settings: EvaluateSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    **values: Any,
) -> EvaluateResult:
    """Evaluate a model on a task; the attempts go to a run folder.

    Arguments:
        settings: all of them at once, or give single ones as keywords.
        out: the run folder; a new one below `runs/` if empty.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` turns the display off, too.

    Example:
        >>> from palaestra import evaluate                              # doctest: +SKIP
        >>> evaluate(model="nano", problems=10).report.accuracy         # doctest: +SKIP
    """
    settings = resolve_settings(EvaluateSettings, settings, values)
    folder = Path(out) if out else new_folder(RECIPE)
    check(settings)
    Run.check_new(folder)
    with show_progress(listener, progress, RunProgress) as listener:
        engine = _load(settings, listener)
        with Run.create(folder, RECIPE, to_plain(settings)) as run:
            return _play(run, settings, lambda: engine, listener)


def resume(run: Run, *, listener: Listener = ignore, max_cost: float | None = None) -> EvaluateResult:
    """Go on with an evaluation from wherever it was stopped, with another limit of dollars if one is given."""
    settings = load_run_settings(EvaluateSettings, run)
    if max_cost is not None:
        settings = build(EvaluateSettings, {**to_plain(settings), "max_cost": max_cost})
        run.write_settings(to_plain(settings))
    check(settings)
    return _play(run, settings, lambda: _load(settings, listener), listener)


def check(settings: EvaluateSettings) -> None:
    """Raise for every name that does not exist and a task that cannot be scored, before anything is loaded or written."""
    from palaestra.engines.base import is_remote
    from palaestra.engines.factory import check_model, check_reads
    from palaestra.engines.models import check_device
    from palaestra.tasks.base import get_hooks

    load_plugins(settings.plugins)
    check_prices(settings.max_cost, settings.model)
    check_model(settings.model)
    check_device(settings.device)
    if is_remote(settings.model) and settings.prompt == "plain":
        raise SettingsError(f"{settings.model} applies its own chat template; leave the prompt at 'chat'")
    task, problems = _asked(settings)
    check_reads(settings.model, problems)
    get_hooks(task).check_scoring()


@lru_cache(maxsize=1)
def _asked(settings: EvaluateSettings) -> tuple[Task, list[Problem]]:
    """The task and its problems, kept until they have been asked: data takes time to read, and pictures to draw."""
    from palaestra.tasks.base import check_skills, make_task, task_signature
    from palaestra.tasks.evaluate import choose

    options = settings.options
    if settings.split == "test" and "parts" in task_signature(settings.task).parameters:
        # A benchmark is asked as it was published; `teach` divides it, to have something to teach on.
        options.setdefault("parts", "published")
    task = make_task(settings.task, **options)
    check_skills(task, settings.skills)
    split = Split(settings.split)
    return task, choose(task, split, settings.problems, settings.seed, settings.skills, settings.limit)


def _load(settings: EvaluateSettings, listener: Listener) -> Engine:
    from palaestra.engines import models
    from palaestra.engines.base import LOCAL_SCHEME, get_scheme
    from palaestra.engines.factory import open_engine

    listener(Event("load"))
    if get_scheme(settings.model) != LOCAL_SCHEME:
        return open_engine(settings.model, listener=listener, **service_options(settings.call_timeout))
    model = models.load(settings.model, device=settings.device, listener=listener)
    return model.engine(settings.engine_batch, plain=settings.prompt == "plain")


def _play(run: Run, settings: EvaluateSettings, engine: Callable[[], Engine], listener: Listener) -> EvaluateResult:
    """Ask what the store does not know yet; `engine` is loaded at most once."""
    from palaestra.engines.base import Sampling, is_remote
    from palaestra.tasks.base import get_hooks
    from palaestra.tasks.evaluate import evaluate as ask
    from palaestra.tasks.evaluate import measures, outcomes

    record_run(run, settings.model)
    task, problems = _asked(settings)
    _asked.cache_clear()  # Whoever evaluates again finds the data as it is then.
    phase = f"0/{settings.split}"
    longest = settings.max_tokens or get_hooks(task).max_tokens
    sampling = Sampling(longest, settings.temperature, settings.top_p, stop=settings.stop, count=settings.samples)
    with ExitStack() as stack:
        calls = stack.enter_context(_calls(run, settings)) if is_remote(settings.model) else None

        def keep(made: Sequence[Attempt], cost: LedgerEntry) -> None:
            if calls is not None:  # The cache knows of calls that brought no answer, too.
                cost = calls.spent().entry_since(run.store.total(), phase, settings.model, cost.seconds)
            run.store.add_attempts(phase, made, cost)

        attempts = ask(
            task,
            problems,
            cache(engine if calls is None else lambda: calls.open(settings.model, engine())),
            sampling=sampling,
            seed=settings.seed,
            phase=phase,
            known=run.store.attempts(phase),
            keep=keep,
            listener=listener,
        )
        spent = Spending() if calls is None else calls.spent()
    report = report_on(attempts, settings.split)
    total = run.store.total()
    summary = {
        "recipe": RECIPE,
        "task": settings.task,
        "model": settings.model,
        "split": settings.split,
        "seed": settings.seed,
        "problems": len(problems),
        "samples": settings.samples,
        "shots": settings.shots,
        "max_tokens": longest,
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
def _calls(run: Run, settings: EvaluateSettings) -> Iterator[MeteredEngines]:
    """The calls of an evaluation to a service, with a cache in the run folder: an answer that was paid for is kept."""
    from palaestra.engines.budget import Budget

    with open_cache(str(run.folder / CALLS)) as answers:
        budget = Budget(max_cost=settings.max_cost or None, spent=answers.spent(run.store.id))
        yield MeteredEngines(answers, run.store.id, budget)
