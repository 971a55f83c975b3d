"""`palaestra export`: an environment as a package for another library."""

from __future__ import annotations

from typing import Annotated

import typer

from palaestra.cli.terminal import quiet, say


def export(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A turn environment, as --env of `palaestra train`.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="The library: see `palaestra list exporters`.")],
    env_option: Annotated[
        list[str] | None,
        typer.Option("--env-option", metavar="NAME=VALUE", help="An option of the environment, several times."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="The name of the package; by default from the id.")] = "",
    out: Annotated[str, typer.Option("--out", help="The folder to write; by default the name of the package.")] = "",
) -> None:
    """Write a turn environment as a package for another library, such as verifiers."""
    from palaestra.integrations.export.base import export_environment
    from palaestra.recipes.settings import parse_options

    quiet()
    folder = export_environment(env, to, out, parse_options(env_option or (), "env_options"), name)
    say(f"package: {folder}")
    say(f"install it with: pip install {folder.resolve()}")  # A bare name would be a package of PyPI.
