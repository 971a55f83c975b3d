"""`train_agent`: Gymformer's call, for any environment and any of its networks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EnvError, ModelError, RewardError, SettingsError
from palaestra.core.events import Event, Listener, ignore
from palaestra.core.seeding import Seeds
from palaestra.learn.algorithms import make_algorithm
from palaestra.runs.files import write_folder

if TYPE_CHECKING:
    from torch import nn

AgentCallback = Callable[[int, Mapping[str, float]], bool | None]


def train_agent(
    env_name: str,
    actor: nn.Module,
    critic: nn.Module | None = None,
    ppo_config: Any = None,
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
    """Train an actor in an environment; returns the running mean of the episodes' returns.

    Arguments:
        env_name: any Gymnasium id: classic, `RLHFEnv-v0`, `CoTEnv-v0`, or one of your own.
        actor, critic: `MLPActorNetwork` and `MLPCriticNetwork` (or any modules of those shapes) for classic
            environments; `LMActorNetwork` and `LMCriticNetwork` for language. A critic of `None` puts a value
            head on the language model itself.
        ppo_config: how to learn: `PPOConfig`, or the `Config` of any other algorithm (`GRPOConfig`, `RLOOConfig`, ...).
        max_episodes: how many episodes in all.
        max_timesteps: the most steps of an episode; one that goes on is cut there, and bootstrapped.
        update_interval: episodes between two updates. A group method rounds it up to whole groups.
        save_interval: episodes between two saves; 0 never saves.
        save_path: folder of the saves, `episode-N` each; `load_ppo_agent` reads them.
        callback: is told the episodes so far and the metrics of each update; `True` stops.
        log_interval: episodes between two events to the listener.
        env_options: keyword arguments of the environment.
        seed: of everything random.

    Raises:
        EnvError: the networks do not fit the environment's spaces; names both sides.
    """
    from palaestra.learn.policies.networks import LMActorNetwork
    from palaestra.learn.ppo import PPOConfig

    for name, value in (
        ("max_episodes", max_episodes),
        ("max_timesteps", max_timesteps),
        ("update_interval", update_interval),
    ):
        if value < 1:
            raise SettingsError(f"train_agent needs {name} of at least 1; got {value}")
    config = ppo_config if ppo_config is not None else PPOConfig()
    group = int(getattr(config, "group_size", 1))
    count = -(-min(update_interval, max_episodes) // group) * group
    if device:
        actor.to(device)
        if critic is not None:
            critic.to(device)
    play: Any = (_LanguagePlay if isinstance(actor, LMActorNetwork) else _ControlPlay)(
        env_name, dict(env_options or {}), actor, critic, config, count, max_timesteps, seed
    )
    means: list[float] = []
    total, done, saved, shown, iteration = 0.0, 0, 0, 0, 0
    while done < max_episodes:
        iteration += 1
        rollout, metrics = play.iterate(iteration, max(0.0, 1.0 - done / max_episodes))
        for value in rollout.episode_returns:
            done += 1
            total += value
            means.append(total / done)
        if not rollout.episode_returns:
            kind = RewardError if isinstance(actor, LMActorNetwork) else EnvError
            raise kind(f"every episode failed; the first: {rollout.failures[0]}")
        if done - shown >= log_interval:
            shown = done
            listener(Event("iteration", done, max_episodes, iteration, metrics))
        if save_interval and done - saved >= save_interval:
            saved = done
            _save(Path(save_path) / f"episode-{done}", actor, critic, config, play.algorithm, done)
        if callback is not None and callback(done, metrics):
            break
    return means[:max_episodes]


def load_ppo_agent(
    path: str | Path, actor: nn.Module, critic: nn.Module | None = None, device: str = ""
) -> dict[str, Any]:
    """Bring networks to the weights of a save of `train_agent`; returns its settings and counters.

    Raises:
        ModelError: there is no save, or it is of networks of another shape.
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
        (target / "agent.json").write_text(json.dumps(about, indent=2), encoding="utf-8")

    write_folder(folder, write)


class _LanguagePlay:
    """Responses of a language model, `count` episodes an iteration."""

    def __init__(
        self,
        env_name: str,
        options: dict[str, Any],
        actor: Any,
        critic: Any,
        config: Any,
        count: int,
        longest: int,
        seed: int,
    ) -> None:
        from palaestra.engines.chat import end_ids
        from palaestra.engines.families import context_length
        from palaestra.envs.factory import is_token_env, make_token_env
        from palaestra.learn.policies.language_model import LanguageModelPolicy
        from palaestra.learn.reference import Reference

        if not is_token_env(env_name, options):
            raise EnvError(
                f"LMActorNetwork chooses tokens; the actions of {env_name} are none: use MLPActorNetwork, or, for an "
                f"environment of turns, palaestra.train(env={env_name!r}, model=...)"
            )
        context = context_length(actor.model.config)
        self.seeds, self.count = Seeds(seed), count
        self.env = make_token_env(
            env_name, min(count, 64), options, tokenizer=actor.tokenizer, max_tokens=min(longest, context or longest),
            context=context, failures="mark", end_ids=end_ids(actor.model, actor.tokenizer), group_size=int(getattr(config, "group_size", 1)),
        )  # fmt: skip
        self.env.reset(seed=self.seeds.derive("environment").integer(), options={"episodes": 0})
        needs = hasattr(config, "lr_critic") and getattr(config, "baseline", "critic") == "critic"
        judge: Any = critic if critic is not None else ("head" if needs else None)
        self.policy = LanguageModelPolicy(actor.model, judge, vocabulary=self.env.vocabulary, seeds=self.seeds)
        self.kl = self.env.kl_coefficient or 0.0
        self.reference = None
        if self.kl:
            from palaestra.engines import models

            name = self.env.reference
            self.reference = Reference(self.policy, models.load(name).weights if name else None)
            if hasattr(config, "kl_coefficient") and not config.kl_coefficient:
                config = dataclasses.replace(config, kl_coefficient=self.kl)
        self.algorithm = make_algorithm(config, self.policy, self.seeds)
        self.in_reward = 0.0 if self.algorithm.kl_in_loss else self.kl

    def iterate(self, iteration: int, progress_remaining: float) -> Any:
        from palaestra.learn.collect import collect_responses
        from palaestra.learn.reference import penalise

        rollout = collect_responses(self.env, self.policy, self.count, self.seeds, first=(iteration - 1) * self.count)
        metrics = {"reward": _mean(rollout.episode_returns), "length": _mean(rollout.episode_lengths)}
        if self.reference is not None:
            metrics["reference_kl"] = penalise(rollout, self.reference.logprobs_BT(rollout), self.in_reward)
        return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


class _ControlPlay:
    """Whole episodes of a classic environment, `count` side by side."""

    def __init__(
        self,
        env_name: str,
        options: dict[str, Any],
        actor: Any,
        critic: Any,
        config: Any,
        count: int,
        longest: int,
        seed: int,
    ) -> None:
        from palaestra.envs.factory import is_token_env, make_control_env
        from palaestra.learn.collect import ControlCollector
        from palaestra.learn.policies.control import ControlPolicy

        if is_token_env(env_name, options):
            raise EnvError(
                f"the actions of {env_name} are tokens; {type(actor).__name__} chooses none: use LMActorNetwork"
            )
        self.env = make_control_env(env_name, count, options, own_seeds=True)
        self.policy = ControlPolicy(self.env.single_observation_space, self.env.single_action_space, actor, critic)
        _check_fit(env_name, self.policy, actor, critic)
        self.seeds, self.longest, self.group = Seeds(seed), longest, int(getattr(config, "group_size", 1))
        self.algorithm = make_algorithm(config, self.policy, self.seeds)
        self.collector = ControlCollector(self.env, self.policy)

    def iterate(self, iteration: int, progress_remaining: float) -> Any:
        import torch

        from palaestra.engines.cpu.kernels import select_matmul_kernels

        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        seed = self.seeds.derive("episodes", iteration).integer()
        with select_matmul_kernels(small=True):
            rollout = self.collector.collect_episodes(self.group, seed, generator, self.longest)
            # An episode that was cut at `max_timesteps` is as long as it got.
            rollout.episode_returns = rollout.sequence_returns()
            metrics = {
                "reward": _mean(rollout.episode_returns),
                "length": float(rollout.mask_BT.sum(-1).float().mean()),
            }
            return rollout, metrics | self.algorithm.update(rollout, iteration, progress_remaining)


def _check_fit(env_name: str, policy: Any, actor: Any, critic: Any) -> None:
    """Raise in one line if the networks do not fit the spaces."""
    import torch

    example = torch.zeros(2, policy.features)
    for what, network, outputs in (("actor", actor, policy.head.outputs), ("critic", critic, 1)):
        if network is None:
            continue
        inside = next((p.shape[1] for p in network.parameters() if p.ndim == 2), None)
        if inside is not None and inside != policy.features:
            raise EnvError(f"the {what} reads {inside} numbers; an observation of {env_name} has {policy.features}")
        with torch.no_grad():
            found = tuple(network(example).shape)
        if found != (2, outputs):
            raise EnvError(
                f"the {what} gives {found[-1] if len(found) > 1 else found} numbers; {env_name} with "
                f"{policy.head.space} needs {outputs}"
            )


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else float("nan")
