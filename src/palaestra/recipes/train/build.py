"""Build the training loop of a run from its settings: environment, policy, algorithm, reference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import gymnasium
import torch

from palaestra.core.errors import EnvError
from palaestra.core.events import Listener, ignore, notice
from palaestra.core.plugins import load_plugins
from palaestra.core.seeding import Seeds
from palaestra.core.spaces import space_from_data
from palaestra.engines.chat_encoder import ChatEncoder
from palaestra.engines.factory import get_engine_scheme
from palaestra.learn.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.learn.distributed import rank, world_size
from palaestra.learn.policies.control import ControlPolicy, history_policy, mlp_policy
from palaestra.learn.policies.convolutional import cnn_policy
from palaestra.learn.policies.engine import EnginePolicy
from palaestra.learn.policies.language_model import LanguageModelCritic, LanguageModelPolicy, ReferencePolicy
from palaestra.learn.sharding import shard_policy
from palaestra.learn.shares import split_episodes
from palaestra.recipes.executor_settings import INLINE
from palaestra.recipes.train.loop import ControlLoop, Loop
from palaestra.recipes.train.rollout_workers import RolloutWorkers
from palaestra.recipes.train.settings import TrainSettings, make_config, unwrap
from palaestra.recipes.train.token_loop import TokenLoop, TurnLoop


def build_loop(settings: TrainSettings, listener: Listener) -> Loop:
    """Build the loop of a run. `settings` must be filled by `fill_presets`."""
    if settings.policy != "lm":
        return _build_control_loop(settings, make_config(unwrap(settings.algorithm), settings.hyperparameters))
    return _build_language_loop(settings, listener)


def build_actor(settings: TrainSettings) -> TokenLoop:
    """Build the loop of a rollout worker: a language model's loop that only collects rollouts."""
    load_plugins(settings.plugins)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    return _build_language_loop(replace(settings, executor=INLINE, max_staleness=0), ignore, learner=False)


def _build_language_loop(settings: TrainSettings, listener: Listener, learner: bool = True) -> TokenLoop:
    from palaestra.envs.factory import detect_kind

    config = make_config(unwrap(settings.algorithm), settings.hyperparameters)
    if detect_kind(settings.env, settings.options) == "turn":
        return _build_turn_loop(settings, config, listener, learner)
    return _build_token_loop(settings, config, listener, learner)


def _make_algorithm(settings: TrainSettings, config: AlgorithmConfig, policy: Any) -> Algorithm:
    kind: type[Algorithm] = ALGORITHMS.get(unwrap(settings.algorithm))
    return kind(policy, config, Seeds(settings.seed).derive("algorithm"))


def _build_token_loop(settings: TrainSettings, config: AlgorithmConfig, listener: Listener, learner: bool) -> TokenLoop:
    from palaestra.engines import models
    from palaestra.engines.chat import end_ids
    from palaestra.engines.families import context_length
    from palaestra.envs.factory import make_token_env

    num_envs, evaluation = unwrap(settings.num_envs), unwrap(settings.evaluation)
    loaded = models.load(settings.model, device=settings.device, listener=listener, trainable=True)
    context = context_length(loaded.weights.config)
    own = {"tokenizer": loaded.tokenizer, "max_tokens": settings.max_tokens, "context": context, "failures": "mark",
           "end_ids": end_ids(loaded.weights, loaded.tokenizer)}  # fmt: skip
    if settings.rollout == "engine":
        # The engine gets all prompts of an iteration that this process plays in one batch.
        _, num_envs = split_episodes(0, unwrap(settings.episodes), config.group_size)
    env = make_token_env(settings.env, num_envs, settings.options, group_size=config.group_size, **own)
    held_out = env.hold_out(evaluation) if evaluation and env.task is None else None
    policy = _build_policy(settings, config.needs_critic, loaded.weights, env.vocabulary, listener)
    if config.kl_coef is None:
        config = replace(config, kl_coef=env.kl_coef or 0.0)
    reference = None
    if learner and (config.kl_coef or env.kl_coef is not None):
        name = env.reference
        reference = ReferencePolicy(policy, models.load(name, device=settings.device).weights if name else None)
    sampler = _build_sampler(settings, policy, env.vocabulary, getattr(env, "stop", ()), listener)
    settings = replace(settings, hyperparameters=asdict(config))
    _shard(settings, policy, reference)
    algorithm = _make_algorithm(settings, config, policy) if learner else None
    workers = _open_workers(settings, listener)
    return TokenLoop(
        settings, env, policy, algorithm, reference, held_out, loaded.name, loaded.tokenizer, sampler, workers
    )


def _build_turn_loop(settings: TrainSettings, config: AlgorithmConfig, listener: Listener, learner: bool) -> TurnLoop:
    from palaestra.engines import models
    from palaestra.engines.chat import end_ids
    from palaestra.envs.factory import make_turn_env, turn_options
    from palaestra.envs.token.prompts import find_end_ids, vocabulary_size

    num_envs, evaluation = unwrap(settings.num_envs), unwrap(settings.evaluation)
    options = turn_options(settings.env, settings.options)
    loaded = models.load(settings.model, device=settings.device, listener=listener, trainable=True)
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
    policy = _build_policy(settings, config.needs_critic, loaded.weights, vocabulary_size(loaded.tokenizer), listener)
    own: dict[str, Any] = {"autoreset": False, "failures": "mark"}
    # No group size: the collector seeds every episode by the number of its group.
    env = make_turn_env(settings.env, min(num_envs, unwrap(settings.episodes)), options, **own)
    if env.tools:
        encoder = ChatEncoder(loaded.tokenizer, loaded.name, json.dumps(list(env.tools)))
    held_out = None
    if evaluation:
        held_out = make_turn_env(settings.env, min(num_envs, evaluation), options, held_out=True, **own)
    config = replace(config, kl_coef=config.kl_coef or 0.0)
    reference = ReferencePolicy(policy) if learner and config.kl_coef else None
    more = tuple(f"{name}={json.dumps(value)}" for name, value in options.items() if name not in settings.options)
    settings = replace(settings, env_options=(*settings.env_options, *more), hyperparameters=asdict(config))
    _shard(settings, policy, reference)
    algorithm = _make_algorithm(settings, config, policy) if learner else None
    sampler = _build_sampler(settings, policy, policy.vocabulary, (), listener)
    loop_class: type[TurnLoop] = TurnLoop
    if settings.agent:
        from palaestra.recipes.train.agent_loop import AgentLoop

        loop_class = AgentLoop
    return loop_class(
        settings, env, policy, algorithm, reference, held_out, encoder, end_ids=ends, sampler=sampler,
        workers=_open_workers(settings, listener),
    )  # fmt: skip


def _shard(settings: TrainSettings, policy: LanguageModelPolicy, reference: ReferencePolicy | None) -> None:
    """Shard the policy and its reference over the processes, if the settings require it."""
    if settings.parallel == "ddp" or world_size() == 1:
        return
    shard_policy(policy)
    if reference is not None and reference.policy is not policy:
        shard_policy(reference.policy)


def _build_policy(
    settings: TrainSettings, needs_critic: bool, weights: Any, vocabulary: int, listener: Listener
) -> LanguageModelPolicy:
    """Build the policy of a language model, with the adapter and the critic that the settings require."""
    from palaestra.engines import models
    from palaestra.learn.supervised import add_adapter, supervision_for

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
    )


def _build_sampler(
    settings: TrainSettings, policy: LanguageModelPolicy, vocabulary: int, stop: Sequence[str], listener: Listener
) -> EnginePolicy | None:
    """Open the engine that samples rollouts in this process; `None` if the policy or workers sample them."""
    if settings.rollout != "engine" or settings.uses_workers:
        return None
    name, options = settings.resolve_model(settings.model), settings.parse_engine_options()
    engine = get_engine_scheme(name).open_for_rollouts(name, device=settings.device, listener=listener, **options)
    return EnginePolicy(engine, settings.temperature, vocabulary, settings.max_tokens, policy.context, stop)


def _open_workers(settings: TrainSettings, listener: Listener) -> RolloutWorkers | None:
    """Open the workers that collect the rollouts; `None` if there are none, or rank 0 has them."""
    if not settings.uses_workers or rank() > 0:
        return None
    return RolloutWorkers(settings, partial(build_actor, settings), listener)


def _build_control_loop(settings: TrainSettings, config: AlgorithmConfig) -> ControlLoop:
    from palaestra.envs.factory import make_control_env

    env = make_control_env(settings.env, unwrap(settings.num_envs), settings.options, own_seeds=config.whole_episodes)
    policy = _build_control_policy(settings, env.single_observation_space, env.single_action_space)
    return ControlLoop(settings, env, policy, _make_algorithm(settings, config, policy))


def build_policy(settings: TrainSettings, description: Mapping[str, Any]) -> ControlPolicy | LanguageModelPolicy:
    """Build the policy of a run without its environment and algorithm, which may be code of somebody else.

    Arguments:
        description: as returned by `Loop.describe_policy`.
    """
    if settings.policy != "lm":
        names = ("observation_space", "action_space")
        return _build_control_policy(settings, *(space_from_data(description[name]) for name in names))
    from palaestra.engines import models

    weights = models.load(settings.model, device=settings.device, trainable=True).weights
    return _build_policy(settings, bool(description["critic"]), weights, int(description["vocabulary"]), ignore)


def _build_control_policy(
    settings: TrainSettings, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> ControlPolicy:
    spaces, seeds = (observation_space, action_space), Seeds(settings.seed)
    normalise, width, layers = bool(settings.normalize_observations), settings.width, settings.layers
    scale = bool(settings.scale_actions)
    try:
        if settings.policy == "cnn":
            policy = cnn_policy(*spaces, seeds=seeds, scale_actions=scale)
        elif settings.policy == "transformer":
            policy = history_policy(
                *spaces, window=settings.window, width=width, layers=layers, seeds=seeds, normalise=normalise,
                scale_actions=scale,
            )  # fmt: skip
        else:
            policy = mlp_policy(
                *spaces, hidden=[width] * layers, seeds=seeds, normalise=normalise,
                activation=unwrap(settings.activation), scale_actions=scale,
            )  # fmt: skip
    except EnvError as error:
        raise EnvError(f"policy '{settings.policy}' does not fit {settings.env}: {error}") from None
    return policy.to(settings.device or _choose_control_device(unwrap(settings.policy)))


def _choose_control_device(policy: str) -> str:
    """The default device: a GPU only for a convolutional policy, because the networks of the others are too small to gain."""
    return "cuda" if policy == "cnn" and torch.cuda.is_available() else "cpu"
