"""`train_agent`: Gymformer's training call, for every environment and all of its networks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.checks import check_integer
from palaestra.core.errors import EnvError, ModelError, RewardError, SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.seeding import Seeds
from palaestra.learn.algorithms import AlgorithmConfig, make_algorithm
from palaestra.runs.files import write_folder, write_json

if TYPE_CHECKING:
    from torch import nn

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
    env_options: Mapping[str, Any] | None = None,
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
        env_options: keyword arguments of the environment.
        seed: the seed of all randomness.

    Raises:
        EnvError: the networks do not fit the environment's spaces.
    """
    from palaestra.learn.policies.networks import LMActorNetwork
    from palaestra.learn.ppo import PPOConfig

    check_integer("max_episodes", max_episodes, minimum=1, error=SettingsError)
    check_integer("max_timesteps", max_timesteps, minimum=1, error=SettingsError)
    check_integer("update_interval", update_interval, minimum=1, error=SettingsError)
    config = ppo_config if ppo_config is not None else PPOConfig()
    count = -(-min(update_interval, max_episodes) // config.group_size) * config.group_size
    if device:
        actor.to(device)
        if critic is not None:
            critic.to(device)
    trainer: Any = (_LanguageTrainer if isinstance(actor, LMActorNetwork) else _ControlTrainer)(
        env_name, dict(env_options or {}), actor, critic, config, count, max_timesteps, seed
    )
    means: list[float] = []
    total, done, saved, shown, iteration = 0.0, 0, 0, 0, 0
    while done < max_episodes:
        iteration += 1
        rollout, metrics = trainer.iterate(iteration, max(0.0, 1.0 - done / max_episodes))
        for value in rollout.episode_returns:
            done += 1
            total += value
            means.append(total / done)
        if not rollout.episode_returns:
            kind = RewardError if isinstance(actor, LMActorNetwork) else EnvError
            raise kind(f"every episode failed; first failure: {rollout.failures[0]}")
        if done - shown >= log_interval:
            shown = done
            listener(Event("iteration", done, max_episodes, iteration, metrics))
        if save_interval and done - saved >= save_interval:
            saved = done
            _save(Path(save_path) / f"episode-{done}", actor, critic, config, trainer.algorithm, done)
        if callback is not None and callback(done, metrics):
            break
    return means[:max_episodes]


def load_ppo_agent(
    path: str | Path, actor: nn.Module, critic: nn.Module | None = None, device: str = ""
) -> dict[str, Any]:
    """Load a save of `train_agent` into networks. Returns its config and counters.

    Raises:
        ModelError: there is no save, or it does not fit the networks.
    """
    from safetensors.torch import load_file

    from palaestra.learn.policies.networks import load_into

    folder = Path(path)
    if not (folder / "agent.json").exists():
        raise ModelError(f"there is no saved agent in {folder}: expected agent.json and actor.safetensors")
    try:
        about: dict[str, Any] = json.loads((folder / "agent.json").read_text(encoding="utf-8"))
        load_into(actor, load_file(folder / "actor.safetensors"), "actor")
        if critic is not None:
            load_into(critic, load_file(folder / "critic.safetensors"), "critic")
    except (OSError, ValueError) as error:
        raise ModelError(f"the saved agent in {folder} cannot be read: {error}") from error
    if device:
        actor.to(device)
        if critic is not None:
            critic.to(device)
    return about


def _save(folder: Path, actor: nn.Module, critic: nn.Module | None, config: Any, algorithm: Any, episodes: int) -> None:
    from safetensors.torch import save_file

    def tensors(module: nn.Module) -> dict[str, Any]:
        return {name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}

    def write(target: Path) -> None:
        save_file(tensors(actor), target / "actor.safetensors")
        if critic is not None:
            save_file(tensors(critic), target / "critic.safetensors")
        save_file({k: v.clone() for k, v in algorithm.optimizer.state().items()}, target / "optimizer.safetensors")
        about = {"config": type(config).__name__, "settings": dataclasses.asdict(config), "episodes": episodes}
        write_json(target / "agent.json", about)

    write_folder(folder, write)


class _LanguageTrainer:
    """Trains a language model on `count` responses per iteration."""

    def __init__(
        self,
        env_name: str,
        options: dict[str, Any],
        actor: Any,
        critic: Any,
        config: AlgorithmConfig,
        count: int,
        max_steps: int,
        seed: int,
    ) -> None:
        from palaestra.engines.chat import end_ids
        from palaestra.engines.families import context_length
        from palaestra.envs.factory import detect_kind, make_token_env
        from palaestra.learn.policies.language_model import LanguageModelPolicy, ReferencePolicy

        if detect_kind(env_name, options) != "token":
            raise EnvError(
                f"LMActorNetwork chooses tokens; the actions of {env_name} are not tokens: use MLPActorNetwork, or, for a "
                f"turn environment, palaestra.train(env={env_name!r}, model=...)"
            )
        context = context_length(actor.model.config)
        self.seeds, self.count = Seeds(seed), count
        self.env = make_token_env(
            env_name, min(count, 64), options, tokenizer=actor.tokenizer, max_tokens=min(max_steps, context or max_steps),
            context=context, failures="mark", end_ids=end_ids(actor.model, actor.tokenizer), group_size=config.group_size,
        )  # fmt: skip
        self.env.reset(seed=self.seeds.derive("environment").integer(), options={"episodes": 0})
        if critic is None and config.needs_critic:
            critic = "head"
        self.policy = LanguageModelPolicy(actor.model, critic, vocabulary=self.env.vocabulary, seeds=self.seeds)
        if config.kl_coef is None:
            config = dataclasses.replace(config, kl_coef=self.env.kl_coef or 0.0)
        self.reference = None
        if config.kl_coef:
            from palaestra.engines import models

            name = self.env.reference
            self.reference = ReferencePolicy(self.policy, models.load(name).weights if name else None)
        self.algorithm = make_algorithm(config, self.policy, self.seeds)
        self.reward_kl_coef = 0.0 if self.algorithm.kl_in_loss else config.kl_coef or 0.0

    def iterate(self, iteration: int, progress_remaining: float) -> Any:
        from palaestra.learn.collect import collect_responses
        from palaestra.learn.policies.language_model import apply_kl_penalty

        rollout = collect_responses(self.env, self.policy, self.count, self.seeds, first=(iteration - 1) * self.count)
        metrics = {"reward": _mean(rollout.episode_returns), "length": _mean(rollout.episode_lengths)}
        if self.reference is not None:
            metrics["reference_kl"] = apply_kl_penalty(
                rollout, self.reference.logprobs_BT(rollout), self.reward_kl_coef
            )
        return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


class _ControlTrainer:
    """Trains a control policy on `count` whole, parallel episodes per iteration."""

    def __init__(
        self,
        env_name: str,
        options: dict[str, Any],
        actor: Any,
        critic: Any,
        config: AlgorithmConfig,
        count: int,
        max_steps: int,
        seed: int,
    ) -> None:
        from palaestra.envs.factory import detect_kind, make_control_env
        from palaestra.learn.collect import ControlCollector
        from palaestra.learn.policies.control import ControlPolicy

        if detect_kind(env_name, options) == "token":
            raise EnvError(
                f"the actions of {env_name} are tokens, which {type(actor).__name__} cannot choose: use LMActorNetwork"
            )
        self.env = make_control_env(env_name, count, options, own_seeds=True)
        # Callers read actions from the actor itself, so its outputs are actions of the environment.
        self.policy = ControlPolicy(
            self.env.single_observation_space, self.env.single_action_space, actor, critic, scale_actions=False
        )
        _check_fit(env_name, self.policy, actor, critic)
        self.seeds, self.max_steps, self.group_size = Seeds(seed), max_steps, config.group_size
        self.algorithm = make_algorithm(config, self.policy, self.seeds)
        self.collector = ControlCollector(self.env, self.policy)

    def iterate(self, iteration: int, progress_remaining: float) -> Any:
        import torch

        from palaestra.engines.cpu.kernels import select_matmul_kernels

        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        seed = self.seeds.derive("episodes", iteration).integer()
        with select_matmul_kernels(small=True):
            rollout = self.collector.collect_episodes(self.group_size, seed, generator, self.max_steps)
            # Include the episodes that were truncated at `max_timesteps`.
            rollout.episode_returns = rollout.sequence_returns()
            metrics = {
                "reward": _mean(rollout.episode_returns),
                "length": float(rollout.mask_BT.sum(-1).float().mean()),
            }
            return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


def _check_fit(env_name: str, policy: Any, actor: Any, critic: Any) -> None:
    """Raise `EnvError` if the networks do not fit the spaces."""
    import torch

    for what, network, outputs in (("actor", actor, policy.head.outputs), ("critic", critic, 1)):
        if network is None:
            continue
        try:
            with torch.no_grad():
                shape = tuple(network(torch.zeros(2, policy.features, device=policy.device)).shape)
        except RuntimeError as error:
            raise EnvError(
                f"the {what} cannot read the {policy.features} numbers of an observation of {env_name}: {error}"
            ) from error
        if shape != (2, outputs):
            raise EnvError(
                f"the {what} returns the shape {shape} for 2 observations; {env_name} with {policy.head.space} needs "
                f"{(2, outputs)}"
            )


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else float("nan")
