"""Settings of a training run. The hyperparameters are those of the algorithm's own config dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

from palaestra.core.errors import EnvError, SettingsError, suggest
from palaestra.core.plugins import load_plugins
from palaestra.core.settings import check_ranges, setting
from palaestra.engines.base import LOCAL_SCHEME
from palaestra.learn.algorithms import ALGORITHMS, AlgorithmConfig
from palaestra.recipes.engine_settings import EngineOptions, EngineSettings
from palaestra.recipes.executor_settings import INLINE, ExecutorOptions, ExecutorSettings
from palaestra.recipes.run_settings import RunOptions, RunSettings
from palaestra.recipes.settings import build, parse_options, require

T = TypeVar("T")

RENAMED = {
    "epochs": "n_epochs",
    "clip": "clip_range",
    "clip_high": "clip_range_high",
    "value_clip": "clip_range_vf",
    "value_weight": "vf_coef",
    "critic_rate": "critic_learning_rate",
    "minibatch": "batch_size",
    "minibatches": "num_minibatches",
    "entropy": "ent_coef",
    "kl": "kl_coef",
    "anneal": "anneal_lr",
    "weighting": "loss_aggregation",
    "mask_truncated": "mask_truncated_completions",
    "slots": "num_envs",
    "steps": "n_steps",
    "normalise_observations": "normalize_observations",
}
"""New names of renamed settings and hyperparameters, by old name."""


@dataclass(frozen=True)
class TrainSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of a training run: the options of the command line, the keywords of `train`, and `settings.json`.

    `None` is replaced by the preset of the environment (`PRESETS`); a run's `settings.json`
    contains the replaced values.
    """

    plugins: tuple[str, ...] = setting((), "Files (my_env.py) or modules that register environments or algorithms.")
    env: str = setting("palaestra/CoT-v0", "Environment: a Gymnasium id, see `palaestra list environments`.")
    env_options: tuple[str, ...] = setting((), "Options of the environment, each as name=value (value in JSON).")
    algorithm: str | None = setting(
        None, "Algorithm: see `palaestra list algorithms`; by default grpo for language models and ppo for others."
    )
    hyperparameters: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "Hyperparameters: fields of the algorithm's config dataclass."}
    )
    policy: Literal["lm", "mlp", "cnn", "transformer"] | None = setting(
        None,
        "Policy: a language model, a perceptron, a convolutional network, or a transformer over the history of "
        "observations; by default lm, cnn for images, and mlp.",
    )
    model: str = setting("nano", "Language model: a registered name, a folder or a hub id.")
    method: Literal["auto", "full", "lora"] = setting(
        "auto", "Train all weights or a LoRA adapter; auto: all weights up to 20 M parameters."
    )
    rank: int = setting(16, "Rank of the LoRA adapter.", low=1)
    critic: Literal["head", "separate"] = setting(
        "head", "Critic of a language model: a value head on the policy, or a separate model."
    )
    iterations: int | None = setting(None, "Iterations; each collects episodes and updates the policy.", low=1)
    num_envs: int | None = setting(None, "Parallel environments or sequences.", low=1)
    episodes: int | None = setting(None, "Episodes per iteration, for language models.", low=1)
    n_steps: int | None = setting(None, "Steps per environment and iteration, for classic environments.", low=1)
    rollout: Literal["step", "engine"] | None = setting(
        None,
        "Sample responses token by token in the environment's steps, or whole from an engine; by default step, and "
        "engine if an engine is chosen.",
    )
    max_staleness: int = setting(
        0,
        "Updates between the weights that sample a rollout and those that learn from it. Above 0 workers sample while "
        "the learner updates.",
        low=0,
    )
    importance_clip_max: float = setting(
        3.0, "Maximum importance weight of a token that was sampled by an engine or with older weights.", above=0
    )
    temperature: float = setting(1.0, "Sampling temperature during training.", above=0)
    max_tokens: int = setting(72, "Maximum tokens of a response; at the turn scale, of a message.", low=1)
    agent: str = setting(
        "",
        "Command of an agent that plays the turn environment with an OpenAI client, one process per episode, for example "
        "'python agent.py'.",
    )
    agent_timeout: float = setting(120.0, "Maximum seconds of an agent's episode.", above=0)
    agent_start: Literal["spawn", "fork"] = setting(
        "spawn",
        "Start each process of the agent anew, or fork it from one that has imported the packages of its script.",
    )
    override_sampling: bool = setting(
        False, "Replace other sampling parameters of an agent's calls by the policy's instead of rejecting the calls."
    )
    normalize_observations: bool | None = setting(
        None, "Normalize observations by their running mean and standard deviation."
    )
    scale_actions: bool | None = setting(
        None,
        "Scale continuous actions to the bounds of their space: the outputs -1 and 1 of the policy are the bounds.",
    )
    activation: Literal["relu", "tanh"] | None = setting(None, "Activation function of the perceptron.")
    reward_scale: float | None = setting(
        None, "Factor applied to training rewards; reported returns are not scaled.", low=0
    )
    width: int = setting(64, "Width of the layers of a perceptron or transformer policy.", low=1)
    layers: int = setting(2, "Number of layers of a perceptron or transformer policy.", low=1)
    window: int = setting(8, "Observations in the history of a transformer policy.", low=1)
    evaluate_every: int = setting(0, "Iterations between evaluations; 0 evaluates before and after training.", low=0)
    evaluation: int | None = setting(
        None, "Held-out problems per skill, prompts, or episodes of an evaluation; 0 disables it.", low=0
    )
    stop_at: float | None = setting(None, "Stop when the mean return of the last 100 episodes reaches this value.")
    checkpoint_every: int = setting(10, "Iterations between checkpoints.", low=1)
    keep_trajectories: int = setting(
        4,
        "Episodes per iteration that the store keeps; with groups, as many whole groups as fit and at least one, "
        "preferably with different rewards.",
        low=0,
    )
    keep_alternatives: int = setting(
        3,
        "Most likely tokens that the store keeps for each token of a stored episode, from one more pass over these "
        "episodes; 0: none.",
        low=0,
    )
    tensorboard: bool = setting(False, "Also write the metrics for TensorBoard (extra: tensorboard).")
    wandb: str = setting("", "Weights & Biases project to log to (extra: wandb).")
    trackio: str = setting("", "trackio project to log to (extra: trackio).")
    device: str = setting(
        "", "Device, for example cuda; empty: a GPU if there is one, and the CPU for the policies mlp and transformer."
    )
    microbatch_size: int = setting(
        0, "Sequences of a language model in one pass with gradients; 0: as many as fit into memory.", low=0
    )
    gradient_checkpointing: bool = setting(
        False,
        "Compute the blocks of a language model again in the backward pass, which needs less memory and more time.",
    )
    threads: int = setting(0, "CPU threads; 0: torch's default.", low=0)
    parallel: Literal["ddp", "fsdp"] = setting(
        "ddp", "Several processes (torchrun): each has all weights, or a shard of weights, gradients and optimizer."
    )
    seed: int = setting(0, "Seed of all randomness.", low=0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the environment."""
        return parse_options(self.env_options, "env_options")

    @property
    def uses_workers(self) -> bool:
        """Whether workers collect the rollouts, beside the learner."""
        return self.executor != INLINE or self.max_staleness > 0


def make_settings(values: Mapping[str, Any]) -> TrainSettings:
    """Build settings from plain values. Names that are not settings of the run are hyperparameters of the algorithm.

    Raises:
        SettingsError: a value of the wrong type, or an old name.
    """
    for name in values:
        if name in RENAMED:
            raise SettingsError(f"setting '{name}' is now '{RENAMED[name]}'")
    run, hyperparameters = split_values(values)
    return build(TrainSettings, run | {"hyperparameters": {**run.get("hyperparameters", {}), **hyperparameters}})


def make_config(algorithm: str, hyperparameters: Mapping[str, Any]) -> AlgorithmConfig:
    """Build the config of a registered algorithm.

    Raises:
        UnknownNameError: no algorithm has that name.
        SettingsError: an unknown hyperparameter, or a value of the wrong type or out of range.
    """
    kind: type[AlgorithmConfig] = ALGORITHMS.get(algorithm).Config
    known = [f.name for f in fields(kind)]
    for name in hyperparameters:
        if name not in known:
            owners = [
                other for other in ALGORITHMS.names() if name in {f.name for f in fields(ALGORITHMS.get(other).Config)}
            ]
            require(not owners, f"setting '{name}' is for {' and '.join(owners)}; got algorithm '{algorithm}'")
            names = [*known, *(f.name for f in fields(TrainSettings))]
            raise SettingsError(f"unknown setting '{name}' of algorithm '{algorithm}'; {suggest(name, names)}")
    return build(kind, hyperparameters)


# Runs of earlier versions have no `scale_actions` in their settings: their policies act without a scale.
_COMMON = {
    "episodes": 256, "n_steps": 64, "normalize_observations": False, "scale_actions": True, "activation": "tanh",
    "reward_scale": 1.0,
}  # fmt: skip
_TOKEN = {**_COMMON, "num_envs": 128, "iterations": 40, "evaluation": 25}
PRESETS: Mapping[str | tuple[str, str], Mapping[str, Any]] = {
    "control": {**_COMMON, "num_envs": 32, "iterations": 200, "evaluation": 20},
    "token": _TOKEN,
    # Fewer slots: each may be a workspace with its own processes.
    "turn": {**_TOKEN, "num_envs": 32, "episodes": 128, "evaluation": 64},
    ("token", "grpo"): {"num_minibatches": 2},
    ("token", "rloo"): {"num_minibatches": 2},
    ("token", "ppo"): {
        "learning_rate": 1e-4, "critic_learning_rate": 1e-2, "n_epochs": 1, "batch_size": 64, "clip_range_vf": 0.2,
        "gamma": 1.0, "gae_lambda": 1.0, "max_grad_norm": 1.0,
    },
    ("control", "ppo"): {
        "learning_rate": 1e-3, "critic_learning_rate": 1e-3, "n_epochs": 8, "batch_size": 256, "gamma": 0.99,
        "gae_lambda": 0.95, "max_grad_norm": 0.5,
    },
    ("control", "grpo"): {
        "num_envs": 64, "learning_rate": 3e-3, "n_epochs": 2, "num_minibatches": 4, "max_grad_norm": 0.5
    },
    ("control", "rloo"): {
        "num_envs": 64, "learning_rate": 3e-3, "n_epochs": 8, "num_minibatches": 4, "max_grad_norm": 0.5
    },
    ("control", "reinforce"): {
        "n_steps": 128, "learning_rate": 3e-3, "critic_learning_rate": 1e-2, "gamma": 0.99, "baseline": "critic",
        "max_grad_norm": 0.5,
    },
    ("cnn", "ppo"): {
        "num_envs": 32, "n_steps": 64, "iterations": 500, "learning_rate": 5e-4, "critic_learning_rate": 5e-4, "n_epochs": 4,
        "batch_size": 512, "ent_coef": 0.01,
    },
    ("CartPole-v1", "ppo"): {
        "num_envs": 32, "n_steps": 32, "iterations": 150, "activation": "relu", "learning_rate": 2e-3,
        "critic_learning_rate": 2e-3, "gamma": 0.98, "gae_lambda": 0.9, "batch_size": 256,
    },
    ("Acrobot-v1", "ppo"): {
        "num_envs": 16, "n_steps": 256, "iterations": 80, "normalize_observations": True, "n_epochs": 4,
        "gae_lambda": 0.94,
    },
    ("Pendulum-v1", "ppo"): {
        "num_envs": 16, "n_steps": 128, "iterations": 120, "reward_scale": 0.1, "activation": "relu", "gamma": 0.9,
        "gae_lambda": 0.95, "n_epochs": 10, "batch_size": 256,
    },
}  # fmt: skip
"""Default settings and hyperparameters: for a kind of environment, for a kind and an algorithm, for a policy and an
algorithm, and for an environment and an algorithm. The more specific preset takes precedence. The results in `docs/results.md` were measured
with these presets."""


def find_preset(kind: str, policy: str, env: str, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the preset settings and hyperparameters for an environment of a kind, a policy and an algorithm.

    Arguments:
        kind: `"control"`, `"token"` or `"turn"`.
    """
    # Turn environments use the token presets: training updates tokens.
    keys = (kind, ("token" if kind == "turn" else kind, algorithm), (policy, algorithm), (env, algorithm))
    return split_values({name: value for key in keys for name, value in PRESETS.get(key, {}).items()})


def split_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split plain values into settings of the run and hyperparameters of the algorithm."""
    own = {f.name for f in fields(TrainSettings)}
    return (
        {name: value for name, value in values.items() if name in own},
        {name: value for name, value in values.items() if name not in own},
    )


def list_preset_names(algorithm: str) -> list[str]:
    """The hyperparameters of an algorithm whose default depends on the environment."""
    presets = [preset for key, preset in PRESETS.items() if isinstance(key, tuple) and key[1] == algorithm]
    return sorted({name for preset in presets for name in split_values(preset)[1]})


def fill_presets(settings: TrainSettings) -> TrainSettings:
    """Replace every `None` and every missing hyperparameter by the preset of the environment.

    Raises:
        EnvError: the policy does not fit the environment.
        SettingsError: an unknown hyperparameter, or episodes that cannot be divided into groups.
    """
    from palaestra.envs.factory import detect_kind

    load_plugins(settings.plugins)
    kind = detect_kind(settings.env, settings.options)
    language = kind != "control"
    policy = settings.policy or ("lm" if language else _choose_control_policy(settings))
    if (policy == "lm") != language:
        actions = {"token": "tokens", "turn": "messages", "control": "classic actions"}[kind]
        raise EnvError(f"policy '{policy}' does not fit {settings.env}, whose actions are {actions}; use "
                       f"{'lm' if language else 'mlp, cnn or transformer'}")  # fmt: skip
    rollout = settings.rollout or ("step" if settings.engine == LOCAL_SCHEME and not settings.agent else "engine")
    require(
        not settings.agent or kind == "turn",
        f"setting 'agent': expected a turn environment, such as palaestra/Guess-v0; got {settings.env}",
    )
    require(
        not settings.agent or rollout == "engine",
        "setting 'rollout': expected engine, because an agent's calls are whole responses; got step",
    )
    require(
        language or rollout == "step",
        f"setting 'rollout': expected step for {settings.env}, whose actions are no text; got {rollout}",
    )
    require(
        language or not settings.uses_workers,
        f"settings 'executor' and 'max_staleness' are for language models; {settings.env} runs in this process",
    )
    algorithm = settings.algorithm or ("grpo" if language else "ppo")
    ALGORITHMS.check(algorithm)
    preset, hyperparameters = find_preset(kind, policy, settings.env, algorithm)
    config = make_config(algorithm, {**hyperparameters, **settings.hyperparameters})
    missing = {name: value for name, value in preset.items() if getattr(settings, name) is None}
    settings = replace(
        settings, policy=policy, algorithm=algorithm, rollout=rollout, hyperparameters=asdict(config), **missing
    )
    name = "episodes" if language else "num_envs"
    count = getattr(settings, name)
    require(
        count % config.group_size == 0,
        f"setting '{name}': expected a multiple of the group size {config.group_size}; got {count}",
    )
    require(
        policy != "cnn" or not settings.normalize_observations,
        "setting 'normalize_observations' is for feature vectors; the policy cnn divides images by their upper bound",
    )
    return settings


def _choose_control_policy(settings: TrainSettings) -> Literal["mlp", "cnn"]:
    from palaestra.envs.factory import get_observation_space
    from palaestra.learn.policies.convolutional import is_image_space

    return "cnn" if is_image_space(get_observation_space(settings.env, settings.options)) else "mlp"


def unwrap(value: T | None) -> T:
    """The value of a setting that `fill_presets` has filled in."""
    assert value is not None
    return value


class TrainOptions(EngineOptions, ExecutorOptions, RunOptions, total=False):
    """The fields of `TrainSettings` and of the algorithms' configs as keyword arguments, for editors and type checkers."""

    plugins: Sequence[str]
    env: str | type[Any]
    env_options: Sequence[str]
    algorithm: str | type[Any] | None
    hyperparameters: Mapping[str, Any]
    policy: Literal["lm", "mlp", "cnn", "transformer"] | None
    model: str
    method: Literal["auto", "full", "lora"]
    rank: int
    critic: Literal["head", "separate"]
    iterations: int | None
    num_envs: int | None
    episodes: int | None
    n_steps: int | None
    rollout: Literal["step", "engine"] | None
    max_staleness: int
    importance_clip_max: float
    temperature: float
    max_tokens: int
    agent: str
    agent_timeout: float
    agent_start: Literal["spawn", "fork"]
    override_sampling: bool
    normalize_observations: bool | None
    scale_actions: bool | None
    activation: Literal["relu", "tanh"] | None
    reward_scale: float | None
    width: int
    layers: int
    window: int
    evaluate_every: int
    evaluation: int | None
    stop_at: float | None
    checkpoint_every: int
    keep_trajectories: int
    keep_alternatives: int
    tensorboard: bool
    wandb: str
    trackio: str
    device: str
    microbatch_size: int
    gradient_checkpointing: bool
    threads: int
    parallel: Literal["ddp", "fsdp"]
    seed: int
    learning_rate: float
    kl_coef: float | None
    max_grad_norm: float
    weight_decay: float
    anneal_lr: bool
    critic_learning_rate: float
    n_epochs: int
    batch_size: int | None
    gamma: float
    gae_lambda: float
    clip_range: float
    clip_range_high: float | None
    clip_range_vf: float | None
    vf_coef: float
    ent_coef: float
    target_kl: float | None
    normalize_advantage: bool
    anneal_clip_range: bool
    group_size: int
    num_minibatches: int
    variant: Literal["grpo", "dr_grpo", "dapo"]
    loss_aggregation: Literal["token", "sequence", "constant"] | None
    scale_rewards: bool | None
    mask_truncated_completions: bool | None
    importance_sampling_level: Literal["token", "sequence"]
    baseline: Literal["batch", "critic", "none"]
