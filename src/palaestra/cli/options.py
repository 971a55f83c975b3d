"""Command-line options from the settings of a recipe."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from palaestra.cli.listing import list_entries
from palaestra.cli.terminal import announce_loading, show_options
from palaestra.core.records import Values
from palaestra.core.registry import load_plugins
from palaestra.core.settings import describe_fields
from palaestra.recipes.settings import ExecutorSettings, build, load_values, parse_options

P = ParamSpec("P")
R = TypeVar("R")
PANELS = (
    "Task", "Model", "Teacher", "Agent", "Learning", "Sampling", "Rollouts", "Evaluation", "Limits on model calls", "Run",
    "Cluster",
)  # fmt: skip
"""The panels of `--help`, in the order of use."""
HELP_ALL = "--help-all"
USUAL = ("out", "seeds", "tasks", "agents")
"""Parameters of commands, beside their settings, that `--help` shows."""
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="A file of settings (JSON, YAML or TOML), or a run's settings.json; options override it.",
        rich_help_panel="Run",
    ),
]


def _show_all(context: typer.Context, value: bool) -> None:
    if value:
        show_options(context.command.params)
        typer.echo(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option(HELP_ALL, is_eager=True, callback=_show_all, help="Show every option and exit.")
]


def _option(name: str) -> Any:
    """The option of a setting of executors, for commands whose parameters it is."""
    return typer.Option(help=describe_fields(ExecutorSettings)[name], rich_help_panel="Cluster")


ExecutorName = Annotated[str, _option("executor")]
WorkerCpus = Annotated[float, _option("worker_cpus")]
WorkerGpus = Annotated[float, _option("worker_gpus")]
WorkerMemory = Annotated[float, _option("worker_memory")]


def from_settings(
    kind: type[Any],
    command: Callable[..., None],
    several: Sequence[str] = (),
    without: Sequence[str] = (),
    build_settings: Callable[[Values, Collection[str]], Any] | None = None,
) -> Callable[..., None]:
    """Make a command that has every field of `kind` as an option, and calls `command(settings, **rest)`.

    An option that is not given keeps the value of the settings file, or its default.

    Arguments:
        command: its further parameters also become options.
        several: options that take several values, separated by commas. The settings hold the first of them; all of
            them are passed to `command` as `grid`.
        without: fields that get no option.
        build_settings: builds the settings from plain values and the names that the command line has given; by default
            `palaestra.recipes.settings.build`.
    """
    own = [
        p
        for name, p in inspect.signature(command, eval_str=True).parameters.items()
        if name not in ("settings", "grid")
    ]
    usual = {f.name for f in fields(kind) if f.metadata.get("usual")}
    panels = {f.name: f.metadata.get("panel", "Learning") for f in fields(kind)}
    options = make_options(kind, panels, without=without)
    options.sort(key=lambda option: PANELS.index(panels[option.name]))
    options.append(
        inspect.Parameter("settings_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SettingsFile)
    )
    if usual:
        options = [_hide(p) if p.name not in usual else p for p in options]
        own = [_hide(p) if p.name not in USUAL else p for p in own]
        options.append(
            inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll)
        )

    def call(**given: Any) -> None:
        path = given.pop("settings_file")
        given.pop("help_all", None)
        rest = {p.name: given.pop(p.name) for p in own}
        given |= given.pop("hyperparameters", None) or {}  # Collected by `TrainCommand`.
        values = {
            name: parse_options(v, name) if name.endswith("_kwargs") else tuple(v) if isinstance(v, list) else v
            for name, v in given.items()
            if v is not None and v != []
        }
        grid = {name: str(values[name]).split(",") for name in several if "," in str(values.get(name, ""))}
        values |= {name: choices[0] for name, choices in grid.items()}
        names = set(values)
        if path:
            values = {**load_values(path, overridden=values), **values}
        settings = build_settings(values, names) if build_settings else build(kind, values)
        command(settings, **rest, **({"grid": grid} if several else {}))

    call.__signature__ = inspect.Signature([*options, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)])  # type: ignore[attr-defined]
    call.__doc__ = split_examples(command)[0]
    return call


def make_options(
    kind: type[Any],
    panels: Mapping[str, str],
    *,
    without: Sequence[str] = (),
    presets: Sequence[str] = (),
    hidden: bool = False,
) -> list[inspect.Parameter]:
    """Make an option for every field of a settings dataclass.

    Arguments:
        panels: the panel of each field in `--help`.
        without: fields without an option.
        presets: fields whose default depends on the environment.
        hidden: whether the options are left out of `--help`.
    """
    hints, texts = get_type_hints(kind), describe_fields(kind)  # type: ignore[arg-type]
    options = []
    for f in fields(kind):
        if f.name in without or not f.metadata.get("option", True):
            continue
        hint, name, metavar = _remove_none(hints[f.name]), name_flag(f.name), None
        flag = f"--{name}"
        has_pairs = f.name.endswith("_kwargs")
        if f.default == () or has_pairs:
            flag = flag.removesuffix("s")  # Given several times, each with one value: --skill addition --skill clock.
            metavar = "NAME=VALUE" if has_pairs else "FILE|MODULE" if f.name == "plugins" else None
            hint = list[str] if has_pairs else list[get_args(hint)[0]]  # type: ignore[misc]
        elif f.metadata.get("repeated"):
            hint = list[str]
        elif get_origin(hint) is Literal:
            hint, metavar = str, "|".join(choice for choice in get_args(hint) if choice)
        elif get_origin(hint) is Mapping:
            hint = str
        elif hint is bool and f.default is not False:
            flag += f"/--no-{name}"
        option = typer.Option(
            flag,
            help=texts[f.name],
            metavar=metavar,
            show_default="by environment" if f.name in presets else _describe_default(f.default),
            rich_help_panel=panels[f.name],
            hidden=hidden or (get_origin(hints[f.name]) is Mapping and not has_pairs),
            autocompletion=make_completion(f.metadata.get("names", ""), hints[f.name]),
        )
        annotation: Any = Annotated[hint | None, option]
        options.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return options


def _hide(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a copy of an option that `--help` does not show. Parameters without an option stay the same."""
    hint, *metadata = get_args(parameter.annotation) or (parameter.annotation, None)
    if not isinstance(metadata[0], typer.models.OptionInfo):
        return parameter
    option = copy(metadata[0])
    option.hidden = True
    return parameter.replace(annotation=Annotated[hint, option])


def make_completion(kind: str, hint: Any = None) -> Callable[[str], list[tuple[str, str]]] | None:
    """Make the function that completes a value in a shell with the names of a kind, or the choices of a `Literal`."""
    choices = (
        [str(choice) for choice in get_args(_remove_none(hint))] if get_origin(_remove_none(hint)) is Literal else []
    )
    if not kind and not choices:
        return None

    def complete(incomplete: str) -> list[tuple[str, str]]:
        if kind == "environments":
            from gymnasium import registry

            return list({**dict.fromkeys(registry, ""), **list_entries(kind)}.items())
        return list(list_entries(kind).items()) if kind else [(choice, "") for choice in choices]

    return complete


def _remove_none(hint: Any) -> Any:
    """Return `int` for `int | None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = [part for part in get_args(hint) if part is not NoneType]
    return kind


def document(function: Callable[P, R]) -> Callable[P, R]:
    """Let the parameters of a command have the help that the section `Arguments` of its docstring gives."""
    text, _, arguments = (inspect.getdoc(function) or "").partition("\n\nArguments:\n")
    texts = dict(re.findall(r"^    (\w+): (.+(?:\n     .+)*)", arguments, re.MULTILINE))
    signature = inspect.signature(function, eval_str=True)
    parameters = []
    for p in signature.parameters.values():
        hint, info = get_args(p.annotation) if get_origin(p.annotation) is Annotated else (p.annotation, typer.Option())
        if p.name in texts:
            info = copy(info)
            info.help = " ".join(texts[p.name].split())
            p = p.replace(annotation=Annotated[hint, info])
        parameters.append(p)
    function.__doc__ = text
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def split_examples(function: Callable[..., object]) -> tuple[str, str | None]:
    """Split the docstring of a command into the text of its help and the examples that end it, if there are any."""
    text, heading, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    return text, "\n\n".join(("Examples:", *map(str.strip, examples.splitlines()))) if heading else None


def name_flag(name: str) -> str:
    """The option of a setting, without dashes: `env-option` for `env_kwargs`, which is given once per name and value."""
    return name.replace("_kwargs", "_option").replace("_", "-")


def _describe_default(default: Any) -> str | bool:
    """Return the default for `--help`. `False` shows none; the help text then explains the empty value."""
    if default is None or default is MISSING or default in ("", ()):
        return False
    if isinstance(default, (int, float)) and default == -1:
        return "automatic"
    return str(default)


class TrainCommand(TyperCommand):
    """Adds the hyperparameters of all registered algorithms, also those of plugins, to the options of `train`.

    With `--algorithm NAME` the help lists the hyperparameters of that algorithm only. Those of other algorithms are
    parsed as well, so that the error can name the algorithm that does not have them. The help without an algorithm lists
    the usual ones, and loads no algorithm.
    """

    _hyperparameters: Sequence[Any] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        chosen = next(iter(_find_values(args, "--algorithm")), "")
        short = ctx.resilient_parsing or ("--help" in args and not chosen)
        if not short:
            if not {"--help", HELP_ALL} & set(args):
                announce_loading()
            load_plugins(_find_values(args, "--plugin"))
        self._hyperparameters = _make_hyperparameter_options(chosen, short)
        if ctx.resilient_parsing:
            show_options(self._hyperparameters)
        rest = super().parse_args(ctx, args)
        # Typer passes only the parameters of the function: all hyperparameters are the value of one of them.
        ctx.params["hyperparameters"] = {option.name: ctx.params.pop(option.name) for option in self._hyperparameters}
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *self._hyperparameters]


def _make_hyperparameter_options(chosen: str, short: bool = False) -> Sequence[Any]:
    """Make options for the hyperparameters of all algorithms. With `chosen`, those of the others are hidden.

    Arguments:
        short: make only those that all algorithms have, which loads no algorithm, and hide the unusual ones.
    """
    from palaestra.recipes.train.presets import list_preset_names
    from palaestra.rl.algorithms import ALGORITHMS, AlgorithmConfig

    if chosen:
        ALGORITHMS.check(chosen)
    names = sorted(ALGORITHMS.names(), key=lambda name: name != chosen)
    panel = f"Hyperparameters of {chosen}" if chosen else "Hyperparameters (of one algorithm: --algorithm NAME --help)"
    options: dict[str, inspect.Parameter] = {}
    if short:
        names, panels = [], {f.name: "Learning" for f in fields(AlgorithmConfig)}
        usual = {f.name for f in fields(AlgorithmConfig) if f.metadata["usual"]}
        shared = make_options(AlgorithmConfig, panels, presets=[*panels])
        options = {p.name: p if p.name in usual else _hide(p) for p in shared}
    for name in names:
        config = ALGORITHMS.get(name).Config
        panels = dict.fromkeys((f.name for f in fields(config)), panel)
        hidden = bool(chosen) and name != chosen
        for option in make_options(config, panels, presets=list_preset_names(name), hidden=hidden):
            options.setdefault(option.name, option)

    def command(**values: Any) -> None: ...

    command.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    params: Sequence[Any] = typer.main.get_command(app).params
    return params


def _find_values(args: Sequence[str], option: str) -> list[str]:
    """Return the values of an option in an unparsed command line."""
    pairs = zip(args, [*args[1:], ""], strict=False)
    values = [following for argument, following in pairs if argument == option]
    return values + [argument.partition("=")[2] for argument in args if argument.startswith(f"{option}=")]
