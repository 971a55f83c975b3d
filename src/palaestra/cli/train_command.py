"""The `train` command: its options include the hyperparameters of the algorithms, from their config dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import typer
from typer.core import TyperCommand

from palaestra.cli.options import make_options, name_flag
from palaestra.core.errors import SettingsError
from palaestra.core.plugins import load_plugins


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
    """Options of the hyperparameters of all algorithms. If `chosen` exists, those of the others are hidden."""
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
    """The values of an option in a command line that is not parsed yet."""
    pairs = zip(args, [*args[1:], ""], strict=True)
    values = [following for argument, following in pairs if argument == option]
    return values + [argument.partition("=")[2] for argument in args if argument.startswith(f"{option}=")]
