"""The settings of the recipes as keyword arguments. Generated from their dataclasses: `make stub`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

class EvaluateKeywords(TypedDict, total=False):
    name: str
    tags: Sequence[str]
    executor: str
    worker_cpus: float
    worker_gpus: float
    worker_memory: float
    engine: str
    engine_kwargs: Mapping[str, Any]
    plugins: Sequence[str]
    task: object
    task_kwargs: Mapping[str, Any]
    model: object
    split: Literal["train", "validation", "test"]
    problems: int
    limit: int
    skills: Sequence[str]
    shots: int
    samples: int
    max_tokens: int
    temperature: float
    top_p: float
    stop: Sequence[str]
    prompt: Literal["chat", "plain"]
    max_cost: float
    call_timeout: float
    engine_batch: int
    device: str
    threads: int
    seed: int
    tokenizer: object

class ResearchKeywords(TypedDict, total=False):
    name: str
    tags: Sequence[str]
    engine: str
    engine_kwargs: Mapping[str, Any]
    task: object
    task_kwargs: Mapping[str, Any]
    mlgym: str
    agent: str
    agent_config: str
    model: object
    plugins: Sequence[str]
    steps: int
    seconds: float
    max_cost: float
    max_calls: int
    max_tokens: int
    call_timeout: float
    context: int
    answer_tokens: int
    temperature: float
    top_p: float
    tools: bool
    parser: str
    commands: Sequence[str]
    history: Sequence[str]
    strategy: bool
    demonstration: str
    format_errors: int
    format_penalty: float
    prompts: object
    memory: str
    cache: str
    sandbox: str
    device: str
    seed: int

class TeachKeywords(TypedDict, total=False):
    name: str
    tags: Sequence[str]
    executor: str
    worker_cpus: float
    worker_gpus: float
    worker_memory: float
    engine: str
    engine_kwargs: Mapping[str, Any]
    plugins: Sequence[str]
    task: object
    task_kwargs: Mapping[str, Any]
    validation_tasks: Sequence[str]
    test_tasks: Sequence[str]
    student: object
    learning: str
    student_kwargs: Mapping[str, Any]
    trainer: Literal["palaestra", "llama-factory"]
    trainer_kwargs: Mapping[str, Any]
    start: Literal["base", "last"]
    keep: Literal["last", "best"]
    rehearsal: float
    checkpoints: Literal["kept", "all"]
    teacher: str | type[Any]
    teacher_kwargs: Mapping[str, Any]
    writer: str
    planner: str
    prompts: object
    state: Literal["on", "off"]
    references: bool
    quality: Literal["auto", "on", "off"]
    checks: Sequence[str]
    verify: str
    verifier: str
    skills: Sequence[str]
    discover: str
    skills_file: str
    categories: int
    discover_train: int
    rounds: int
    lesson_size: int
    budget: int
    validation: int
    test: int
    test_every_round: bool
    top_up: int
    accumulate: int
    answer_tokens: int
    max_cost: float
    max_calls: int
    max_tokens: int
    call_timeout: float
    in_flight: int
    cache: str
    method: Literal["auto", "full", "lora"]
    epochs: int
    batch_size: int
    learning_rate: float
    rank: int
    optimizer: Literal["auto", "adamw", "muon"]
    freeze_vision: bool
    engine_batch: int
    device: str
    threads: int
    checkpoint_seconds: float
    seed: int
    tokenizer: object

class TrainKeywords(TypedDict, total=False):
    name: str
    tags: Sequence[str]
    executor: str
    worker_cpus: float
    worker_gpus: float
    worker_memory: float
    engine: str
    engine_kwargs: Mapping[str, Any]
    plugins: Sequence[str]
    env: object
    environments: tuple[Mapping[str, Any], ...]
    env_kwargs: Mapping[str, Any]
    task: object
    task_kwargs: Mapping[str, Any]
    prompts: object
    reward: object
    reward_weights: Sequence[float]
    algorithm: object
    hyperparameters: Mapping[str, Any]
    policy: Literal["lm", "mlp", "cnn", "transformer", "set", "plan"] | None
    model: object
    method: Literal["auto", "full", "lora"]
    rank: int
    critic: Literal["head", "separate"]
    iterations: int | None
    num_envs: int | None
    episodes: int | None
    curriculum: str
    n_steps: int | None
    rollout: Literal["step", "engine"] | None
    rollout_servers: str
    max_staleness: int
    overdue: Literal["wait", "drop", "cut", "continue"]
    importance_clip_max: float
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int | None
    agent: str
    agent_timeout: float
    agent_start: Literal["spawn", "fork"]
    override_sampling: bool
    normalize_observations: bool | None
    normalize_rewards: bool
    scale_actions: bool | None
    activation: Literal["relu", "tanh"] | None
    reward_scale: float | None
    width: int
    layers: int
    window: int
    evaluate_every: int
    evaluation: int | None
    stop_at: float | None
    checkpoint_every: int | None
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
    weight_transfer: Literal["", "executor", "gloo", "nccl"]
    seed: int
    learning_rate: float
    kl_coef: float | None
    max_grad_norm: float
    weight_decay: float
    lr_schedule: Literal["constant", "linear", "cosine"]
    critic_learning_rate: float
    n_epochs: int
    batch_size: int | None
    credit: Literal["token", "turn"] | Literal["episode", "turn"]
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
    loss_aggregation: Literal["token", "turn", "sequence", "constant"] | None
    scale_rewards: bool | None
    mask_truncated_completions: bool | None
    importance_sampling_level: Literal["token", "sequence"]
    baseline: Literal["batch", "critic", "none"]
    tokenizer: object
