"""Command-line options from the settings of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from palaestra.core.errors import SettingsError
from palaestra.core.plugins import load_plugins
from palaestra.recipes.executor_settings import ExecutorSettings
from palaestra.recipes.settings import build, load_values

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Task": (
        "task", "task_options", "env", "env_options", "skills", "split", "problems", "limit", "shots", "validation_tasks",
        "test_tasks", "validation", "test", "test_every_round", "mlgym", "datasets_path", "held_out_path", "test_size",
        "validation_size",
    ),
    "Model": (
        "model", "model_name", "student", "policy", "method", "rank", "critic", "width", "layers", "window", "activation",
        "normalize_observations", "scale_actions", "engine", "engine_options", "engine_batch", "device", "microbatch_size",
        "gradient_checkpointing", "threads",
    ),
    "Rollouts": ("rollout", "max_staleness", "importance_clip_max"),
    "Teacher": (
        "teacher", "teacher_options", "writer", "planner", "prompts", "state", "references", "quality", "checks", "verify",
        "verifier", "discover",
        "skills_file", "categories", "discover_train", "rounds", "lesson_size", "budget", "top_up", "accumulate",
    ),
    "Agent": (
        "agent", "agent_config", "tools", "parser", "commands", "history", "strategy", "demonstration",
        "format_errors", "format_penalty", "memory", "sandbox", "context",
    ),
    "Sampling": ("temperature", "top_p", "max_tokens", "answer_tokens", "samples", "stop", "prompt"),
    "Limits on model calls": ("max_cost", "max_calls", "call_timeout", "in_flight", "cache"),
    "Evaluation": ("evaluate_every", "evaluation"),
    "Cluster": ("executor", "parallel", "worker_cpus", "worker_gpus", "worker_memory"),
    "Run": (
        "plugins", "settings_file", "out", "tags", "seed", "seeds", "checkpoint_every", "checkpoint_seconds", "checkpoints", "keep",
        "keep_trajectories", "keep_alternatives", "tensorboard", "wandb", "trackio", "workers", "dry_run", "reward_model_path", "resume_checkpoint",
    ),
}  # fmt: skip
"""The panels of `--help` with the settings in each."""
LEARNING = "Learning"
"""The panel of all other settings; for `research` it is "Agent"."""
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="A file of settings (JSON, YAML or TOML), or a run's settings.json; options override it.",
        rich_help_panel="Run",
    ),
]

_CLUSTER = ExecutorSettings.__dataclass_fields__
ExecutorName = Annotated[
    str, typer.Option("--executor", help=_CLUSTER["executor"].metadata["help"], rich_help_panel="Cluster")
]
WorkerCpus = Annotated[float, typer.Option(help=_CLUSTER["worker_cpus"].metadata["help"], rich_help_panel="Cluster")]
WorkerGpus = Annotated[float, typer.Option(help=_CLUSTER["worker_gpus"].metadata["help"], rich_help_panel="Cluster")]
WorkerMemory = Annotated[
    float, typer.Option(help=_CLUSTER["worker_memory"].metadata["help"], rich_help_panel="Cluster")
]


def from_settings(
    kind: type[Any],
    command: Callable[..., None],
    several: Sequence[str] = (),
    without: Sequence[str] = (),
    build_settings: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Callable[..., None]:
    """Make a command that has every field of `kind` as an option, and calls `command(settings, **rest)`.

    An option that is not given keeps the value of the settings file, or its default.

    Arguments:
        command: its further parameters also become options.
        several: options that take several values, separated by commas. The settings hold the first of them; all of
            them are passed to `command` as `grid`.
        without: fields that get no option.
        build_settings: builds the settings from plain values; by default `palaestra.recipes.settings.build`.
    """
    own = [
        p
        for name, p in inspect.signature(command, eval_str=True).parameters.items()
        if name not in ("settings", "grid")
    ]
    rest_group = "Agent" if "agent" in get_type_hints(kind) else LEARNING
    groups = {f.name: _find_group(f.name, rest_group) for f in fields(kind)}
    options = make_options(kind, groups, without=without)
    order = [*GROUPS, LEARNING]
    options.sort(key=lambda option: order.index(groups[option.name]))
    options.append(
        inspect.Parameter("settings_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SettingsFile)
    )

    def call(**given: Any) -> None:
        path = given.pop("settings_file")
        rest = {p.name: given.pop(p.name) for p in own}
        given |= given.pop("hyperparameters", None) or {}  # Collected by `TrainCommand`.
        values = {
            name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None and v != []
        }
        grid = {name: str(values[name]).split(",") for name in several if "," in str(values.get(name, ""))}
        values |= {name: choices[0] for name, choices in grid.items()}
        if path:
            values = {**load_values(path, overridden=values), **values}
        settings = (build_settings or partial(build, kind))(values)
        command(settings, **rest, **({"grid": grid} if several else {}))

    call.__signature__ = inspect.Signature([*options, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)])  # type: ignore[attr-defined]
    call.__doc__ = command.__doc__
    return call


def make_options(
    kind: type[Any],
    groups: Mapping[str, str],
    *,
    without: Sequence[str] = (),
    presets: Sequence[str] = (),
    hidden: bool = False,
) -> list[inspect.Parameter]:
    """Make an option for every field of a settings dataclass.

    Arguments:
        groups: the panel of each field in `--help`.
        without: fields without an option.
        presets: fields whose default depends on the environment.
        hidden: whether the options are left out of `--help`.
    """
    hints = get_type_hints(kind)
    options = []
    for f in fields(kind):
        if f.name in without:
            continue
        hint, name, metavar = _remove_none(hints[f.name]), name_flag(f.name), None
        flag = f"--{name}"
        if f.default == ():
            flag = flag.removesuffix("s")  # Given several times, each with one value: --skill addition --skill clock.
            metavar = "NAME=VALUE" if f.name.endswith("_options") else "FILE|MODULE" if f.name == "plugins" else "TEXT"
            hint = list[str]
        elif get_origin(hint) is Literal:
            hint, metavar = str, "|".join(choice for choice in get_args(hint) if choice)
        elif get_origin(hint) is Mapping:
            hint = str
        elif hint is bool and f.default is not False:
            flag += f"/--no-{name}"
        option = typer.Option(
            flag,
            help=f.metadata["help"],
            metavar=metavar,
            show_default="by environment" if f.name in presets else _describe_default(f.default),
            rich_help_panel=groups[f.name],
            hidden=hidden or get_origin(hints[f.name]) is Mapping,
        )
        annotation: Any = Annotated[hint | None, option]
        options.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return options


def _remove_none(hint: Any) -> Any:
    """Return `int` for `int | None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = [part for part in get_args(hint) if part is not NoneType]
    return kind


def name_flag(name: str) -> str:
    return name.replace("_", "-")


def _find_group(name: str, rest_group: str) -> str:
    group = next((group for group, names in GROUPS.items() if name in names), rest_group)
    return rest_group if (group, rest_group) == ("Teacher", "Agent") else group


def _describe_default(default: Any) -> str | bool:
    """Return the default for `--help`. `False` shows none; the help text then explains the empty value."""
    if default is None or default in ("", ()):
        return False
    if isinstance(default, (int, float)) and default == -1:
        return "automatic"
    return str(default)


class TrainCommand(TyperCommand):
    """Adds the hyperparameters of all registered algorithms, also those of plugins, to the options of `train`.

    With `--algorithm NAME` the help lists the hyperparameters of that algorithm only. Those of other algorithms are
    parsed as well, so that the error can name the algorithm that does not have them.
    """

    _hyperparameters: Sequence[Any] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from palaestra.recipes.train.settings import RENAMED

        for name, new in RENAMED.items():
            if any(argument.split("=")[0] == f"--{name_flag(name)}" for argument in args):
                raise SettingsError(f"option '--{name_flag(name)}' is now '--{name_flag(new)}'")
        load_plugins(_find_values(args, "--plugin"))
        self._hyperparameters = _make_hyperparameter_options(next(iter(_find_values(args, "--algorithm")), ""))
        rest = super().parse_args(ctx, args)
        # Typer passes only the parameters of the function: all hyperparameters are the value of one of them.
        ctx.params["hyperparameters"] = {option.name: ctx.params.pop(option.name) for option in self._hyperparameters}
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *self._hyperparameters]


def _make_hyperparameter_options(chosen: str) -> Sequence[Any]:
    """Make options for the hyperparameters of all algorithms. If `chosen` exists, those of the others are hidden."""
    from palaestra.learn.algorithms import ALGORITHMS
    from palaestra.recipes.train.settings import list_preset_names

    names = sorted(ALGORITHMS.names(), key=lambda name: name != chosen)
    panel = (
        f"Hyperparameters of {chosen}"
        if chosen in names
        else "Hyperparameters (of one algorithm: --algorithm NAME --help)"
    )
    options: dict[str, inspect.Parameter] = {}
    for name in names:
        config = ALGORITHMS.get(name).Config
        groups = dict.fromkeys((f.name for f in fields(config)), panel)
        hidden = chosen in names and name != chosen
        for option in make_options(config, groups, presets=list_preset_names(name), hidden=hidden):
            options.setdefault(option.name, option)

    def command(**values: Any) -> None: ...

    command.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    params: Sequence[Any] = typer.main.get_command(app).params
    return params


def _find_values(args: Sequence[str], option: str) -> list[str]:
    """Return the values of an option in an unparsed command line."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    values = [following for argument, following in pairs if argument == option]
    return values + [argument.partition("=")[2] for argument in args if argument.startswith(f"{option}=")]
