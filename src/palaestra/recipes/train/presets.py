"""The presets of `palaestra train` by environment, and settings from plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from typing import Literal

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.records import LOCAL_SCHEME, Json, Values
from palaestra.core.registry import load_plugins
from palaestra.core.tables import load_table
from palaestra.recipes.embedded_models import choose_model_for_env
from palaestra.recipes.settings import build, require
from palaestra.recipes.train.mixture import join_environments, read_environments, split_environments
from palaestra.recipes.train.settings import CLASSIC, LANGUAGE, TrainSettings, make_config, split_values
from palaestra.rl.algorithms import ALGORITHMS, AlgorithmConfig
from palaestra.rl.curriculum import CURRICULA, UNIFORM, Curriculum

# Runs of earlier versions have no `scale_actions` in their settings: their policies act without a scale.
PRESETS: Mapping[str | tuple[str, ...], Values] = {
    tuple(name.split()) if " " in name else name: row for name, row in load_table(__file__, "presets").items()
}
"""Default settings and hyperparameters: for a kind of environment, for a kind and an algorithm, for a policy and an
algorithm, for an environment, and for an environment and an algorithm. The more specific preset takes precedence. The results in `docs/results.md` were measured
with these presets."""


_TRL_NAMES = {
    "reward_funcs": "reward", "train_dataset": "prompts", "processing_class": "tokenizer", "num_generations": "group_size",
    "max_completion_length": "max_tokens", "beta": "kl_coef", "num_iterations": "n_epochs", "max_steps": "iterations",
    "epsilon": "clip_range", "epsilon_high": "clip_range_high", "loss_type": "variant", "args": "algorithm",
}  # fmt: skip
"""Our names of what TRL's GRPO calls otherwise."""


def find_preset(kind: str, policy: str, env: str, algorithm: str) -> tuple[Json, Json]:
    """Return the preset settings and hyperparameters for an environment of a kind, a policy and an algorithm.

    Arguments:
        kind: `"control"`, `"token"` or `"turn"`.
    """
    # Turn environments use the token presets: training updates tokens.
    keys = (kind, ("token" if kind == "turn" else kind, algorithm), (policy, algorithm), env, (env, algorithm))
    return split_values({name: value for key in keys for name, value in PRESETS.get(key, {}).items()})


def make_settings(values: Values, given: Collection[str] | None = None) -> TrainSettings:
    """Build settings from plain values, and fill in the presets of the environment.

    Names that are not settings of the run are hyperparameters of the algorithm.

    Arguments:
        values: also accepts a config as the `algorithm`, one or several environments as the `env`, and one reward as the
            `reward`.
        given: the names that the user has given, which must have an effect; by default all.

    Raises:
        SettingsError: a value of the wrong type, or a setting without an effect on this run.
    """
    for name in values:
        require(name not in _TRL_NAMES, f"unknown setting '{name}' (of TRL); its name is '{_TRL_NAMES.get(name)}'")
    run, hyperparameters = split_values(values)
    hyperparameters = {**run.get("hyperparameters", {}), **hyperparameters}
    if isinstance(run.get("algorithm"), AlgorithmConfig):
        run["algorithm"], own = _name_algorithm(run["algorithm"])
        hyperparameters = {**own, **hyperparameters}
    if isinstance(run.get("reward"), str):
        run["reward"] = [run["reward"]]
    if "env" in run and not run.get("environments"):
        environments = read_environments(run["env"], run.get("env_kwargs", {}))
        run["environments"] = environments if len(environments) > 1 else []
        run |= {"env": environments[0]["env"], "env_kwargs": {}} if len(environments) > 1 else environments[0]
    if run.get("prompts"):
        run.setdefault("env", "palaestra/Prompts-v0")
    settings = build(TrainSettings, run | {"hyperparameters": hyperparameters})
    return fill_presets(settings, values if given is None else given)


def _name_algorithm(config: AlgorithmConfig) -> tuple[str, Json]:
    """The registered name of an algorithm and its hyperparameters, by its config."""
    for name in ALGORITHMS.names():
        if ALGORITHMS.get(name).Config is type(config):
            return name, asdict(config)
    raise SettingsError(f"setting 'algorithm': no algorithm with the config {type(config).__name__} is registered")


def _check_effects(settings: TrainSettings, given: Collection[str], policy: str) -> None:
    """Raise for the first setting that the user has given and that has no effect on this run."""
    has_adapter = settings.method != "full"
    if "rank" in given and policy == "lm":
        from palaestra.students.supervised import trains_adapter

        has_adapter = trains_adapter(settings.model or "nano", settings.method)
    unused = {
        "importance_clip_max": ("without an engine or max_staleness", settings.uses_engine or settings.max_staleness),
        "overdue": ("without max_staleness", settings.max_staleness),
        "rank": (f"because the method '{settings.method}' trains no adapter here; set 'method' to lora", has_adapter),
        "evaluate_every": ("because 'evaluation' is 0", settings.evaluation != 0),
    }
    for f in fields(TrainSettings):
        if f.name not in given or getattr(settings, f.name) is None:
            continue
        needs, policies = f.metadata.get("needs"), f.metadata.get("policies")
        if needs and not getattr(settings, needs):
            advice = "; to score answers, pass the data as the task" if f.name == "prompts" else ""
            raise SettingsError(f"setting '{f.name}' has no effect without the setting '{needs}'{advice}")
        if f.name in unused and not unused[f.name][1]:
            raise SettingsError(f"setting '{f.name}' has no effect {unused[f.name][0]}")
        if policies and policy not in policies:
            users = {LANGUAGE: "language models", CLASSIC: "classic environments"}.get(policies, " and ".join(policies))
            raise SettingsError(
                f"setting '{f.name}' has no effect: it is for {users}, and {settings.env} is played by the policy '{policy}'"
            )


def list_preset_names(algorithm: str) -> list[str]:
    """The hyperparameters of an algorithm whose default depends on the environment."""
    presets = [preset for key, preset in PRESETS.items() if isinstance(key, tuple) and key[1] == algorithm]
    return sorted({name for preset in presets for name in split_values(preset)[1]})


def fill_presets(settings: TrainSettings, given: Collection[str] = ()) -> TrainSettings:
    """Replace every `None` and every missing hyperparameter by the preset of the environment.

    Arguments:
        given: the names that the user has given, which must have an effect on the run.

    Raises:
        EnvError: the policy does not fit the environment.
        SettingsError: an unknown hyperparameter, a setting without effect, or episodes that cannot be divided into groups.
    """
    from palaestra.envs.factory import detect_kind

    if settings.is_filled:
        return settings
    load_plugins(settings.plugins)
    if settings.environments:
        return _fill_several(settings, given)
    kind = detect_kind(settings.env, settings.env_kwargs)
    language = kind != "control"
    policy = settings.policy or ("lm" if language else _choose_control_policy(settings))
    if (policy == "lm") != language:
        actions = {"token": "tokens", "turn": "messages", "control": "classic actions"}[kind]
        raise EnvError(
            f"policy '{policy}' does not fit {settings.env}, whose actions are {actions}; use "
            f"{'lm' if language else 'mlp, cnn, transformer, set or plan'}"
        )
    _check_effects(settings, given, policy)
    rollout = settings.rollout or ("engine" if settings.uses_engine else "step")
    require(
        not settings.agent or kind == "turn",
        f"setting 'agent': expected a turn environment, such as palaestra/Guess-v0; got {settings.env}",
    )
    require(
        not settings.agent or rollout == "engine",
        "setting 'rollout': expected engine, because an agent's calls are whole responses; got step",
    )
    others = {"engine": settings.engine != LOCAL_SCHEME, "agent": settings.agent, "executor": settings.uses_workers}
    require(
        not settings.rollout_servers or (rollout == "engine" and not any(others.values())),
        "setting 'rollout_servers': expected rollout engine, and neither an engine, an agent, workers nor max_staleness; got "
        f"{', '.join(name for name, value in others.items() if value) or f'rollout {rollout}'}",
    )
    require(
        language or rollout == "step",
        f"setting 'rollout': expected step for {settings.env}, whose actions are no text; got {rollout}",
    )
    require(
        language or not settings.uses_workers,
        f"settings 'executor' and 'max_staleness' are for language models; {settings.env} runs in this process",
    )
    require(
        rollout == "step" or (settings.top_p == 1.0 and settings.top_k == 0),
        "settings 'top_p' and 'top_k': expected rollout step; an engine does not return the tokens that it kept",
    )
    require(
        rollout == "step" or settings.overdue not in ("cut", "continue"),
        f"setting 'overdue': expected wait or drop for rollouts by an engine, which cannot be interrupted; got {settings.overdue}",
    )
    algorithm = settings.algorithm or ("grpo" if language else "ppo")
    ALGORITHMS.check(algorithm)
    preset, hyperparameters = find_preset(kind, policy, settings.env, algorithm)
    config = make_config(algorithm, {**hyperparameters, **settings.hyperparameters})
    require(
        "critic" not in given or config.needs_critic,
        f"setting 'critic' has no effect: the algorithm '{algorithm}' trains no critic here",
    )
    by_turn = [name for name in ("credit", "loss_aggregation") if getattr(config, name, "") == "turn"]
    require(
        not by_turn or kind == "turn",
        f"setting '{''.join(by_turn[:1])}': expected a turn environment for turn, such as palaestra/Guess-v0; got {settings.env}",
    )
    require(
        "credit" not in by_turn or not settings.agent,
        "setting 'credit': turn needs the reward of each turn, and an agent's episode has one reward; expected another value",
    )
    model = settings.model or (choose_model_for_env(settings.env, settings.options) if language else "nano")
    missing = {name: value for name, value in preset.items() if getattr(settings, name) is None}
    settings = replace(settings, policy=policy, algorithm=algorithm, rollout=rollout, model=model, **missing)
    settings = replace(settings, hyperparameters=asdict(config))
    require(
        kind == "token" or settings.curriculum == UNIFORM,
        f"setting 'curriculum': expected uniform for {settings.env}, whose episodes choose their own problems; got "
        f"{settings.curriculum}",
    )
    _check_curriculum(settings)
    name = "episodes" if language else "num_envs"
    count = getattr(settings, name)
    require(
        count % config.group_size == 0,
        f"setting '{name}': expected a multiple of the group size {config.group_size}; got {count}",
    )
    require(
        settings.overdue != "cut" or config.group_size <= (settings.num_envs or 0),
        f"setting 'num_envs': expected at least {config.group_size}, a group side by side, to cut overdue responses; got "
        f"{settings.num_envs}",
    )
    require(
        policy != "cnn" or not settings.normalize_observations,
        "setting 'normalize_observations' is for feature vectors; the policy cnn divides images by their upper bound",
    )
    return settings


def _fill_several(settings: TrainSettings, given: Collection[str]) -> TrainSettings:
    """Fill the presets of a run with several environments, each by its own."""
    for name in (*settings.own_options, "agent"):
        require(
            not getattr(settings, name),
            f"setting '{name}': expected one environment"
            + ("" if name == "agent" else f"; write it behind the environment: env=['ID,{name}=VALUE', ...]"),
        )
    require(not settings.uses_workers, "settings 'executor' and 'max_staleness': expected one environment")
    parts = [fill_presets(part, given) for part in split_environments(settings)]
    for part in parts:
        require(part.policy == "lm", f"setting 'env': several environments share a language model; {part.env} has none")
    settings = join_environments(settings, parts)
    _check_curriculum(settings)
    weights = {entry["weight"] for entry in settings.environments}
    require(
        settings.curriculum == UNIFORM or len(weights) == 1,
        f"setting 'env': the curriculum {settings.curriculum} chooses the environments; expected no weights",
    )
    return settings


def _check_curriculum(settings: TrainSettings) -> None:
    if settings.curriculum == UNIFORM:
        return
    curriculum: type[Curriculum] = CURRICULA.get(settings.curriculum)
    require(
        settings.make_config().group_size > 1 or not curriculum.needs_groups,
        f"setting 'curriculum': {settings.curriculum} compares the episodes of a group; use the algorithm grpo or rloo, "
        f"or another curriculum; got {settings.algorithm}",
    )


def _choose_control_policy(settings: TrainSettings) -> Literal["mlp", "cnn", "set", "plan"]:
    from palaestra.envs.factory import get_single_spaces
    from palaestra.rl.policies.convolutional import has_images
    from palaestra.rl.policies.sets import is_set_space

    spaces = get_single_spaces(settings.env, settings.env_kwargs)
    if is_set_space(*spaces):
        return "plan" if settings.algorithm == "cem" and settings.env == "palaestra/Lesson-v0" else "set"
    return "cnn" if has_images(spaces[0]) else "mlp"
