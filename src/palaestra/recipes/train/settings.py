"""Settings of a training run. The hyperparameters are those of the algorithm's own config dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from palaestra.core.errors import SettingsError, suggest
from palaestra.core.records import LOCAL_SCHEME, Json
from palaestra.core.settings import check_ranges, setting
from palaestra.recipes.settings import INLINE, EngineSettings, ExecutorSettings, RunSettings, build, require
from palaestra.rl.algorithms import ALGORITHMS, AlgorithmConfig

LANGUAGE = ("lm",)
CLASSIC = ("mlp", "cnn", "transformer", "set", "plan")
"""The policies of language models, and those of classic environments."""


@dataclass(frozen=True)
class TrainSettings(EngineSettings, ExecutorSettings, RunSettings):
    """Settings of a training run: the options of the command line, the keywords of `train`, and `settings.json`.

    `None` is replaced by the preset of the environment (`PRESETS`); a run's `settings.json`
    contains the replaced values.
    """

    plugins: tuple[str, ...] = setting(
        (), "Files (my_env.py) or modules that register environments or algorithms.", panel="Run"
    )
    env: str = setting(
        "palaestra/CoT-v0",
        "Environment: a Gymnasium id, see `palaestra list environments`, or FILE.py:CLASS. In Python also a class, a "
        "function that makes one, or an instance. Several environments share a language model: repeat the option, with "
        "options behind the id, for example ID,weight=2,max_tokens=16; in Python a list, or ids with weights.",
        panel="Task",
        usual=True,
        names="environments",
        repeated=True,
    )
    environments: tuple[Mapping[str, Any], ...] = field(
        default=(), metadata={"help": "Each environment of a run with several, with its options.", "option": False}
    )
    env_kwargs: Mapping[str, Any] = setting({}, "Options of the environment.", panel="Task")
    task: str = setting(
        "",
        "Task of the environment: a name, see `palaestra list tasks`, or your own data (FILE, FOLDER or hf:NAME); by "
        "default the environment's own.",
        panel="Task",
        policies=LANGUAGE,
        usual=True,
        names="tasks",
    )
    task_kwargs: Mapping[str, Any] = setting(
        {}, "Options of the task or the prompts, for example scorer=number.", panel="Task", policies=LANGUAGE
    )
    prompts: str = setting(
        "",
        "Your own data as prompts for your reward: FILE, FOLDER or hf:NAME. In Python also rows or a dataset.",
        panel="Task",
        policies=LANGUAGE,
        needs="reward",
        usual=True,
    )
    reward: tuple[str, ...] = setting(
        (),
        "Your own reward, FILE.py:FUNCTION, with the signature of TRL's reward functions. Replaces the reward of the "
        "environment in training. May be repeated.",
        panel="Task",
        policies=LANGUAGE,
        usual=True,
    )
    reward_weights: tuple[float, ...] = setting(
        (), "Weight of each reward; 1 by default.", panel="Task", policies=LANGUAGE, needs="reward"
    )
    algorithm: str | None = setting(
        None,
        "Algorithm: see `palaestra list algorithms`; by default grpo for language models and ppo for others.",
        panel="Agent",
        usual=True,
        names="algorithms",
    )
    hyperparameters: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "Hyperparameters: fields of the algorithm's config dataclass."}
    )
    policy: Literal["lm", "mlp", "cnn", "transformer", "set", "plan"] | None = setting(
        None,
        "Policy: a language model, a perceptron, a convolutional network, a transformer over the history of "
        "observations, a network for tables with a row per action, or a plan of lessons; by default lm, cnn for images, set for tables, mlp.",
        panel="Model",
    )
    model: str = setting(
        "",
        "Language model: a registered name, a folder or a hub id; empty: the embedded model that fits the environment.",
        panel="Model",
        policies=LANGUAGE,
        usual=True,
        names="models",
    )
    method: Literal["auto", "full", "lora"] = setting(
        "auto",
        "Train all weights or a LoRA adapter; auto: all weights up to 20 M parameters.",
        panel="Model",
        policies=LANGUAGE,
    )
    rank: int = setting(16, "Rank of the LoRA adapter.", low=1, panel="Model", policies=LANGUAGE)
    critic: Literal["head", "separate"] = setting(
        "head",
        "Critic of a language model: a value head on the policy, or a separate model.",
        panel="Model",
        policies=LANGUAGE,
    )
    iterations: int | None = setting(
        None, "Iterations; each collects episodes and updates the policy.", low=1, panel="Agent", usual=True
    )
    num_envs: int | None = setting(None, "Parallel environments or sequences.", low=1, panel="Agent")
    episodes: int | None = setting(
        None, "Episodes per iteration, for language models.", low=1, panel="Agent", policies=LANGUAGE
    )
    curriculum: str = setting(
        "uniform",
        "How a token environment's prompts are chosen: uniform, or by the rewards so far, see `palaestra list curricula`.",
        panel="Agent",
        policies=LANGUAGE,
        names="curricula",
    )
    n_steps: int | None = setting(
        None, "Steps per environment and iteration, for classic environments.", low=1, panel="Agent", policies=CLASSIC
    )
    rollout: Literal["step", "engine"] | None = setting(
        None,
        "Sample responses token by token in the environment's steps, or whole from an engine; by default step, and "
        "engine if an engine is chosen.",
        panel="Rollouts",
        policies=LANGUAGE,
    )
    rollout_servers: str = setting(
        "",
        "Servers of the model that sample the rollouts and receive its weights after every update: "
        "http://A:8000/v1,http://B:8000/v1#MODEL, started with `palaestra serve --receive-weights` or vLLM's server.",
        panel="Rollouts",
        policies=LANGUAGE,
    )
    max_staleness: int = setting(
        0,
        "Updates between the weights that sample a rollout and those that learn from it. Above 0 workers sample while "
        "the learner updates.",
        low=0,
        panel="Rollouts",
        policies=LANGUAGE,
    )
    overdue: Literal["wait", "drop", "cut", "continue"] = setting(
        "wait",
        "Rollouts that would become too stale: the learner waits for them, they are dropped once and sampled again, their "
        "responses are cut, or newer weights continue them. To cut and to continue need rollout step.",
        panel="Rollouts",
        policies=LANGUAGE,
    )
    importance_clip_max: float = setting(
        3.0,
        "Maximum importance weight of a token that was sampled by an engine or with older weights.",
        above=0,
        panel="Rollouts",
        policies=LANGUAGE,
    )
    temperature: float = setting(
        1.0, "Sampling temperature during training.", above=0, panel="Sampling", policies=LANGUAGE
    )
    top_p: float = setting(
        1.0,
        "Sample from the most likely tokens with this total probability. Their sets are recorded, and learning uses the same "
        "distribution; for rollouts without an engine.",
        above=0,
        high=1,
        panel="Sampling",
        policies=LANGUAGE,
    )
    top_k: int = setting(
        0, "Sample from so many most likely tokens, as top_p; 0: all.", low=0, panel="Sampling", policies=LANGUAGE
    )
    max_tokens: int | None = setting(
        None,
        "Maximum tokens of a response; at the turn scale, of a message.",
        low=1,
        panel="Sampling",
        policies=LANGUAGE,
        usual=True,
    )
    agent: str = setting(
        "",
        "Command of an agent that plays the turn environment with an OpenAI client, one process per episode, for example "
        "'python agent.py'.",
        panel="Agent",
        policies=LANGUAGE,
    )
    agent_timeout: float = setting(
        120.0, "Maximum seconds of an agent's episode.", above=0, panel="Agent", policies=LANGUAGE, needs="agent"
    )
    agent_start: Literal["spawn", "fork"] = setting(
        "spawn",
        "Start each process of the agent anew, or fork it from one that has imported the packages of its script.",
        panel="Agent",
        policies=LANGUAGE,
        needs="agent",
    )
    override_sampling: bool = setting(
        False,
        "Replace the sampling parameters of an agent's calls by the policy's.",
        panel="Agent",
        policies=LANGUAGE,
        needs="agent",
    )
    normalize_observations: bool | None = setting(
        None,
        "Normalize observations by their running mean and standard deviation.",
        panel="Model",
        policies=("mlp", "transformer"),
    )
    normalize_rewards: bool = setting(
        False,
        "Divide training rewards by the running standard deviation of the discounted returns; reported returns are not scaled.",
        panel="Agent",
        policies=CLASSIC,
    )
    scale_actions: bool | None = setting(
        None,
        "Scale continuous actions to the bounds of their space: the outputs -1 and 1 of the policy are the bounds.",
        panel="Model",
        policies=CLASSIC,
    )
    activation: Literal["relu", "tanh"] | None = setting(
        None, "Activation function of the perceptron.", panel="Model", policies=("mlp",)
    )
    reward_scale: float | None = setting(
        None, "Factor applied to training rewards; reported returns are not scaled.", low=0, panel="Agent"
    )
    width: int = setting(
        64,
        "Width of the layers of a perceptron or transformer policy.",
        low=1,
        panel="Model",
        policies=("mlp", "transformer", "set", "plan"),
    )
    layers: int = setting(
        2,
        "Number of layers of a perceptron or transformer policy.",
        low=1,
        panel="Model",
        policies=("mlp", "transformer", "set", "plan"),
    )
    window: int = setting(
        8, "Observations in the history of a transformer policy.", low=1, panel="Model", policies=("transformer",)
    )
    evaluate_every: int = setting(
        0, "Iterations between evaluations; 0 evaluates before and after training.", low=0, panel="Evaluation"
    )
    evaluation: int | None = setting(
        None,
        "Held-out problems per skill, prompts, or episodes of an evaluation; 0 disables it.",
        low=0,
        panel="Evaluation",
    )
    stop_at: float | None = setting(
        None, "Stop when the mean return of the last 100 episodes reaches this value.", panel="Agent"
    )
    checkpoint_every: int | None = setting(None, "Iterations between checkpoints.", low=1, panel="Run")
    keep_trajectories: int = setting(
        4,
        "Episodes per iteration that the store keeps; with groups, as many whole groups as fit and at least one, "
        "preferably with different rewards.",
        low=0,
        panel="Run",
    )
    keep_alternatives: int = setting(
        3,
        "Most likely tokens that the store keeps for each token of a stored episode, from one more pass over these "
        "episodes; 0: none.",
        low=0,
        panel="Run",
        policies=LANGUAGE,
    )
    tensorboard: bool = setting(False, "Also write the metrics for TensorBoard (extra: tensorboard).", panel="Run")
    wandb: str = setting("", "Weights & Biases project to log to (extra: wandb).", panel="Run")
    trackio: str = setting("", "trackio project to log to (extra: trackio).", panel="Run")
    device: str = setting(
        "",
        "Device, for example cuda; empty: a GPU if there is one, and the CPU for the policies mlp and transformer.",
        panel="Model",
        usual=True,
    )
    microbatch_size: int = setting(
        0,
        "Sequences of a language model in one pass with gradients; 0: as many as fit into memory.",
        low=0,
        panel="Model",
        policies=LANGUAGE,
    )
    gradient_checkpointing: bool = setting(
        False,
        "Compute the blocks of a language model again in the backward pass, which needs less memory and more time.",
        panel="Model",
        policies=LANGUAGE,
    )
    threads: int = setting(0, "CPU threads; 0: torch's default.", low=0, panel="Model")
    parallel: Literal["ddp", "fsdp"] = setting(
        "ddp",
        "Several processes (torchrun): each has all weights, or a shard of weights, gradients and optimizer.",
        panel="Cluster",
        policies=LANGUAGE,
    )
    weight_transfer: Literal["", "executor", "gloo", "nccl"] = setting(
        "",
        "How workers receive new weights: from the driver by the executor, or from all learners by a broadcast of "
        "torch.distributed (gloo, or nccl between GPUs); empty: executor for one learner, gloo for several.",
        panel="Cluster",
        policies=LANGUAGE,
    )
    seed: int = setting(0, "Seed of all randomness.", low=0, panel="Run", usual=True)

    def __post_init__(self) -> None:
        check_ranges(self)

    own_options: ClassVar[tuple[str, ...]] = ("task", "prompts", "reward", "reward_weights", "task_kwargs")
    """Options of the environment that are settings of their own."""

    @property
    def options(self) -> Json:
        """The options of the environment, with its task."""
        options = dict(self.env_kwargs)
        for name in self.own_options:
            value = getattr(self, name)
            require(not value or name not in options, f"setting 'env_kwargs': the setting '{name}' is given already")
            if value:
                options[name] = list(value) if isinstance(value, tuple) else value
        return options

    @property
    def learner(self) -> str:
        """The name of the learner in the ledger: the language model, or the kind of the policy."""
        return self.model if self.policy == "lm" else str(self.policy)

    @property
    def is_filled(self) -> bool:
        """Whether `fill_presets` has replaced what was not given."""
        values = (self.policy, self.algorithm, self.rollout, self.iterations, self.num_envs, self.evaluation)
        return (
            None not in (*values, self.max_tokens, self.checkpoint_every)
            and bool(self.model)
            and len(self.hyperparameters) == len(fields(ALGORITHMS.get(str(self.algorithm)).Config))
        )

    @property
    def uses_engine(self) -> bool:
        """Whether rollouts are sampled by an engine, unless `rollout` says otherwise."""
        return self.rollout == "engine" or self.engine != LOCAL_SCHEME or bool(self.agent or self.rollout_servers)

    @property
    def uses_workers(self) -> bool:
        """Whether workers collect the rollouts, beside the learner."""
        return self.executor != INLINE or self.max_staleness > 0

    def make_config(self) -> AlgorithmConfig:
        """Build the config of the algorithm. `fill_presets` has chosen the algorithm."""
        return make_config(str(self.algorithm), self.hyperparameters)


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


def split_values(values: Mapping[str, Any]) -> tuple[Json, Json]:
    """Split plain values into settings of the run and hyperparameters of the algorithm."""
    own = {f.name for f in fields(TrainSettings)}
    return (
        {name: value for name, value in values.items() if name in own},
        {name: value for name, value in values.items() if name not in own},
    )
