"""`palaestra train`: a policy learns in an environment, by reinforcement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import EnvError, RunError
from palaestra.core.events import Event, Listener, ignore, notice
from palaestra.core.interrupts import HeldInterrupts
from palaestra.core.plugins import load_plugins
from palaestra.learn.algorithms import ALGORITHMS
from palaestra.recipes.progress import TrainProgress, announce_start, show_progress
from palaestra.recipes.provenance import record_run
from palaestra.recipes.settings import (
    check_finite,
    check_minimum,
    check_range,
    load_run_settings,
    parse_options,
    require,
    resolve_settings,
    setting,
    to_plain,
)
from palaestra.recipes.train.presets import preset
from palaestra.recipes.train.signals import describe_no_signal
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import Run, RunClock, new_folder

if TYPE_CHECKING:
    from palaestra.envs.token import Response
    from palaestra.recipes.train.loop import Loop

RECIPE = "train"
AUTO = -1.0
"""Stands for "what suits the environment": see `palaestra.recipes.train.presets`."""
STOPPING = "stopping once this iteration is saved; another Ctrl-C stops at once, and goes on from the last checkpoint"


@dataclass(frozen=True)
class TrainSettings:
    """What a training run does. The same as the command line's options and as `settings.json`.

    Numbers of -1 and empty words mean what suits the environment; a run's `settings.json` has them filled in.
    """

    plugins: tuple[str, ...] = setting((), "Files (my_env.py) or modules of one's own that register environments.")
    env: str = setting("CoTEnv-v0", "The environment: any Gymnasium id; `palaestra list environments` names ours.")
    env_options: tuple[str, ...] = setting((), "Options of the environment, each as name=value (value in JSON).")
    algorithm: str = setting(
        "",
        "How to learn: `palaestra list algorithms`; by default grpo for language models, ppo for classic environments.",
    )
    variant: Literal["grpo", "dr_grpo", "dapo"] = setting("grpo", "Which GRPO.")
    policy: Literal["", "lm", "mlp", "transformer"] = setting(
        "", "Who acts: a language model, a perceptron, or a transformer over the history of observations."
    )
    model: str = setting("nano", "The language model: a registered name, a folder or a hub id.")
    method: Literal["auto", "full", "lora"] = setting(
        "auto", "Train all weights or a LoRA adapter; auto: all up to 20 M parameters."
    )
    rank: int = setting(16, "Rank of a LoRA adapter.")
    critic: Literal["head", "separate"] = setting(
        "head", "A value head on the model's own trunk, or a model of its own."
    )
    iterations: int = setting(-1, "Rounds of collecting and learning.")
    slots: int = setting(-1, "Environments or sequences side by side.")
    episodes: int = setting(-1, "Episodes in an iteration, for language models.")
    steps: int = setting(-1, "Steps of every slot in an iteration, for classic environments.")
    group_size: int = setting(8, "Episodes that start alike, for group methods.")
    learning_rate: float = setting(AUTO, "Learning rate of the actor.")
    critic_rate: float = setting(AUTO, "Learning rate of the critic.")
    epochs: int = setting(-1, "Passes over the data of an iteration.")
    minibatch: int = setting(-1, "Decisions, or responses, in a minibatch of PPO.")
    minibatches: int = setting(-1, "Optimiser steps in a pass of a group method.")
    gamma: float = setting(AUTO, "Discount.")
    gae_lambda: float = setting(AUTO, "How far advantages look ahead before they trust the critic.")
    clip: float = setting(0.2, "How far a ratio may leave 1.")
    clip_high: float = setting(AUTO, "How far upwards, if it is another.")
    value_clip: float = setting(AUTO, "How far a value may move in an update; 0 does not clip.")
    value_weight: float = setting(AUTO, "Weight of the value loss, where actor and critic share a trunk.")
    entropy: float = setting(0.0, "Weight of the entropy bonus.")
    kl: float = setting(AUTO, "Cost of a nat of divergence from the reference; by default the environment's.")
    target_kl: float = setting(0.0, "Stop an update once the policy has moved this far; 0 never stops.")
    max_grad_norm: float = setting(AUTO, "Largest norm of a gradient.")
    anneal: bool = setting(False, "Let the learning rate fall to 0 over the run.")
    weighting: Literal["", "token", "sequence", "constant"] = setting("", "Weights of tokens in GRPO; by its variant.")
    mask_truncated: bool = setting(False, "Leave responses that were cut at the limit out of the loss.")
    temperature: float = setting(1.0, "Temperature of the responses while learning.")
    max_tokens: int = setting(72, "Most tokens of a response; at the turn scale, of one message.")
    normalise_observations: bool | None = setting(
        None, "Scale observations by their running mean and deviation; by default where it suits."
    )
    activation: Literal["", "relu", "tanh"] = setting("", "Activation of the perceptron; by default what suits.")
    reward_scale: float = setting(AUTO, "What rewards are multiplied by for learning (never in a report).")
    width: int = setting(64, "Width of the layers of a perceptron or of the transformer over the history.")
    layers: int = setting(2, "How many of them.")
    window: int = setting(8, "Observations that the transformer over the history sees.")
    evaluate_every: int = setting(0, "Iterations between evaluations; 0 evaluates before and after.")
    evaluation: int = setting(-1, "Held-out problems a skill, prompts, or episodes of an evaluation; 0: none.")
    stop_at: float | None = setting(None, "Stop once the mean return of the last 100 episodes has reached this.")
    checkpoint_every: int = setting(10, "Iterations between checkpoints.")
    keep_trajectories: int = setting(4, "Episodes of each iteration that are kept in the store.")
    tensorboard: bool = setting(False, "Write the metrics for TensorBoard as well (extra: tensorboard).")
    wandb: str = setting("", "Name of a Weights & Biases project to log to as well (extra: wandb).")
    device: str = setting("", "Where to compute, for example cuda; empty means a GPU where there is one.")
    threads: int = setting(0, "CPU threads; 0 leaves torch's own choice.")
    seed: int = setting(0, "Seed of everything random.")

    def __post_init__(self) -> None:
        check_finite(self)
        check_minimum(self, 1, "rank", "group_size", "max_tokens", "width", "layers", "window", "checkpoint_every")
        check_minimum(self, 0, "entropy", "target_kl", "evaluate_every", "keep_trajectories", "threads", "seed")
        require(self.temperature > 0, f"setting 'temperature': expected above 0; got {self.temperature}")
        for name in _FILLED:
            value = getattr(self, name)
            require(
                value == -1 or value >= 0, f"setting '{name}': expected at least 0, or -1 for what suits; got {value}"
            )
        check_range(self, 0, 1, *(name for name in ("gamma", "gae_lambda") if getattr(self, name) != AUTO))
        check_range(self, 0, 1, "clip")
        for name in ("iterations", "slots", "episodes", "steps", "epochs", "minibatch", "minibatches"):
            require(getattr(self, name) != 0, f"setting '{name}': expected at least 1; got 0")

    @property
    def options(self) -> dict[str, Any]:
        """The environment's own options."""
        return parse_options(self.env_options, "env_options")


_FILLED = (
    "iterations", "slots", "episodes", "steps", "learning_rate", "critic_rate", "epochs", "minibatch", "minibatches",
    "gamma", "gae_lambda", "clip_high", "value_clip", "value_weight", "kl", "max_grad_norm", "reward_scale", "evaluation",
)  # fmt: skip
_LAST_RESORT: Mapping[str, Any] = {
    "episodes": 256, "steps": 64, "minibatch": 64, "minibatches": 1, "critic_rate": 1e-3, "value_clip": 0.0, "value_weight": 0.5,
    "reward_scale": 1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The outcome of a run: its folder, what is in its `summary.json`, and the trained policy."""

    folder: Path
    summary: dict[str, Any]
    policy: Any


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a callback is told.

    Arguments:
        number: from 1.
        metrics: what the iteration brought, as the store keeps it.
        responses: all of a language model's, with their prompts and rewards; empty for classic environments.
    """

    number: int
    metrics: Mapping[str, float]
    responses: Sequence[Response] = ()


Callback = Callable[[Iteration], bool | Mapping[str, float] | None]
"""Is told of each iteration; `True` stops the run there, a mapping adds metrics."""


def train(
    settings: TrainSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **values: Any,
) -> TrainResult:
    """Train a policy in an environment.

    Arguments:
        settings: all of them at once, or give single ones as keywords.
        out: the run folder; a new one below `runs/` if empty.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` turns the display off, too.
        callbacks: receive each iteration's metrics; they may add metrics, and may stop the run.

    Example:
        >>> from palaestra import train                                       # doctest: +SKIP
        >>> train(env="CoTEnv-v0", algorithm="grpo", model="nano").summary    # doctest: +SKIP
        >>> train(env="CartPole-v1", policy="mlp").summary["return"]          # doctest: +SKIP
    """
    settings = resolve_settings(TrainSettings, settings, values)
    folder = Path(out) if out else new_folder(RECIPE)
    settings = filled(settings)
    check(settings)
    Run.check_new(folder)
    started = time.perf_counter()
    with show_progress(listener, progress, TrainProgress) as listener:
        listener(_announce(settings, folder))
        loop = _build(settings, listener)
        settings = loop.settings
        with closing(loop), Run.create(folder, RECIPE, to_plain(settings)) as run:
            return _play(run, settings, loop, started, listener, callbacks)


def resume(run: Run, *, listener: Listener = ignore, callbacks: Sequence[Callback] = ()) -> TrainResult:
    """Go on with a run from its last checkpoint, with the same result as if it had not been stopped."""
    settings = load_run_settings(TrainSettings, run)
    check(settings)
    started = time.perf_counter()
    listener(_announce(settings, run.folder))
    with closing(_build(settings, listener)) as loop:
        return _play(run, settings, loop, started, listener, callbacks)


def filled(settings: TrainSettings) -> TrainSettings:
    """The settings with everything that was left open set to what suits the environment."""
    from palaestra.envs.factory import detect_kind

    load_plugins(settings.plugins)
    kind = detect_kind(settings.env, settings.options)
    language = kind != "control"
    policy = settings.policy or ("lm" if language else "mlp")
    if (policy == "lm") != language:
        acts = {"token": "tokens", "turn": "messages", "control": "classic actions"}[kind]
        raise EnvError(f"policy '{policy}' does not fit {settings.env}, whose actions are {acts}; use "
                       f"{'lm' if language else 'mlp or transformer'}")  # fmt: skip
    if settings.algorithm:
        ALGORITHMS.check(settings.algorithm)
    suits = preset(kind, settings.env, settings.algorithm)
    changes: dict[str, Any] = {"policy": policy, "algorithm": suits["algorithm"]}
    for name in _FILLED:
        if getattr(settings, name) == -1:
            changes[name] = suits.get(name, _LAST_RESORT.get(name, -1))
    if settings.normalise_observations is None:
        changes["normalise_observations"] = bool(suits.get("normalise_observations", False))
    if not settings.activation:
        changes["activation"] = suits.get("activation", "tanh")
    if settings.evaluation == -1:
        changes["evaluation"] = {"token": 25, "turn": 64, "control": 20}[kind]
    if settings.clip_high == -1:
        changes["clip_high"] = 0.28 if (changes["algorithm"], settings.variant) == ("grpo", "dapo") else settings.clip
    names = {f.name: f.type for f in fields(settings)}
    for name, value in changes.items():
        if "int" in str(names[name]) and isinstance(value, float):
            changes[name] = int(value)
    settings = replace(settings, **changes)
    if ALGORITHMS.get(settings.algorithm).groups:
        name = "episodes" if language else "slots"
        found = getattr(settings, name)
        require(
            found % settings.group_size == 0,
            f"setting '{name}': expected whole groups of {settings.group_size}; got {found}",
        )
    return settings


def check(settings: TrainSettings) -> None:
    """Raise for every name that does not exist, before anything is loaded or written."""
    from palaestra.engines import models
    from palaestra.envs.factory import check_options, get_spec
    from palaestra.recipes.train.trackers import check_trackers

    load_plugins(settings.plugins)
    get_spec(settings.env)
    check_options(settings.env, settings.options)
    models.check_device(settings.device)
    if settings.policy in ("", "lm"):
        models.check(settings.model)
    check_trackers(settings.tensorboard, settings.wandb)


def _announce(settings: TrainSettings, folder: Path) -> Event:
    model = settings.model if settings.policy == "lm" else settings.policy
    return announce_start(RECIPE, folder, model=model, algorithm=settings.algorithm, environment=settings.env)


def _build(settings: TrainSettings, listener: Listener) -> Loop:
    from palaestra.recipes.train.build import build_loop

    if settings.threads:
        import torch

        torch.set_num_threads(settings.threads)
    listener(Event("load"))
    return build_loop(settings, listener)


def _play(
    run: Run,
    settings: TrainSettings,
    loop: Loop,
    started: float,
    listener: Listener,
    callbacks: Sequence[Callback],
) -> TrainResult:
    from palaestra.recipes.train.checkpoints import load_newest, save, tidy
    from palaestra.recipes.train.trackers import make_trackers

    record_run(run, settings.model if settings.policy == "lm" else "")
    summary = run.summary
    done = load_newest(run.checkpoints, loop)
    run.store.forget_after(done)
    if summary is not None:
        return TrainResult(run.folder, summary, loop.policy)
    trackers = make_trackers(run.folder, settings.tensorboard, settings.wandb, to_plain(settings))
    clock = RunClock(run, started)
    clock.book(f"{done}/load")
    if settings.evaluation and done == 0:
        _evaluate(run, loop, 0, settings, listener)
    iteration = done
    with HeldInterrupts(lambda: listener(notice(STOPPING))) as held:
        # A run that was stopped early and killed before its summary has nothing left to do but that.
        for iteration in range(done + 1, (done if loop.stopped else settings.iterations) + 1):
            listener(Event("collect", iteration - 1, settings.iterations, iteration))
            start = time.perf_counter()
            metrics, trajectories = loop.iterate(iteration, 1.0 - (iteration - 1) / settings.iterations, listener)
            seconds = time.perf_counter() - start
            cost = LedgerEntry(f"{iteration}/train", settings.model if settings.policy == "lm" else settings.policy,
                               calls=int(metrics.get("episodes", 0)), usage=loop.usage, seconds=seconds)  # fmt: skip
            run.store.add_iteration(iteration, metrics, trajectories, cost)
            for tracker in trackers:
                tracker.log(iteration, metrics)
            listener(Event("iteration", iteration, settings.iterations, iteration, metrics))
            told = Iteration(iteration, metrics, loop.responses)
            answers = [callback(told) for callback in callbacks]
            for more in (answer for answer in answers if isinstance(answer, Mapping)):
                run.store.add_metrics(iteration, more)
                for tracker in trackers:
                    tracker.log(iteration, more)
            loop.stopped = True in answers or (settings.stop_at is not None and loop.recent_return >= settings.stop_at)
            last = loop.stopped or iteration == settings.iterations
            every = settings.evaluate_every
            if settings.evaluation and (last or (every and iteration % every == 0)):
                held_out = _evaluate(run, loop, iteration, settings, listener)
                for tracker in trackers:
                    tracker.log(iteration, held_out)
            if last or held.pending or iteration % settings.checkpoint_every == 0:
                save(run.checkpoints, iteration, loop, last)
                tidy(run.checkpoints, iteration)
            if loop.stopped:
                break
            held.release()
    clock.book("rest")
    for tracker in trackers:
        tracker.close()
    loop.save_model(run.folder)
    summary = _summary(run, settings, loop, iteration)
    run.write_summary(summary)
    return TrainResult(run.folder, summary, loop.policy)


def _evaluate(run: Run, loop: Loop, iteration: int, settings: TrainSettings, listener: Listener) -> dict[str, float]:
    start = time.perf_counter()
    metrics, cost = loop.evaluate(iteration, run.store, listener)
    metrics["seconds_evaluate"] = time.perf_counter() - start
    run.store.add_metrics(iteration, metrics)
    phase = f"{iteration}/test"
    # Attempts at problems were stored with their own; a run that starts over from nothing measures the same again.
    if cost is not None and not run.store.total(phase).calls:
        run.store.add_cost(replace(cost, phase=phase, seconds=metrics["seconds_evaluate"]))
    listener(Event("evaluation", iteration, settings.iterations, iteration, metrics))
    return metrics


def _summary(run: Run, settings: TrainSettings, loop: Loop, iterations: int) -> dict[str, Any]:
    total = run.store.total()
    table = run.store.metrics()
    last = table.get(iterations, {})
    if not table:
        raise RunError(f"the run folder is damaged: {run.store.path} holds no iteration")
    return {
        "recipe": RECIPE,
        "env": settings.env,
        "algorithm": settings.algorithm,
        "policy": settings.policy,
        "model": settings.model if settings.policy == "lm" else "",
        "seed": settings.seed,
        "iterations": iterations,
        "stopped_early": loop.stopped,
        "decisions": loop.decisions,
        "episodes": loop.episodes,
        "failures": loop.failures,
        "return": last.get("reward"),
        "return_low": last.get("reward_low"),
        "return_high": last.get("reward_high"),
        "return_episodes": last.get("reward_count"),
        **({"truncated": last["truncated"]} if "truncated" in last else {}),
        **loop.outcome(run.store, iterations),
        "nothing_learned": describe_no_signal(table),
        "seconds": round(total.seconds, 1),
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cost": total.money,
        "weights_sha256": loop.weights_sha256(),
    }
