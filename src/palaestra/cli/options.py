"""Options of a command from the dataclass of its settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich.markup import escape
from typer.core import TyperCommand

from palaestra.core.errors import SettingsError
from palaestra.core.plugins import load_plugins
from palaestra.recipes.settings import build, read_values

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="A JSON file of settings, or a run's settings.json; options override it."),
]


def from_settings(
    kind: type[Any],
    command: Callable[..., None],
    several: Sequence[str] = (),
    without: Sequence[str] = (),
    build_settings: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Callable[..., None]:
    """Make a command with an option for every field of `kind`. It calls `command(settings, **rest)`.

    An option that is not given keeps the value of the settings file, or the default.

    Arguments:
        command: takes the settings; its other parameters are options of their own.
        several: options that accept several values, separated by commas. The settings get the first value; `command`
            gets all of them as `grid`.
        without: fields without an option.
        build_settings: builds the settings from plain values; by default `palaestra.recipes.settings.build`.
    """
    own = [
        p
        for name, p in inspect.signature(command, eval_str=True).parameters.items()
        if name not in ("settings", "grid")
    ]
    options = make_options(kind, without=without)
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
            values = {**read_values(path), **values}
        settings = (build_settings or partial(build, kind))(values)
        command(settings, **rest, **({"grid": grid} if several else {}))

    call.__signature__ = inspect.Signature([*options, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)])  # type: ignore[attr-defined]
    call.__doc__ = command.__doc__
    return call


def make_options(
    kind: type[Any],
    *,
    without: Sequence[str] = (),
    presets: Sequence[str] = (),
    panel: str | None = None,
    hidden: bool = False,
) -> list[inspect.Parameter]:
    """Make an option for every field of a settings dataclass.

    Arguments:
        without: fields without an option.
        presets: fields whose default depends on the environment.
        panel: the panel of the options in the help; by default that of the command.
        hidden: whether the options are left out of the help.
    """
    hints = get_type_hints(kind)
    options = []
    for f in fields(kind):
        if f.name in without:
            continue
        hint = _remove_none(hints[f.name])
        if get_origin(hint) is Mapping:
            hidden_text: Any = Annotated[str | None, typer.Option(hidden=True)]
            options.append(
                inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hidden_text)
            )
            continue
        default = "by environment" if f.name in presets else _describe_default(f.default)
        flag, metavar = f"--{_flag(f.name)}", None
        if f.default == ():
            hint = list[str]
        elif get_origin(hint) is Literal:
            hint, metavar = str, "|".join(choice for choice in get_args(hint) if choice)
        elif hint is bool and f.default is not False:
            flag += f"/--no-{_flag(f.name)}"
        option = typer.Option(
            flag,
            help=f"{f.metadata['help']} {escape(f'[default: {default}]')}",
            metavar=metavar,
            rich_help_panel=panel,
            hidden=hidden,
        )
        annotation: Any = Annotated[hint | None, option]
        options.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return options


class TrainCommand(TyperCommand):
    """The `train` command: its options, and the hyperparameters of the algorithm from the algorithm's own config.

    With `--algorithm NAME` the help lists the hyperparameters of that algorithm only. Those of other algorithms are
    parsed as well, so that the error can name the algorithm that does not have them.
    """

    _hyperparameters: Sequence[Any] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from palaestra.recipes.train.settings import RENAMED

        for name, new in RENAMED.items():
            if any(argument.split("=")[0] == f"--{_flag(name)}" for argument in args):
                raise SettingsError(f"option '--{_flag(name)}' is now '--{_flag(new)}'")
        load_plugins(_find_values(args, "--plugin"))
        self._hyperparameters = _make_hyperparameter_options(next(iter(_find_values(args, "--algorithm")), ""))
        rest = super().parse_args(ctx, args)
        # Typer passes only the parameters of the function: all hyperparameters are the value of one of them.
        ctx.params["hyperparameters"] = {option.name: ctx.params.pop(option.name) for option in self._hyperparameters}
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *self._hyperparameters]


def _make_hyperparameter_options(chosen: str) -> Sequence[Any]:
    """The options of the hyperparameters of all algorithms; those of `chosen` first, and the others hidden if it exists."""
    from palaestra.learn.algorithms import ALGORITHMS
    from palaestra.recipes.train.presets import list_preset_names

    names = sorted(ALGORITHMS.names(), key=lambda name: name != chosen)
    options: dict[str, inspect.Parameter] = {}
    for name in names:
        if chosen in names:
            panel, hidden = f"Hyperparameters of {chosen}", name != chosen
        else:
            panel, hidden = "Hyperparameters (--algorithm NAME --help lists those of one algorithm)", False
        config = ALGORITHMS.get(name).Config
        for option in make_options(config, presets=list(list_preset_names(name)), panel=panel, hidden=hidden):
            options.setdefault(option.name, option)

    def command(**values: Any) -> None: ...

    command.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    params: Sequence[Any] = typer.main.get_command(app).params
    return params


def _find_values(args: Sequence[str], option: str) -> list[str]:
    """The values of an option in a command line that is not parsed yet."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    values = [following for argument, following in pairs if argument == option]
    return values + [argument.partition("=")[2] for argument in args if argument.startswith(f"{option}=")]


def _remove_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = [part for part in get_args(hint) if part is not NoneType]
    return kind


def _flag(name: str) -> str:
    # `--skill addition --skill clock` reads better than `--skills` given twice.
    return {
        "skills": "skill",
        "env_options": "env-option",
        "task_options": "task-option",
        "validation_tasks": "validation-task",
        "test_tasks": "test-task",
        "teacher_options": "teacher-option",
        "student_options": "student-option",
        "checks": "check",
        "commands": "command",
        "plugins": "plugin",
    }.get(name, name.replace("_", "-"))


def _describe_default(default: Any) -> str:
    if isinstance(default, (int, float)) and not isinstance(default, bool) and default == -1:
        return "what suits"
    if default is None:
        return "automatic"
    return "none" if default in ((), "") else str(default)
