"""Settings of a training run. The hyperparameters are those of the algorithm's own config dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from palaestra.core.errors import SettingsError, suggest
from palaestra.core.records import LOCAL_SCHEME, Json, Values
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

    plugins: tuple[str, ...] = setting((), panel="Run")
    """Files (my_env.py) or modules that register environments or algorithms."""
    env: str = setting("palaestra/CoT-v0", panel="Task", usual=True, names="environments", repeated=True)
    """Environment: a Gymnasium id, see `palaestra list environments`, or FILE.py:CLASS. In Python also a class, a
    function that makes one, or an instance. Several environments share a language model: repeat the option, with
    options behind the id, for example ID,weight=2,max_tokens=16; in Python a list, or ids with weights."""
    environments: tuple[Mapping[str, Any], ...] = setting((), option=False)
    """Each environment of a run with several, with its options."""
    env_kwargs: Mapping[str, Any] = setting({}, panel="Task")
    """Options of the environment."""
    task: str = setting("", panel="Task", policies=LANGUAGE, usual=True, names="tasks")
    """Task of the environment: a name, see `palaestra list tasks`, or your own data (FILE, FOLDER or hf:NAME); by
    default the environment's own."""
    task_kwargs: Mapping[str, Any] = setting({}, panel="Task", policies=LANGUAGE)
    """Options of the task or the prompts, for example scorer=number."""
    prompts: str = setting("", panel="Task", policies=LANGUAGE, needs="reward", usual=True)
    """Your own data as prompts for your reward: FILE, FOLDER or hf:NAME. In Python also rows or a dataset."""
    reward: tuple[str, ...] = setting((), panel="Task", policies=LANGUAGE, usual=True)
    """Your own reward, FILE.py:FUNCTION, with the signature of TRL's reward functions. Replaces the reward of the
    environment in training. May be repeated."""
    reward_weights: tuple[float, ...] = setting((), panel="Task", policies=LANGUAGE, needs="reward")
    """Weight of each reward; 1 by default."""
    algorithm: str | None = setting(None, panel="Agent", usual=True, names="algorithms")
    """Algorithm: see `palaestra list algorithms`; by default grpo for language models and ppo for others."""
    hyperparameters: Mapping[str, Any] = setting({})
    """Hyperparameters: fields of the algorithm's config dataclass."""
    policy: Literal["lm", "mlp", "cnn", "transformer", "set", "plan"] | None = setting(None, panel="Model")
    """Policy: a language model, a perceptron, a convolutional network, a transformer over the history of observations,
    a network for tables with a row per action, or a plan of lessons; by default lm, cnn for images, set for tables,
    mlp."""
    model: str = setting("", panel="Model", policies=LANGUAGE, usual=True, names="models")
    """Language model: a registered name, a folder or a hub id; empty: the embedded model that fits the environment."""
    method: Literal["auto", "full", "lora"] = setting("auto", panel="Model", policies=LANGUAGE)
    """Train all weights or a LoRA adapter; auto: all weights up to 20 M parameters."""
    rank: int = setting(16, low=1, panel="Model", policies=LANGUAGE)
    """Rank of the LoRA adapter."""
    critic: Literal["head", "separate"] = setting("head", panel="Model", policies=LANGUAGE)
    """Critic of a language model: a value head on the policy, or a separate model."""
    iterations: int | None = setting(None, low=1, panel="Agent", usual=True)
    """Iterations; each collects episodes and updates the policy."""
    num_envs: int | None = setting(None, low=1, panel="Agent")
    """Parallel environments or sequences."""
    episodes: int | None = setting(None, low=1, panel="Agent", policies=LANGUAGE)
    """Episodes per iteration, for language models."""
    curriculum: str = setting("uniform", panel="Agent", policies=LANGUAGE, names="curricula")
    """How a token environment's prompts are chosen: uniform, or by the rewards so far, see `palaestra list
    curricula`."""
    n_steps: int | None = setting(None, low=1, panel="Agent", policies=CLASSIC)
    """Steps per environment and iteration, for classic environments."""
    rollout: Literal["step", "engine"] | None = setting(None, panel="Rollouts", policies=LANGUAGE)
    """Sample responses token by token in the environment's steps, or whole from an engine; by default step, and engine
    if an engine is chosen."""
    rollout_servers: str = setting("", panel="Rollouts", policies=LANGUAGE)
    """Servers of the model that sample the rollouts and receive its weights after every update: URL,URL#MODEL, started
    with `palaestra serve --receive-weights` or vLLM's server."""
    max_staleness: int = setting(0, low=0, panel="Rollouts", policies=LANGUAGE)
    """Updates between the weights that sample a rollout and those that learn from it. Above 0 workers sample while the
    learner updates."""
    overdue: Literal["wait", "drop", "cut", "continue"] = setting("wait", panel="Rollouts", policies=LANGUAGE)
    """Rollouts that would become too stale: the learner waits for them, they are dropped once and sampled again, their
    responses are cut, or newer weights continue them. To cut and to continue need rollout step."""
    importance_clip_max: float = setting(3.0, above=0, panel="Rollouts", policies=LANGUAGE)
    """Maximum importance weight of a token that was sampled by an engine or with older weights."""
    temperature: float = setting(1.0, above=0, panel="Sampling", policies=LANGUAGE)
    """Sampling temperature during training."""
    top_p: float = setting(1.0, above=0, high=1, panel="Sampling", policies=LANGUAGE)
    """Sample from the most likely tokens with this total probability. Their sets are recorded, and learning uses the
    same distribution; for rollouts without an engine."""
    top_k: int = setting(0, low=0, panel="Sampling", policies=LANGUAGE)
    """Sample from so many most likely tokens, as top_p; 0: all."""
    max_tokens: int | None = setting(None, low=1, panel="Sampling", policies=LANGUAGE, usual=True)
    """Maximum tokens of a response; at the turn scale, of a message."""
    agent: str = setting("", panel="Agent", policies=LANGUAGE)
    """Command of an agent that plays the turn environment with an OpenAI client, one process per episode, for example
    'python agent.py'."""
    agent_timeout: float = setting(120.0, above=0, panel="Agent", policies=LANGUAGE, needs="agent")
    """Maximum seconds of an agent's episode."""
    agent_start: Literal["spawn", "fork"] = setting("spawn", panel="Agent", policies=LANGUAGE, needs="agent")
    """Start each process of the agent anew, or fork it from one that has imported the packages of its script."""
    override_sampling: bool = setting(False, panel="Agent", policies=LANGUAGE, needs="agent")
    """Replace the sampling parameters of an agent's calls by the policy's."""
    normalize_observations: bool | None = setting(None, panel="Model", policies=("mlp", "transformer"))
    """Normalize observations by their running mean and standard deviation."""
    normalize_rewards: bool = setting(False, panel="Agent", policies=CLASSIC)
    """Divide training rewards by the running standard deviation of the discounted returns; reported returns are not
    scaled."""
    scale_actions: bool | None = setting(None, panel="Model", policies=CLASSIC)
    """Scale continuous actions to the bounds of their space: the outputs -1 and 1 of the policy are the bounds."""
    activation: Literal["relu", "tanh"] | None = setting(None, panel="Model", policies=("mlp",))
    """Activation function of the perceptron."""
    reward_scale: float | None = setting(None, low=0, panel="Agent")
    """Factor applied to training rewards; reported returns are not scaled."""
    width: int = setting(64, low=1, panel="Model", policies=("mlp", "transformer", "set", "plan"))
    """Width of the layers of a perceptron or transformer policy."""
    layers: int = setting(2, low=1, panel="Model", policies=("mlp", "transformer", "set", "plan"))
    """Number of layers of a perceptron or transformer policy."""
    window: int = setting(8, low=1, panel="Model", policies=("transformer",))
    """Observations in the history of a transformer policy."""
    evaluate_every: int = setting(0, low=0, panel="Evaluation")
    """Iterations between evaluations; 0 evaluates before and after training."""
    evaluation: int | None = setting(None, low=0, panel="Evaluation")
    """Held-out problems per skill, prompts, or episodes of an evaluation; 0 disables it."""
    stop_at: float | None = setting(None, panel="Agent")
    """Stop when the mean return of the last 100 episodes reaches this value."""
    checkpoint_every: int | None = setting(None, low=1, panel="Run")
    """Iterations between checkpoints."""
    keep_trajectories: int = setting(4, low=0, panel="Run")
    """Episodes per iteration that the store keeps; with groups, as many whole groups as fit and at least one,
    preferably with different rewards."""
    keep_alternatives: int = setting(3, low=0, panel="Run", policies=LANGUAGE)
    """Most likely tokens that the store keeps for each token of a stored episode, from one more pass over these
    episodes; 0: none."""
    tensorboard: bool = setting(False, panel="Run")
    """Also write the metrics for TensorBoard (extra: tensorboard)."""
    wandb: str = setting("", panel="Run")
    """Weights & Biases project to log to (extra: wandb)."""
    trackio: str = setting("", panel="Run")
    """trackio project to log to (extra: trackio)."""
    device: str = setting("", panel="Model", usual=True)
    """Device, for example cuda; empty: a GPU if there is one, and the CPU for the policies mlp and transformer."""
    microbatch_size: int = setting(0, low=0, panel="Model", policies=LANGUAGE)
    """Sequences of a language model in one pass with gradients; 0: as many as fit into memory."""
    gradient_checkpointing: bool = setting(False, panel="Model", policies=LANGUAGE)
    """Compute the blocks of a language model again in the backward pass, which needs less memory and more time."""
    threads: int = setting(0, low=0, panel="Model")
    """CPU threads; 0: torch's default."""
    parallel: Literal["ddp", "fsdp"] = setting("ddp", panel="Cluster", policies=LANGUAGE)
    """Several processes (torchrun): each has all weights, or a shard of weights, gradients and optimizer."""
    weight_transfer: Literal["", "executor", "gloo", "nccl"] = setting("", panel="Cluster", policies=LANGUAGE)
    """How workers receive new weights: from the driver by the executor, or from all learners by a broadcast of
    torch.distributed (gloo, or nccl between GPUs); empty: executor for one learner, gloo for several."""
    seed: int = setting(0, low=0, panel="Run", usual=True)
    """Seed of all randomness."""

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


def make_config(algorithm: str, hyperparameters: Values) -> AlgorithmConfig:
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


def split_values(values: Values) -> tuple[Json, Json]:
    """Split plain values into settings of the run and hyperparameters of the algorithm."""
    own = {f.name for f in fields(TrainSettings)}
    return (
        {name: value for name, value in values.items() if name in own},
        {name: value for name, value in values.items() if name not in own},
    )
