"""Options of a command from the settings of its recipe: one definition, no copy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from palaestra.recipes.settings import build, read_file

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="A JSON file of settings, or a run's settings.json; options override it."),
]


def from_settings(
    kind: type[Any], command: Callable[..., None], several: Sequence[str] = (), without: Sequence[str] = ()
) -> Callable[..., None]:
    """A command that takes every field of `kind` as an option and is called with the settings.

    `command(settings, **rest)` keeps its own further parameters. An option that is not given stays
    at the value of the settings file, and without one at its default. Of options in `several` more than one value
    may be given, with commas between them: the settings have the first, and all go to `command` as `grid`. Fields in
    `without` get no option.
    """
    hints = get_type_hints(kind)
    own = [
        p
        for name, p in inspect.signature(command, eval_str=True).parameters.items()
        if name not in ("settings", "grid")
    ]
    options = []
    for f in fields(kind):
        if f.name in without:
            continue
        hint = hints[f.name]
        help_text = f"{f.metadata['help']} [default: {_shown(f.default)}]"
        choices = get_args(hint) if get_origin(hint) not in (tuple, list) and isinstance(f.default, str) else ()
        if f.default == ():
            annotation: Any = Annotated[list[str] | None, typer.Option(f"--{_flag(f.name)}", help=help_text)]
        elif choices:
            annotation = Annotated[
                str | None,
                typer.Option(
                    f"--{_flag(f.name)}", help=help_text, metavar="|".join(choice for choice in choices if choice)
                ),
            ]
        else:
            both = f"/--no-{_flag(f.name)}" if f.default is True else ""
            annotation = Annotated[hint | None, typer.Option(f"--{_flag(f.name)}{both}", help=help_text)]
        options.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    options.append(
        inspect.Parameter("settings_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SettingsFile)
    )

    def call(**given: Any) -> None:
        path = given.pop("settings_file")
        rest = {p.name: given.pop(p.name) for p in own}
        values = {
            name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None and v != []
        }
        grid = {name: str(values[name]).split(",") for name in several if "," in str(values.get(name, ""))}
        values |= {name: choices[0] for name, choices in grid.items()}
        settings = read_file(kind, path, values) if path else build(kind, values)
        command(settings, **rest, **({"grid": grid} if several else {}))

    call.__signature__ = inspect.Signature([*options, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own)])  # type: ignore[attr-defined]
    call.__doc__ = command.__doc__
    return call


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


def _shown(default: Any) -> str:
    if isinstance(default, (int, float)) and default == -1:
        return "what suits"
    if default is None:
        return "none"
    return "none given" if default == () else repr(default) if default == "" else str(default)
