"""`palaestra new`: the beginning of your own environment, task, teacher, reward or research task."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from palaestra.cli.options import document
from palaestra.cli.terminal import say
from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.runs.files import check_empty_folder
from palaestra.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
_PACKAGE = "package"
"""The files that all packages share."""
NEW_KINDS = {
    "env": "pip install -e {folder} && palaestra train --env {module}:{title} --max-tokens 12",
    "task": "pip install -e {folder} && palaestra evaluate --task {name}",
    "teacher": "pip install -e {folder} && palaestra teach --teacher {name}",
    "reward": "palaestra train --prompts {folder}/prompts.jsonl --reward {folder}/{module}.py:reward --max-tokens 24",
    "research-task": "palaestra research --task {folder} --agent baseline",
}
"""What can be made, and the command that uses it. Each has a folder of templates."""
_GROUPS = {"env": "", "task": "palaestra.tasks", "teacher": "palaestra.teachers"}
"""The entry point group of each kind that is a package; environments have none, they are named `module:Class`."""


@document
def new(
    kind: Annotated[
        str, typer.Argument(metavar="|".join(NEW_KINDS), autocompletion=lambda incomplete: list(NEW_KINDS))
    ],
    name: Annotated[str, typer.Argument()],
    out: str = "",
) -> None:
    """Make a small package or folder for your own environment, task, teacher, reward or research task, with tests.

    Arguments:
        kind: What to make.
        name: Lower-case words with hyphens or underscores, for example my-game.
        out: The folder to write; by default the name.
    """
    from palaestra.integrations.export.base import render_templates, write_texts

    if kind not in NEW_KINDS:
        raise UnknownNameError("kind", kind, NEW_KINDS)
    if not re.fullmatch("[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise SettingsError(
            f"a name has lower-case letters, digits, and hyphens or underscores between them; got {name!r}"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise SettingsError(f"expected no name of a Python module and no keyword; got {name!r}")
    # A research task has the name of its folder.
    folder = Path(out or (module if kind == "research-task" else name))
    values = {"name": name, "module": module, "title": module.title().replace("_", ""), "folder": str(folder)}
    if kind == "research-task" and folder.name != module:
        raise SettingsError(f"the folder of a research task has its name; expected {module}; got {folder.name}")
    check_empty_folder(folder)
    use = NEW_KINDS[kind].format(**values)
    values |= {"use": use, "group": _GROUPS.get(kind, ""), "version": __version__}
    texts = render_templates(_TEMPLATES / _PACKAGE, module, values) if kind in _GROUPS else {}
    write_texts(folder, texts | render_templates(_TEMPLATES / kind, module, values))
    say(f"{kind}: {folder}")
    say(f"test it: cd {folder} && pytest")
    say(f"use it: {use}")
