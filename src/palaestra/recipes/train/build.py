"""Build the training loop of a run from its settings, in one process or in several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch

from palaestra.chat.encoder import ChatEncoder
from palaestra.core.access import find_own_address
from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.process import HeldInterrupts
from palaestra.core.records import Json, Listener, Values, ignore, notice
from palaestra.core.registry import load_plugins
from palaestra.core.seeding import Seeds
from palaestra.core.spaces import space_from_data
from palaestra.engines.base import RolloutEngine
from palaestra.engines.factory import get_engine_class
from palaestra.executors.base import open_executor
from palaestra.executors.meeting import LOCAL_HOST
from palaestra.recipes.settings import INLINE, set_threads
from palaestra.recipes.train.mixture import name_environments, split_environments
from palaestra.recipes.train.settings import TrainSettings
from palaestra.rl.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.rl.collection import split_episodes
from palaestra.rl.control_loop import ControlLoop
from palaestra.rl.distributed.ranks import broadcast, rank, shard_policy, world_size
from palaestra.rl.distributed.weights import WeightPublisher
from palaestra.rl.loop import Loop, LoopConfig, load_newest_checkpoint
from palaestra.rl.policies.control import ControlPolicy, history_policy, mlp_policy
from palaestra.rl.policies.convolutional import cnn_policy
from palaestra.rl.policies.engine import EnginePolicy
from palaestra.rl.policies.language_model import LanguageModelCritic, LanguageModelPolicy, ReferencePolicy
from palaestra.rl.policies.served import ServedRolloutEngine
from palaestra.rl.policies.sets import set_policy
from palaestra.rl.rollout_workers import RolloutWorkers
from palaestra.rl.token_loop import TokenLoop, TurnLoop


def check_processes(settings: TrainSettings, processes: int) -> None:
    """Raise if a run cannot be trained by several processes.

    Raises:
        SettingsError: the policy is not a language model, the algorithm is for one process, there are too few episodes, or
            the run samples ahead without workers.
    """
    if processes == 1:
        return
    if settings.policy != "lm":
        raise SettingsError(
            f"{processes} processes train language models only; start '{settings.env}' without torchrun"
        )
    algorithm, episodes = str(settings.algorithm), settings.episodes or 0
    if not ALGORITHMS.get(algorithm).distributed:
        raise SettingsError(
            f"the algorithm '{algorithm}' trains in one process; got {processes} (see Algorithm.distributed)"
        )
    if settings.max_staleness and settings.executor == INLINE:
        raise SettingsError(
            f"setting 'executor': {processes} processes sample ahead (max_staleness {settings.max_staleness}) on workers "
            "only; expected processes:N or ray"
        )
    group_size = settings.make_config().group_size
    if episodes < processes * group_size:
        raise SettingsError(
            f"setting 'episodes': expected at least {processes * group_size}, one group of {group_size} for each of "
            f"{processes} processes; got {episodes}"
        )
    if 0 < (settings.evaluation or 0) < processes:
        raise SettingsError(f"setting 'evaluation': expected 0 or at least {processes}, one for each process")


def lead(step: str, *arguments: Any) -> None:
    """Tell the other processes that rank 0 begins a step in which they take part."""
    if world_size() > 1:
        broadcast((step, arguments))


def follow(loop: Loop) -> tuple[str, Json]:
    """Take part in the steps that rank 0 announces, until the end. Returns the run's folder and summary.

    The first Ctrl-C or SIGTERM is left to rank 0, which saves its work and announces the end.
    """
    nothing: tuple[str, tuple[Any, ...]] = ("", ())
    with HeldInterrupts():
        while True:
            step, arguments = broadcast(nothing)
            if step == "end":
                folder, summary = arguments
                return folder, summary
            if step == "load":
                load_newest_checkpoint(Path(arguments[0]), loop)
            elif step == "iterate":
                iteration, remaining = arguments
                loop.iterate(iteration, remaining, ignore)
            elif step == "evaluate":
                loop.evaluate(arguments[0], None, ignore)
            elif step == "hash weights":
                loop.weights_sha256()
            elif step == "save shards":
                loop.save_shards()
            elif step == "save model":
                loop.save_model(Path())


def build_loop(settings: TrainSettings, listener: Listener) -> Loop:
    """Build the loop of a run. `settings` must be filled by `fill_presets`."""
    if settings.policy != "lm":
        return _build_control_loop(settings)
    loop = _build_language_loop(settings, listener)
    backend = settings.weight_transfer or ("gloo" if world_size() > 1 else "executor")
    if settings.uses_workers and settings.executor != INLINE and backend != "executor":
        is_local = settings.executor.startswith("processes")
        loop.publisher = WeightPublisher(LOCAL_HOST if is_local else find_own_address(), backend)
    return loop


def build_actor(settings: TrainSettings) -> TokenLoop:
    """Build the loop of a rollout worker: a language model's loop that only collects rollouts."""
    load_plugins(settings.plugins)
    set_threads(settings.threads)
    return _build_language_loop(replace(settings, executor=INLINE, max_staleness=0), ignore, learner=False)


def _build_language_loop(settings: TrainSettings, listener: Listener, learner: bool = True) -> TokenLoop:
    from palaestra.envs.factory import detect_kind

    config, model = settings.make_config(), _Model(settings, listener)
    if settings.environments:
        return _build_mixture_loop(settings, config, model, listener)
    if detect_kind(settings.env, settings.options) == "turn":
        return _build_turn_loop(settings, config, model, listener, learner)
    return _build_token_loop(settings, config, model, listener, learner)


class _Model:
    """The language model of a run: as loaded, its policy, and the engine that samples its rollouts in this process."""

    def __init__(self, settings: TrainSettings, listener: Listener) -> None:
        from palaestra.models import registry as models

        self.settings, self.listener = settings, listener
        self.loaded = models.load(settings.model, device=settings.device, listener=listener, trainable=True)
        self.policy: LanguageModelPolicy | None = None
        self._engine: RolloutEngine | None = None

    def get_policy(self, needs_critic: bool, vocabulary: int) -> LanguageModelPolicy:
        """Build the policy, the same for all environments of a run."""
        if self.policy is None:
            self.policy = _build_policy(self.settings, needs_critic, self.loaded.weights, vocabulary, self.listener)
        if self.policy.vocabulary != vocabulary:
            raise SettingsError(
                f"setting 'env': the environments have {self.policy.vocabulary} and {vocabulary} tokens"
            )
        return self.policy

    def open_sampler(self, settings: TrainSettings, vocabulary: int, stop: Sequence[str]) -> EnginePolicy | None:
        """Make the policy that samples with an engine; `None` if the policy itself or workers sample."""
        if settings.rollout != "engine" or settings.uses_workers:
            return None
        if self._engine is None and settings.rollout_servers:
            self._engine = ServedRolloutEngine(settings.rollout_servers, listener=self.listener)
        if self._engine is None:
            name, options = settings.resolve_model(settings.model), settings.engine_kwargs
            open_engine = get_engine_class(name).open_for_rollouts
            self._engine = open_engine(name, device=settings.device, listener=self.listener, **options)
        assert self.policy is not None
        return EnginePolicy(
            self._engine, settings.temperature, vocabulary, settings.max_tokens or 0, self.policy.context, stop
        )


def _build_mixture_loop(
    settings: TrainSettings, config: AlgorithmConfig, model: _Model, listener: Listener
) -> TokenLoop:
    from palaestra.envs.factory import detect_kind
    from palaestra.rl.mixture_loop import MixtureLoop

    parts, weights = split_environments(settings), [entry["weight"] for entry in settings.environments]
    episodes = settings.episodes or 0
    loops = {}
    for name, part, weight in zip(name_environments(settings.environments), parts, weights, strict=True):
        groups = max(1, round(episodes / config.group_size * weight / sum(weights)))
        part = replace(part, episodes=groups * config.group_size)
        build = _build_turn_loop if detect_kind(part.env, part.options) == "turn" else _build_token_loop
        loops[name] = build(part, config, model, listener, learner=False)
    if config.kl_coef is None:
        coefficients = [value for loop in loops.values() if (value := getattr(loop.env, "kl_coef", None)) is not None]
        config = replace(config, kl_coef=max(coefficients, default=0.0))
    assert model.policy is not None
    reference = ReferencePolicy(model.policy) if config.kl_coef else None
    settings = replace(settings, hyperparameters=asdict(config))
    algorithm = _shard_and_make_algorithm(settings, config, model.policy, reference)
    return MixtureLoop(_make_loop_config(settings, config), loops, weights, model.policy, algorithm, reference)


def _make_algorithm(settings: TrainSettings, config: AlgorithmConfig, policy: Any) -> Algorithm:
    kind: type[Algorithm] = ALGORITHMS.get(str(settings.algorithm))
    return kind(policy, config, Seeds(settings.seed).derive("algorithm"))


def _shard_and_make_algorithm(
    settings: TrainSettings, config: AlgorithmConfig, policy: LanguageModelPolicy, reference: ReferencePolicy | None
) -> Algorithm:
    """Make the algorithm of a language model. Its weights are sharded over the processes before, if the settings require it."""
    if settings.parallel != "ddp" and world_size() > 1:
        shard_policy(policy)
        if reference is not None and reference.policy is not policy:
            shard_policy(reference.policy)
    return _make_algorithm(settings, config, policy)


def _build_token_loop(
    settings: TrainSettings, config: AlgorithmConfig, model: _Model, listener: Listener, learner: bool
) -> TokenLoop:
    from palaestra.chat.rendering import end_ids
    from palaestra.envs.factory import make_token_env
    from palaestra.models import registry as models
    from palaestra.models.families import context_length

    loop_config = _make_loop_config(settings, config)
    num_envs, evaluation = loop_config.num_envs, loop_config.evaluation
    loaded = model.loaded
    context = context_length(loaded.weights.config)
    own = {"tokenizer": loaded.tokenizer, "max_tokens": settings.max_tokens, "context": context, "failures": "mark",
           "end_ids": end_ids(loaded.weights, loaded.tokenizer)}  # fmt: skip
    if settings.rollout == "engine":
        # The engine gets all prompts of an iteration that this process plays in one batch.
        _, num_envs = split_episodes(0, loop_config.episodes, config.group_size)
    env = make_token_env(settings.env, num_envs, settings.options, group_size=config.group_size, **own)
    held_out = env.hold_out(evaluation) if evaluation and env.task is None else None
    policy = model.get_policy(config.needs_critic, env.vocabulary)
    if config.kl_coef is None:
        config = replace(config, kl_coef=env.kl_coef or 0.0)
    reference = None
    if learner and (config.kl_coef or env.kl_coef is not None):
        name = env.reference
        reference = ReferencePolicy(policy, models.load(name, device=settings.device).weights if name else None)
    sampler = model.open_sampler(settings, env.vocabulary, getattr(env, "stop", ()))
    settings = replace(settings, hyperparameters=asdict(config))
    algorithm = _shard_and_make_algorithm(settings, config, policy, reference) if learner else None
    workers = _open_workers(settings, loop_config, listener)
    return TokenLoop(
        loop_config, env, policy, algorithm, reference, held_out, loaded.name, loaded.tokenizer, sampler, workers
    )


def _build_turn_loop(
    settings: TrainSettings, config: AlgorithmConfig, model: _Model, listener: Listener, learner: bool
) -> TurnLoop:
    from palaestra.chat.rendering import end_ids
    from palaestra.envs.factory import make_turn_env, turn_options
    from palaestra.envs.token.prompts import find_end_ids, vocabulary_size

    options = turn_options(settings.env, settings.options)
    loop_config = replace(_make_loop_config(settings, config), env_kwargs=options)
    num_envs, evaluation = loop_config.num_envs, loop_config.evaluation
    loaded = model.loaded
    # Errors of the model or its chat template are raised before any workspace is created.
    encoder = ChatEncoder(loaded.tokenizer, loaded.name)
    if not encoder.preserves_prefix:
        listener(
            notice(
                f"the chat template of {loaded.name} changes earlier turns; the sampled tokens stay in the context, and "
                "only the text between turns comes from the template"
            )
        )
    ends = find_end_ids(loaded.tokenizer, end_ids(loaded.weights, loaded.tokenizer))
    policy = model.get_policy(config.needs_critic, vocabulary_size(loaded.tokenizer))
    own: Json = {"autoreset": False, "failures": "mark"}
    # No group size: the collector seeds every episode by the number of its group.
    env = make_turn_env(settings.env, min(num_envs, loop_config.episodes), options, **own)
    if env.tools:
        encoder = ChatEncoder(loaded.tokenizer, loaded.name, json.dumps(list(env.tools)))
    held_out = None
    if evaluation:
        held_out = make_turn_env(settings.env, min(num_envs, evaluation), options, held_out=True, **own)
    config = replace(config, kl_coef=config.kl_coef or 0.0)
    reference = ReferencePolicy(policy) if learner and config.kl_coef else None
    settings = replace(_add_options(settings, options), hyperparameters=asdict(config))
    algorithm = _shard_and_make_algorithm(settings, config, policy, reference) if learner else None
    sampler = model.open_sampler(settings, policy.vocabulary, ())
    loop_class: type[TurnLoop] = TurnLoop
    if settings.agent:
        from palaestra.rl.agent_loop import AgentLoop

        loop_class = AgentLoop
    return loop_class(
        loop_config,
        env,
        policy,
        algorithm,
        reference,
        held_out,
        encoder,
        end_ids=ends,
        sampler=sampler,
        workers=_open_workers(settings, loop_config, listener),
    )


def complete_settings(settings: TrainSettings, loop: Loop) -> TrainSettings:
    """Return the settings of a run with the values that depend on its environment: its options and the KL coefficient."""
    settings = _add_options(settings, loop.config.env_kwargs)
    return replace(settings, hyperparameters=asdict(loop.algorithm.config))


def _add_options(settings: TrainSettings, options: Values) -> TrainSettings:
    more = {name: value for name, value in options.items() if name not in settings.options}
    return replace(settings, env_kwargs={**settings.env_kwargs, **more})


def _make_loop_config(settings: TrainSettings, config: AlgorithmConfig) -> LoopConfig:
    own = {"env_kwargs", "group_size"}
    values = {field.name: getattr(settings, field.name) for field in fields(LoopConfig) if field.name not in own}
    return LoopConfig(env_kwargs=settings.options, group_size=config.group_size, **values)


def _build_policy(
    settings: TrainSettings, needs_critic: bool, weights: Any, vocabulary: int, listener: Listener
) -> LanguageModelPolicy:
    """Build the policy of a language model, with the adapter and the critic that the settings require."""
    from palaestra.models import registry as models
    from palaestra.students.supervised import add_adapter, supervision_for

    supervision, seeds = supervision_for(weights, settings.method, rank=settings.rank), Seeds(settings.seed)
    critic: Any = None
    if needs_critic:
        critic = "head"
        if settings.critic == "separate":
            body = models.load(settings.model, device=settings.device, listener=listener).weights.base_model
            width = int(body.config.get_text_config().hidden_size)
            critic = LanguageModelCritic(body, width, seeds, settings.gradient_checkpointing)
    if supervision.method == "lora":
        weights = add_adapter(weights, supervision, seeds)
    return LanguageModelPolicy(
        weights,
        critic,
        settings.temperature,
        vocabulary,
        settings.microbatch_size,
        settings.gradient_checkpointing,
        seeds,
        settings.top_p,
        settings.top_k,
    )


def _open_workers(settings: TrainSettings, config: LoopConfig, listener: Listener) -> RolloutWorkers | None:
    """Open the workers that collect the rollouts; `None` if there are none, or rank 0 has them."""
    if not settings.uses_workers or rank() > 0:
        return None
    executor = open_executor(settings.executor)
    return RolloutWorkers(config, executor, settings.resources, partial(build_actor, settings), listener)


def _build_control_loop(settings: TrainSettings) -> ControlLoop:
    from palaestra.envs.factory import make_control_env

    config = settings.make_config()
    loop_config = _make_loop_config(settings, config)
    env = make_control_env(settings.env, loop_config.num_envs, settings.options, own_seeds=config.whole_episodes)
    policy = _build_control_policy(settings, env.single_observation_space, env.single_action_space)
    return ControlLoop(loop_config, env, policy, _make_algorithm(settings, config, policy))


def build_policy(settings: TrainSettings, description: Values) -> ControlPolicy | LanguageModelPolicy:
    """Build the policy of a run without its environment and algorithm, which may be code of somebody else.

    Arguments:
        description: as returned by `Loop.describe_policy`.
    """
    if settings.policy != "lm":
        names = ("observation_space", "action_space")
        return _build_control_policy(settings, *(space_from_data(description[name]) for name in names))
    from palaestra.models import registry as models

    weights = models.load(settings.model, device=settings.device, trainable=True).weights
    return _build_policy(settings, bool(description["critic"]), weights, int(description["vocabulary"]), ignore)


def _build_control_policy(
    settings: TrainSettings, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> ControlPolicy:
    spaces, width, layers = (observation_space, action_space), settings.width, settings.layers
    shared: Json = {"seeds": Seeds(settings.seed), "scale_actions": bool(settings.scale_actions)}
    normalise = bool(settings.normalize_observations)
    try:
        if settings.policy == "cnn":
            policy = cnn_policy(*spaces, **shared)
        elif settings.policy in ("set", "plan"):
            policy = set_policy(*spaces, width=width, layers=layers, plan=settings.policy == "plan", **shared)
        elif settings.policy == "transformer":
            policy = history_policy(
                *spaces, window=settings.window, width=width, layers=layers, normalise=normalise, **shared
            )
        else:
            activation = settings.activation or "tanh"
            policy = mlp_policy(*spaces, hidden=[width] * layers, normalise=normalise, activation=activation, **shared)
    except EnvError as error:
        raise EnvError(f"policy '{settings.policy}' does not fit {settings.env}: {error}") from None
    if settings.normalize_rewards:
        policy.register_buffer("return_moments", torch.tensor([1e-4, 0.0, 1.0], dtype=torch.float64))
    # A GPU only for a convolutional policy, because the networks of the others are too small to gain.
    return policy.to(settings.device or ("cuda" if settings.policy == "cnn" and torch.cuda.is_available() else "cpu"))
