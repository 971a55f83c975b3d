"""From settings to the loop that they describe: environment, policy, algorithm, reference."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EnvError
from palaestra.core.events import Listener
from palaestra.core.seeding import Seeds
from palaestra.learn.algorithms import ALGORITHMS, Algorithm
from palaestra.learn.chat_encoder import ChatEncoder
from palaestra.learn.policies.control import history_policy, mlp_policy
from palaestra.learn.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.learn.reference import Reference
from palaestra.recipes.train.control_loop import ControlLoop
from palaestra.recipes.train.loop import Loop
from palaestra.recipes.train.token_loop import TokenLoop
from palaestra.recipes.train.turn_loop import TurnLoop

if TYPE_CHECKING:
    from palaestra.recipes.train.recipe import TrainSettings


def build_loop(settings: TrainSettings, listener: Listener) -> Loop:
    """The loop that `settings` describe."""
    from palaestra.envs.factory import detect_kind

    if settings.policy != "lm":
        return _control_loop(settings)
    turns = detect_kind(settings.env, settings.options) == "turn"
    return _turn_loop(settings, listener) if turns else _token_loop(settings, listener)


def _algorithm(settings: TrainSettings, policy: Any, kl: float = 0.0) -> Algorithm:
    """The algorithm that `settings` name, for a policy."""
    kind: type[Algorithm] = ALGORITHMS.get(settings.algorithm)
    return kind(policy, kind.configured(settings, policy, kl), Seeds(settings.seed).derive("algorithm"))


def _token_loop(settings: TrainSettings, listener: Listener) -> TokenLoop:
    from palaestra.engines import models
    from palaestra.engines.chat import end_ids
    from palaestra.engines.families import context_length
    from palaestra.envs.factory import make_token_env

    loaded = models.load(settings.model, device=settings.device, listener=listener, trainable=True)
    context = context_length(loaded.weights.config)
    kind: type[Algorithm] = ALGORITHMS.get(settings.algorithm)
    group = settings.group_size if kind.groups else 1
    own = {"tokenizer": loaded.tokenizer, "max_tokens": settings.max_tokens, "context": context, "failures": "mark",
           "end_ids": end_ids(loaded.weights, loaded.tokenizer)}  # fmt: skip
    env = make_token_env(settings.env, settings.slots, settings.options, group_size=group, **own)
    held_out = env.hold_out(settings.evaluation) if settings.evaluation and env.task is None else None
    policy = _language_model(settings, loaded.weights, env.vocabulary, listener)
    kl = settings.kl if settings.kl != -1 else env.kl_coefficient or 0.0
    reference = None
    if kl or env.kl_coefficient is not None:
        name = env.reference
        reference = Reference(policy, models.load(name, device=settings.device).weights if name else None)
    settings = replace(settings, kl=kl)
    algorithm = _algorithm(settings, policy, kl)
    return TokenLoop(settings, env, policy, algorithm, reference, kl, held_out, loaded.name, loaded.tokenizer)


def _turn_loop(settings: TrainSettings, listener: Listener) -> TurnLoop:
    from palaestra.engines import models
    from palaestra.engines.chat import end_ids
    from palaestra.envs.factory import make_turn_env, turn_options
    from palaestra.envs.token.prompts import find_end_ids, vocabulary_size

    options = turn_options(settings.env, settings.options)
    loaded = models.load(settings.model, device=settings.device, listener=listener, trainable=True)
    # What a model or its template cannot do is said before any workspace is made.
    encoder = ChatEncoder(loaded.tokenizer, loaded.name)
    ends = find_end_ids(loaded.tokenizer, end_ids(loaded.weights, loaded.tokenizer))
    policy = _language_model(settings, loaded.weights, vocabulary_size(loaded.tokenizer), listener)
    group = settings.group_size if ALGORITHMS.get(settings.algorithm).groups else 1
    own: dict[str, Any] = {"autoreset": False, "failures": "mark"}
    # No group size: whoever collects seeds every episode by its group's number, so slots need not be whole groups.
    env = make_turn_env(settings.env, min(settings.slots, settings.episodes), options, **own)
    held_out = None
    if settings.evaluation:
        slots = min(settings.slots, settings.evaluation)
        held_out = make_turn_env(settings.env, slots, options, held_out=True, **own)
    kl = max(0.0, settings.kl)
    reference = Reference(policy) if kl else None
    more = tuple(f"{name}={json.dumps(value)}" for name, value in options.items() if name not in settings.options)
    settings = replace(settings, kl=kl, env_options=(*settings.env_options, *more))
    algorithm = _algorithm(settings, policy, kl)
    return TurnLoop(settings, env, policy, algorithm, reference, kl, held_out, encoder, end_ids=ends, group_size=group)


def _language_model(settings: TrainSettings, weights: Any, vocabulary: int, listener: Listener) -> LanguageModelPolicy:
    """The policy around a model's weights, with the adapter and the critic that `settings` ask for."""
    from palaestra.engines import models
    from palaestra.learn.supervised import add_adapter, supervision_for

    how, seeds = supervision_for(weights, settings.method, rank=settings.rank), Seeds(settings.seed)
    critic: Any = None
    if ALGORITHMS.get(settings.algorithm).critic:
        critic = "head"
        if settings.critic == "separate":
            body = models.load(settings.model, device=settings.device, listener=listener).weights.base_model
            critic = LanguageModelCritic(body, int(body.config.get_text_config().hidden_size), seeds)
    if how.method == "lora":
        weights = add_adapter(weights, how, seeds)
    return LanguageModelPolicy(weights, critic, settings.temperature, vocabulary, seeds=seeds)


def _control_loop(settings: TrainSettings) -> ControlLoop:
    from palaestra.envs.factory import make_control_env

    grouped = ALGORITHMS.get(settings.algorithm).groups
    env = make_control_env(settings.env, settings.slots, settings.options, own_seeds=grouped)
    spaces = (env.single_observation_space, env.single_action_space)
    seeds = Seeds(settings.seed)
    normalise, width, layers = bool(settings.normalise_observations), settings.width, settings.layers
    try:
        if settings.policy == "transformer":
            policy = history_policy(
                *spaces, window=settings.window, width=width, layers=layers, seeds=seeds, normalise=normalise
            )
        else:
            policy = mlp_policy(
                *spaces, hidden=[width] * layers, seeds=seeds, normalise=normalise, activation=settings.activation
            )
    except EnvError as error:
        raise EnvError(f"policy '{settings.policy}' does not fit {settings.env}: {error}") from None
    return ControlLoop(settings, env, policy, _algorithm(settings, policy))
