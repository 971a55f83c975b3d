"""`palaestra train`: train a policy in an environment by reinforcement learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from palaestra.core.errors import MissingExtraError, RunError, SettingsError
from palaestra.core.process import HeldInterrupts, measure_system, read_launch_rank, read_launch_size, read_restarts
from palaestra.core.records import LOCAL_SCHEME, Event, Json, Listener, Split, ignore, notice
from palaestra.core.registry import load_plugins
from palaestra.core.statistics import measure_changes
from palaestra.recipes.embedded_models import check_reads_env
from palaestra.recipes.progress import (
    Trackers,
    TrainProgress,
    announce_start,
    check_trackers,
    log_events,
    show_progress,
)
from palaestra.recipes.runs import SHARED_KEYS, RecipeResult, record_run, start_run, summarize_gain
from palaestra.recipes.settings import (
    build,
    load_run_settings,
    prepare_resume,
    require,
    resolve_settings,
    set_threads,
    to_plain,
)
from palaestra.recipes.train.mixture import name_environments, split_environments
from palaestra.recipes.train.presets import fill_presets, make_settings
from palaestra.recipes.train.settings import TrainSettings
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.run import Run, RunClock

if TYPE_CHECKING:
    from palaestra.envs.token import Response
    from palaestra.recipes.keywords import TrainKeywords
    from palaestra.rl.loop import Loop

RECIPE = "train"
STOPPING = (
    "stopping after this iteration is saved; press Ctrl-C again to stop at once and resume from the last checkpoint"
)


@dataclass(frozen=True, slots=True, repr=False)
class TrainResult(RecipeResult):
    """The result of a run: its folder, the content of its `summary.json`, and the trained policy."""

    folder: Path
    summary: Json
    policy: Any


@dataclass(frozen=True, slots=True)
class Iteration:
    """The argument of a callback.

    Arguments:
        number: the number of the iteration, from 1.
        metrics: the metrics of the iteration, as stored.
        responses: all responses of a language model with their prompts and rewards; empty for classic environments.
    """

    number: int
    metrics: Mapping[str, float]
    responses: Sequence[Response] = ()


Callback = Callable[[Iteration], bool | Mapping[str, float] | None]
"""Called after each iteration. `True` stops the run; a mapping is added to the metrics."""


def train(
    settings: TrainSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **values: Unpack[TrainKeywords],
) -> TrainResult:
    """Train a policy in an environment.

    Arguments:
        settings: all settings in one object; otherwise pass single settings as keywords.
        out: the run folder; by default a new one in `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.
        callbacks: called after each iteration.
        values: fields of `TrainSettings`, and hyperparameters of the algorithm: fields of `PPOConfig`, `GRPOConfig`,
            `RLOOConfig`, `REINFORCEConfig`, or of the config of an algorithm of your own. `algorithm` may be such a config,
            `env` a class, a function or an instance, `prompts` and `task` rows or a dataset, `reward` a function or several,
            `model` a transformers model with its `tokenizer`, of which a copy is trained.

    Example:
        >>> from palaestra import train                                                            # doctest: +SKIP
        >>> train(env="palaestra/CoT-v0", algorithm="grpo", model="nano", learning_rate=1e-4).gain # doctest: +SKIP
        >>> train(model="nano", prompts="questions.jsonl", reward=my_function).after               # doctest: +SKIP
        >>> train(env="CartPole-v1", policy="mlp").curve                                           # doctest: +SKIP
    """
    settings = fill_presets(resolve_settings(TrainSettings, settings, values, make_settings))
    from palaestra.recipes.train.build import check_processes, complete_settings
    from palaestra.rl.distributed.ranks import join_processes

    started = time.perf_counter()
    if read_launch_rank() > 0:
        with join_processes(settings.device):
            return _follow(settings)
    check(settings)
    check_processes(settings, read_launch_size())
    restarts, max_restarts = read_restarts()
    if max_restarts and not out:
        raise SettingsError(
            "option 'out': torchrun --max-restarts goes on with the run in a folder; expected --out FOLDER"
        )
    if restarts and (Path(out) / "settings.json").exists():
        with show_progress(listener, progress, TrainProgress) as shown, Run.open(Path(out)) as run:
            shown(notice(f"restart {restarts} of {max_restarts} by torchrun: going on from the last checkpoint"))
            return resume(run, listener=shown, callbacks=callbacks)
    with (
        start_run(RECIPE, out, listener, progress, TrainProgress) as (folder, listener),
        join_processes(settings.device),
    ):
        settings = prepare_resume(settings, folder, listener)
        listener(_announce(settings, folder))
        loop = _build(settings, listener)
        settings = complete_settings(settings, loop)
        with closing(loop), Run.create(folder, RECIPE, to_plain(settings)) as run:
            return _run(run, settings, loop, started, listener, callbacks)


def resume(run: Run, *, listener: Listener = ignore, callbacks: Sequence[Callback] = (), **changes: Any) -> TrainResult:
    """Resume a run from its last checkpoint.

    The result is the same as without the interruption. With `max_staleness` above 0, recorded batches are repeated: the
    rollouts that were sampled ahead are sampled again with the same weights.

    Arguments:
        changes: other values of the settings `executor`, `parallel`, `device` and `rollout_servers`. The number of
            processes may differ as well. On another device the result is the same up to rounding.
    """
    from palaestra.recipes.train.build import check_processes
    from palaestra.rl.distributed.ranks import join_processes

    settings = load_run_settings(TrainSettings, run)
    if changes:
        settings = build(TrainSettings, {**to_plain(settings), **changes})
    load_plugins(settings.plugins)
    started = time.perf_counter()
    if read_launch_rank() > 0:
        with join_processes(settings.device):
            return _follow(settings)
    check(settings)
    check_processes(settings, read_launch_size())
    listener(_announce(settings, run.folder))
    with join_processes(settings.device), closing(_build(settings, listener)) as loop:
        return _run(run, settings, loop, started, listener, callbacks)


def _follow(settings: TrainSettings) -> TrainResult:
    """Train as one of the processes other than rank 0, which writes the run folder."""
    from palaestra.recipes.train.build import follow

    with closing(_build(settings, ignore)) as loop:
        folder, summary = follow(loop)
        return TrainResult(Path(folder), summary, loop.policy)


def check(settings: TrainSettings) -> None:
    """Raise for every unknown name before anything is loaded or written."""
    from palaestra.engines.factory import check_model
    from palaestra.envs.factory import check_options, get_spec
    from palaestra.envs.token.rewards import RewardFunctions
    from palaestra.models import registry as models
    from palaestra.students.supervised import check_peft

    load_plugins(settings.plugins)
    for part in split_environments(settings):
        get_spec(part.env)
        check_options(part.env, part.options, part.own_options)
        if settings.policy in (None, "lm"):
            check_reads_env(settings.model, part.env, part.options)
    if settings.reward:
        RewardFunctions(settings.reward, settings.reward_weights)
    models.check_device(settings.device)
    settings.check_executor()
    if settings.policy in (None, "lm"):
        models.check(settings.model)
        check_peft(settings.model, settings.method)
        settings.check_engine()
        size = settings.engine_kwargs.get("tensor_parallel_size", 1)
        require(
            not settings.executor.startswith("ray") or size in (1, settings.worker_gpus),
            f"setting 'worker_gpus': expected {size}, the tensor_parallel_size of each worker's engine; got "
            f"{settings.worker_gpus:g}",
        )
        if settings.engine != LOCAL_SCHEME:
            check_model(settings.resolve_model(settings.model))
        if settings.rollout_servers:
            check_model(settings.rollout_servers)
    if settings.agent:
        from palaestra.rl.agent_program import parse_command

        parse_command(settings.agent, settings.agent_start)
        if find_spec("uvicorn") is None or find_spec("starlette") is None:
            raise MissingExtraError("uvicorn", "serve", "training an agent")
    check_trackers(settings)


def _announce(settings: TrainSettings, folder: Path) -> Event:
    return announce_start(
        RECIPE, folder, model=settings.learner, algorithm=str(settings.algorithm), environment=_describe_env(settings)
    )


def _describe_env(settings: TrainSettings) -> str:
    return " + ".join(name_environments(settings.environments)) if settings.environments else settings.env


def _build(settings: TrainSettings, listener: Listener) -> Loop:
    from palaestra.recipes.train.build import build_loop

    set_threads(settings.threads)
    listener(Event("load"))
    return build_loop(settings, listener)


def _run(
    run: Run, settings: TrainSettings, loop: Loop, started: float, listener: Listener, callbacks: Sequence[Callback]
) -> TrainResult:
    from palaestra.recipes.train.build import lead
    from palaestra.rl.loop import load_newest_checkpoint, save_checkpoint

    record_run(run, settings.model if settings.policy == "lm" else "")
    summary, listener = run.summary, log_events(run, listener)
    loop.open_record(run.folder)
    lead("load", str(run.checkpoints.resolve()))
    done = load_newest_checkpoint(run.checkpoints, loop, trust=run.trusted)
    run.store.forget_after(done)
    if summary is not None:
        lead("end", str(run.folder), summary)
        return TrainResult(run.folder, summary, loop.policy)
    trackers = Trackers(run.folder, settings, run.store.id)
    clock = RunClock(run, started)
    clock.book(f"{done}/load")
    if settings.evaluation and done == 0:
        trackers.log(0, _evaluate(run, loop, 0, settings, listener))
    iteration, iterations = done, loop.config.iterations
    with HeldInterrupts(lambda: listener(notice(STOPPING))) as held:
        # A run that stopped early and was killed before its summary only needs the summary.
        for iteration in range(done + 1, (done if loop.stopped else iterations) + 1):
            listener(Event("collect", iteration - 1, iterations, iteration))
            start = time.perf_counter()
            remaining = 1.0 - (iteration - 1) / iterations
            lead("iterate", iteration, remaining)
            metrics, trajectories = loop.iterate(iteration, remaining, listener)
            metrics |= measure_system()
            seconds = time.perf_counter() - start
            episodes = int(metrics.get("episodes", 0))
            cost = LedgerEntry(
                f"{iteration}/train", settings.learner, calls=episodes, usage=loop.usage, seconds=seconds
            )
            run.store.add_iteration(iteration, metrics, trajectories, cost)
            trackers.log(iteration, metrics)
            listener(Event("iteration", iteration, iterations, iteration, metrics))
            answers = [callback(Iteration(iteration, metrics, loop.responses)) for callback in callbacks]
            for more in (answer for answer in answers if isinstance(answer, Mapping)):
                run.store.add_metrics(iteration, more)
                trackers.log(iteration, more)
            loop.stopped = True in answers or (settings.stop_at is not None and loop.recent_return >= settings.stop_at)
            last = loop.stopped or iteration == iterations
            every = settings.evaluate_every
            if settings.evaluation and (last or (every and iteration % every == 0)):
                trackers.log(iteration, _evaluate(run, loop, iteration, settings, listener))
            if last or held.pending or iteration % (settings.checkpoint_every or 1) == 0:
                lead("save shards")
                save_checkpoint(run.checkpoints, iteration, loop, last)
            if held.pending:
                lead("end", str(run.folder), {})
            if loop.stopped:
                break
            held.release()
    clock.book("rest")
    trackers.close()
    lead("save model")
    loop.save_model(run.folder)
    lead("hash weights")
    summary = _summarize(run, settings, loop, iteration)
    run.write_summary(summary)
    lead("end", str(run.folder), summary)
    return TrainResult(run.folder, summary, loop.policy)


def _evaluate(run: Run, loop: Loop, iteration: int, settings: TrainSettings, listener: Listener) -> dict[str, float]:
    from palaestra.recipes.train.build import lead

    start = time.perf_counter()
    lead("evaluate", iteration)
    metrics, cost = loop.evaluate(iteration, run.store, listener)
    metrics["seconds_evaluate"] = time.perf_counter() - start
    run.store.add_metrics(iteration, metrics)
    phase = f"{iteration}/test"
    # Attempts at problems are stored with their own cost. A run that restarts from the beginning evaluates again.
    if cost is not None and not run.store.total(phase).calls:
        run.store.add_cost(replace(cost, phase=phase, seconds=metrics["seconds_evaluate"]))
    listener(Event("evaluation", iteration, loop.config.iterations, iteration, metrics))
    return metrics


def _summarize(run: Run, settings: TrainSettings, loop: Loop, iterations: int) -> Json:
    total = run.store.total()
    table = run.store.metrics()
    last = table.get(iterations, {})
    if not table:
        raise RunError(f"the run folder is damaged: {run.store.path} contains no iteration")
    return {
        "recipe": RECIPE,
        "env": _describe_env(settings),
        "algorithm": settings.algorithm,
        "policy": settings.policy,
        "model": settings.model if settings.policy == "lm" else "",
        "seed": settings.seed,
        "iterations": iterations,
        "stopped_early": loop.stopped,
        "actions": loop.actions,
        "episodes": loop.episodes,
        "failures": loop.failures,
        "return": last.get("reward"),
        "return_low": last.get("reward_low"),
        "return_high": last.get("reward_high"),
        "return_episodes": last.get("reward_count"),
        **({"truncated": last["truncated"]} if "truncated" in last else {}),
        **dict.fromkeys(SHARED_KEYS),
        **_summarize_evaluations(run, loop, iterations),
        "equal_returns": describe_equal_returns(table),
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        "weights_sha256": loop.weights_sha256(),
    }


def _summarize_evaluations(run: Run, loop: Loop, iterations: int) -> Json:
    if loop.config.evaluation and loop.stores_attempts:
        before, after = (run.store.attempts(f"{iteration}/{Split.TEST}") for iteration in (0, iterations))
        fell = [change.skill for change in measure_changes(before, after) if change.fell]
        return {**summarize_gain(before, after), "fell": fell}
    return loop.summarize(run.store, iterations)


def describe_equal_returns(table: Mapping[int, Mapping[str, float]]) -> str:
    """Return a sentence if all episodes of a run had the same return; otherwise an empty string.

    The policy may still have changed, for example by a KL penalty, an entropy bonus or the order of the rewards.

    Arguments:
        table: the metrics of the run by iteration.
    """
    spreads = [
        (row[f"{prefix}reward_min"], row[f"{prefix}reward_max"], row[f"{prefix}cut_episodes"], row[count])
        for row in table.values()
        for prefix, count in (("", "episodes"), ("test_", "test_count"))
        if f"{prefix}reward_min" in row and count in row
    ]
    values = {value for low, high, _, _ in spreads for value in (low, high)}
    if len(values) != 1 or sum(count for *_, count in spreads) < 2:
        return ""
    (value,) = values
    cut = " and reached a limit" if all(cut >= count for _, _, cut, count in spreads) else ""
    return f"every episode had the return {value:g}{cut}"
