"""From settings to the loop that they describe: environment, policy, algorithm, reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from palaestra.core.errors import EnvError
from palaestra.core.events import Listener
from palaestra.core.seeding import Seeds
from palaestra.learn.grpo import GRPO, GRPOConfig, variant
from palaestra.learn.policies.control import history_policy, mlp_policy
from palaestra.learn.policies.language_model import LanguageModelCritic, LanguageModelPolicy
from palaestra.learn.ppo import PPO, PPOConfig
from palaestra.learn.reference import Reference
from palaestra.learn.reinforce import REINFORCE, REINFORCEConfig
from palaestra.learn.rloo import RLOO, RLOOConfig
from palaestra.recipes.control_loop import ControlLoop
from palaestra.recipes.loop import Loop
from palaestra.recipes.token_loop import TokenLoop

if TYPE_CHECKING:
    from palaestra.recipes.train import TrainSettings


def build_loop(settings: TrainSettings, listener: Listener) -> Loop:
    """The loop that `settings` describe."""
    return _token_loop(settings, listener) if settings.policy == "lm" else _control_loop(settings)


def make_algorithm(settings: TrainSettings, policy: Any, kl: float = 0.0) -> Any:
    """The algorithm that `settings` name, for a policy."""
    s, seeds = settings, Seeds(settings.seed).derive("algorithm")
    high = None if s.clip_high == -1 else s.clip_high
    if s.algorithm == "ppo":
        return PPO(policy, PPOConfig(
            lr_actor=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma, update_epochs=s.epochs, eps_clip=s.clip,
            minibatch_size=s.minibatch, eps_clip_high=high, gae_lambda=s.gae_lambda, value_clip=s.value_clip or None,
            entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, target_kl=s.target_kl, anneal=s.anneal,
        ), seeds)  # fmt: skip
    if s.algorithm == "grpo":
        config = variant(s.variant, GRPOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip_low=s.clip, clip_high=s.clip if high is None else high, mask_truncated=s.mask_truncated,
            kl_coefficient=kl, entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        ))  # fmt: skip
        if s.weighting:
            config = replace(config, weighting=s.weighting)
        return GRPO(policy, config, seeds)
    if s.algorithm == "rloo":
        return RLOO(policy, RLOOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip=s.clip, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        ), seeds)  # fmt: skip
    baseline: Literal["batch", "critic"] = "critic" if policy.has_critic and not policy.by_lane else "batch"
    return REINFORCE(policy, REINFORCEConfig(
        learning_rate=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma, baseline=baseline,
        entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
    ), seeds)  # fmt: skip


def _token_loop(settings: TrainSettings, listener: Listener) -> TokenLoop:
    from palaestra.engines import shelf
    from palaestra.engines.chat import end_ids
    from palaestra.envs.making import make_token_env
    from palaestra.learn.supervised import add_adapter, supervision_for

    loaded = shelf.load(settings.model, device=settings.device, listener=listener)
    context = int(getattr(loaded.weights.config.get_text_config(), "max_position_embeddings", 0) or 0)
    group = settings.group_size if settings.algorithm in ("grpo", "rloo") else 1
    own = {"tokenizer": loaded.tokenizer, "max_tokens": settings.max_tokens, "context": context, "failures": "mark",
           "end_ids": end_ids(loaded.weights, loaded.tokenizer)}  # fmt: skip
    env = make_token_env(settings.env, settings.slots, settings.options, group_size=group, **own)
    held_out = None
    if settings.evaluation and not hasattr(env, "task"):
        if hasattr(env, "hold_out"):
            held_out = env.hold_out(settings.evaluation)
        else:
            held_out = make_token_env(settings.env, min(settings.slots, settings.evaluation), settings.options, **own)
    vocabulary = int(env.single_action_space.n)
    how = supervision_for(loaded.weights, settings.method, rank=settings.rank)
    weights, seeds = loaded.weights, Seeds(settings.seed)
    critic: Any = None
    if settings.algorithm == "ppo":
        critic = "head"
        if settings.critic == "separate":
            body = shelf.load(settings.model, device=settings.device, listener=listener).weights.base_model
            critic = LanguageModelCritic(body, int(body.config.get_text_config().hidden_size), seeds)
    if how.method == "lora":
        weights = add_adapter(weights, how, seeds)
    policy = LanguageModelPolicy(weights, critic, settings.temperature, vocabulary, seeds=seeds)
    kl = settings.kl if settings.kl != -1 else float(getattr(env, "kl_coefficient", 0.0))
    reference = None
    if kl or hasattr(env, "kl_coefficient"):
        name = str(getattr(env, "reference", ""))
        reference = Reference(policy, shelf.load(name, device=settings.device).weights if name else None)
    settings = replace(settings, kl=kl)
    algorithm = make_algorithm(settings, policy, kl)
    return TokenLoop(settings, env, policy, algorithm, reference, kl, held_out, loaded.name, loaded.tokenizer)


def _control_loop(settings: TrainSettings) -> ControlLoop:
    from palaestra.envs.making import make_control_env

    grouped = settings.algorithm in ("grpo", "rloo")
    env = make_control_env(settings.env, settings.slots, settings.options, own_seeds=grouped)
    spaces = (env.single_observation_space, env.single_action_space)
    seeds = Seeds(settings.seed)
    try:
        if settings.policy == "transformer":
            policy = history_policy(
                *spaces, window=settings.window, seeds=seeds, normalise=bool(settings.normalise_observations)
            )
        else:
            policy = mlp_policy(*spaces, seeds=seeds, normalise=bool(settings.normalise_observations))
    except EnvError as error:
        raise EnvError(f"policy '{settings.policy}' does not fit {settings.env}: {error}") from None
    return ControlLoop(settings, env, policy, make_algorithm(settings, policy))
