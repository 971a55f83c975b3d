"""`train_agent`: Gymformer's training call, for every environment and all of its networks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from palaestra.chat.rendering import end_ids
from palaestra.core.errors import EnvError, ModelError, RewardError, SettingsError
from palaestra.core.records import Event, Json, Listener, ignore
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.envs.base import Options
from palaestra.envs.factory import detect_kind, make_control_env, make_token_env
from palaestra.integrations.gymformer.networks import LMActorNetwork, load_into
from palaestra.kernels.cpu import select_matmul_kernels
from palaestra.models import registry as models
from palaestra.models.families import context_length
from palaestra.rl.algorithms import Algorithm, AlgorithmConfig, make_algorithm
from palaestra.rl.collection import ControlCollector, collect_responses
from palaestra.rl.policies.control import ControlPolicy
from palaestra.rl.policies.language_model import (
    LanguageModelCritic,
    LanguageModelPolicy,
    ReferencePolicy,
    apply_kl_penalty,
)
from palaestra.rl.ppo import PPOConfig
from palaestra.rl.rollouts import Rollout
from palaestra.runs.files import write_folder, write_json

AgentCallback = Callable[[int, Mapping[str, float]], bool | None]


def train_agent(
    env_name: str,
    actor: nn.Module,
    critic: nn.Module | None = None,
    ppo_config: AlgorithmConfig | None = None,
    max_episodes: int = 1000,
    max_timesteps: int = 1000,
    update_interval: int = 100,
    save_interval: int = 100,
    save_path: str | Path = "./models",
    callback: AgentCallback | None = None,
    log_interval: int = 10,
    device: str = "",
    *,
    env_kwargs: Options | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> list[float]:
    """Train an actor in an environment. Returns the running mean of the returns, by episode.

    Arguments:
        env_name: a Gymnasium id: a classic environment, `RLHFEnv-v0`, `CoTEnv-v0`, or one of your own.
        actor, critic: `MLPActorNetwork` and `MLPCriticNetwork` (or modules with the same inputs and outputs) for
            classic environments; `LMActorNetwork` and `LMCriticNetwork` for language. Without a critic, a language
            model gets a value head.
        ppo_config: a `PPOConfig`, or the config of another algorithm (`GRPOConfig`, `RLOOConfig`, ...). `PPOConfig`
            accepts Gymformer's names: `lr_actor` for `learning_rate`, `lr_critic` for `critic_learning_rate`,
            `update_epochs` or `K_epochs` for `n_epochs`, `eps_clip` for `clip_range`, `minibatch_size` for
            `batch_size`; `pad_obs` and `int_obs` have no effect.
        max_episodes: the number of episodes.
        max_timesteps: the maximum steps of an episode. A longer episode is truncated, and bootstrapped if the environment
            has `bootstrap_truncated`, as classic environments do by default.
        update_interval: episodes between two updates. A group method rounds it up to whole groups.
        save_interval: episodes between two saves; 0 disables saving.
        save_path: the folder for saves, one `episode-N` folder each; `load_ppo_agent` loads them.
        callback: called with the number of episodes and the metrics of each update; return `True` to stop.
        log_interval: episodes between two events for the listener.
        env_kwargs: keyword arguments of the environment.
        seed: the seed of all randomness.

    Raises:
        EnvError: the networks do not fit the environment's spaces.
    """
    limits = {"max_episodes": max_episodes, "max_timesteps": max_timesteps, "update_interval": update_interval}
    for name, limit in limits.items():
        check_integer(name, limit, minimum=1, error=SettingsError)
    config = ppo_config if ppo_config is not None else PPOConfig()
    count = -(-min(update_interval, max_episodes) // config.group_size) * config.group_size
    _move(device, actor, critic)
    kind = _LanguageTrainer if isinstance(actor, LMActorNetwork) else _ControlTrainer
    trainer = kind(env_name, dict(env_kwargs or {}), actor, critic, config, count, max_timesteps, Seeds(seed))
    means: list[float] = []
    total, done, saved, shown, iteration = 0.0, 0, 0, 0, 0
    while done < max_episodes:
        iteration += 1
        rollout, metrics = trainer.iterate(iteration, max(0.0, 1.0 - done / max_episodes))
        for value in rollout.stats.returns:
            done += 1
            total += value
            means.append(total / done)
        if not rollout.stats.returns:
            raise trainer.failure(f"every episode failed; first failure: {rollout.stats.failures[0]}")
        if done - shown >= log_interval:
            shown = done
            listener(Event("iteration", done, max_episodes, iteration, metrics))
        if save_interval and done - saved >= save_interval:
            saved = done
            _save(Path(save_path) / f"episode-{done}", actor, critic, config, trainer.algorithm, done)
        if callback is not None and callback(done, metrics):
            break
    return means[:max_episodes]


def load_ppo_agent(path: str | Path, actor: nn.Module, critic: nn.Module | None = None, device: str = "") -> Json:
    """Load a save of `train_agent` into networks. Returns its config and counters.

    Raises:
        ModelError: there is no save, or it does not fit the networks.
    """
    folder = Path(path)
    if not (folder / "agent.json").exists():
        raise ModelError(f"there is no saved agent in {folder}: expected agent.json and actor.safetensors")
    try:
        about: Json = json.loads((folder / "agent.json").read_text(encoding="utf-8"))
        load_into(actor, load_file(folder / "actor.safetensors"), "actor")
        if critic is not None:
            load_into(critic, load_file(folder / "critic.safetensors"), "critic")
    except (OSError, ValueError) as error:
        raise ModelError(f"the saved agent in {folder} cannot be read: {error}") from error
    _move(device, actor, critic)
    return about


def _move(device: str, *networks: nn.Module | None) -> None:
    for network in networks if device else ():
        if network is not None:
            network.to(device)


def _save(
    folder: Path,
    actor: nn.Module,
    critic: nn.Module | None,
    config: AlgorithmConfig,
    algorithm: Algorithm,
    episodes: int,
) -> None:
    def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}

    def write(target: Path) -> None:
        save_file(tensors(actor), target / "actor.safetensors")
        if critic is not None:
            save_file(tensors(critic), target / "critic.safetensors")
        save_file({k: v.clone() for k, v in algorithm.optimizer.state().items()}, target / "optimizer.safetensors")
        about = {"config": type(config).__name__, "settings": dataclasses.asdict(config), "episodes": episodes}
        write_json(target / "agent.json", about)

    write_folder(folder, write)


@dataclasses.dataclass
class _Trainer:
    """Trains an actor in an environment. An iteration has `count` episodes of at most `max_steps` steps."""

    env_name: str
    options: Options
    actor: nn.Module
    critic: nn.Module | None
    config: AlgorithmConfig
    count: int
    max_steps: int
    seeds: Seeds

    def __post_init__(self) -> None:
        """Make the environment, the policy and the algorithm."""
        raise NotImplementedError


class _LanguageTrainer(_Trainer):
    """Trains a language model on responses."""

    failure = RewardError

    def __post_init__(self) -> None:
        env_name, actor, config = self.env_name, self.actor, self.config
        assert isinstance(actor, LMActorNetwork)
        if detect_kind(env_name, self.options) != "token":
            raise EnvError(
                f"LMActorNetwork chooses tokens; the actions of {env_name} are not tokens: use MLPActorNetwork, or, for a "
                f"turn environment, palaestra.train(env={env_name!r}, model=...)"
            )
        context = context_length(actor.model.config)
        self.env = make_token_env(
            env_name,
            min(self.count, 64),
            self.options,
            tokenizer=actor.tokenizer,
            max_tokens=min(self.max_steps, context or self.max_steps),
            context=context,
            failures="mark",
            end_ids=end_ids(actor.model, actor.tokenizer),
            group_size=config.group_size,
        )
        self.env.reset(seed=self.seeds.derive("environment").integer(), options={"episodes": 0})
        critic: LanguageModelCritic | Literal["head"] | None = cast(LanguageModelCritic | None, self.critic)
        if critic is None and config.needs_critic:
            critic = "head"
        self.policy = LanguageModelPolicy(actor.model, critic, vocabulary=self.env.vocabulary, seeds=self.seeds)
        if config.kl_coef is None:
            config = dataclasses.replace(config, kl_coef=self.env.kl_coef or 0.0)
        self.reference = None
        if config.kl_coef:
            name = self.env.reference
            self.reference = ReferencePolicy(self.policy, models.load(name).weights if name else None)
        self.algorithm = make_algorithm(config, self.policy, self.seeds)
        self.reward_kl_coef = 0.0 if self.algorithm.kl_in_loss else config.kl_coef or 0.0

    def iterate(self, iteration: int, progress_remaining: float) -> tuple[Rollout, dict[str, float]]:
        rollout = collect_responses(self.env, self.policy, self.count, self.seeds, first=(iteration - 1) * self.count)
        metrics = {"reward": _mean(rollout.stats.returns), "length": _mean(rollout.stats.lengths)}
        if self.reference is not None:
            reference_BT = self.reference.logprobs_BT(rollout)
            metrics["reference_kl"] = apply_kl_penalty(rollout, reference_BT, self.reward_kl_coef)
        return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


class _ControlTrainer(_Trainer):
    """Trains a control policy on whole, parallel episodes."""

    failure = EnvError

    def __post_init__(self) -> None:
        env_name = self.env_name
        if detect_kind(env_name, self.options) == "token":
            name = type(self.actor).__name__
            raise EnvError(f"the actions of {env_name} are tokens, not those of {name}: use LMActorNetwork")
        env = make_control_env(env_name, self.count, self.options, own_seeds=True)
        spaces = env.single_observation_space, env.single_action_space
        # Callers read actions from the actor itself, so its outputs are actions of the environment.
        policy = ControlPolicy(*spaces, self.actor, self.critic, scale_actions=False)
        _check_fit(env_name, policy, self.actor, "actor", policy.head.outputs)
        _check_fit(env_name, policy, self.critic, "critic", 1)
        self.algorithm = make_algorithm(self.config, policy, self.seeds)
        self.collector = ControlCollector(env, policy)

    def iterate(self, iteration: int, progress_remaining: float) -> tuple[Rollout, dict[str, float]]:
        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        seed = self.seeds.derive("episodes", iteration).integer()
        with select_matmul_kernels(small=True):
            rollout = self.collector.collect_episodes(self.config.group_size, seed, generator, self.max_steps)
            # Include the episodes that were truncated at `max_timesteps`.
            rollout.stats.returns = rollout.returns_B[rollout.valid_B].tolist()
            length = float(rollout.mask_BT.sum(-1).float().mean())
            metrics = {"reward": _mean(rollout.stats.returns), "length": length}
            return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


def _check_fit(env_name: str, policy: ControlPolicy, network: nn.Module | None, what: str, outputs: int) -> None:
    """Raise `EnvError` if a network does not fit the spaces."""
    if network is None:
        return
    features, space = policy.features, policy.head.space
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, features, device=policy.device)).shape)
    except RuntimeError as error:
        raise EnvError(f"the {what} cannot read the {features} numbers of {env_name}: {error}") from error
    if shape != (2, outputs):
        raise EnvError(f"the {what} returns {shape} for 2 observations; {env_name} with {space} needs {(2, outputs)}")


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else float("nan")
