"""Every command that a page shows exists and takes the options that the page gives it."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from doc_blocks import PAGES, list_commands, name_page
from typer.main import get_command

from palaestra.cli import terminal
from palaestra.cli.main import app
from palaestra.core.errors import SettingsError

GROUP = get_command(app)


@pytest.fixture(autouse=True, scope="module")
def _commands_are_built_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, build in terminal.BUILDERS.items():
            patch.setitem(terminal.BUILDERS, name, functools.cache(build))
        yield


def parse(command: str) -> None:
    """Parse a command as the shell would pass it, and do not run it."""
    # Placeholders of numbers in the text.
    arguments = ["2" if argument == "N" else argument for argument in shlex.split(command, comments=True)[1:]]
    if not arguments or arguments[0] in ("COMMAND", "--install-completion", "--version"):
        return
    group: click.Command = GROUP
    context = click.Context(group)
    while isinstance(group, click.Group) and arguments and not arguments[0].startswith("-"):
        _, group, arguments = group.resolve_command(context, arguments)
        assert group is not None
        context = click.Context(group)
    arguments = [argument for argument in arguments if argument not in ("--help", "--help-all")]
    if not arguments:  # The text names a command.
        return
    try:
        with group.make_context("palaestra", arguments):
            pass
    except SettingsError as error:
        if "the file does not exist" not in str(
            error
        ):  # A plugin of the page: its options are known when it is imported.
            raise


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for command in list_commands(page):
        try:
            parse(command)
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")
