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

from palaestra.recipes.settings import build, read_values

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Task": (
        "task", "task_options", "env", "env_options", "skills", "split", "problems", "limit", "shots", "validation_tasks",
        "test_tasks", "validation", "test", "test_every_round", "mlgym", "datasets_path", "held_out_path", "test_size",
        "validation_size",
    ),
    "Model": (
        "model", "model_name", "student", "policy", "method", "rank", "critic", "width", "layers", "window", "activation",
        "normalize_observations", "engine_batch", "device", "threads",
    ),
    "Teacher": (
        "teacher", "teacher_options", "writer", "planner", "prompts", "state", "references", "quality", "checks", "discover",
        "skills_file", "categories", "discover_train", "rounds", "lesson_size", "budget", "top_up", "accumulate",
    ),
    "Agent": (
        "agent", "agent_config", "tools", "parser", "commands", "history", "strategy", "demonstration",
        "format_errors", "format_penalty", "memory", "sandbox", "context",
    ),
    "Sampling": ("temperature", "top_p", "max_tokens", "answer_tokens", "samples", "stop", "prompt"),
    "Limits of calls to models": ("max_cost", "max_calls", "call_timeout", "in_flight", "cache"),
    "Evaluation": ("evaluate_every", "evaluation"),
    "Run": (
        "plugins", "settings_file", "out", "seed", "seeds", "checkpoint_every", "checkpoint_seconds", "checkpoints", "keep",
        "keep_trajectories", "tensorboard", "wandb", "workers", "dry_run", "reward_model_path", "resume_checkpoint",
    ),
}  # fmt: skip
"""The panels of `--help` with the settings in each."""
LEARNING = "Learning"
"""The panel of all other settings; that of `research` is the agent's."""
SINGULAR = {
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
}
"""Repeatable options are named in the singular: `--skill addition --skill clock`."""
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings",
        help="A JSON file of settings, or a run's settings.json; options override it.",
        rich_help_panel="Run",
    ),
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
            values = {**read_values(path), **values}
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
        hint, flag, metavar = _remove_none(hints[f.name]), f"--{name_flag(f.name)}", None
        if f.default == ():
            metavar = "NAME=VALUE" if f.name.endswith("_options") else "FILE|MODULE" if f.name == "plugins" else "TEXT"
            hint = list[str]
        elif get_origin(hint) is Literal:
            hint, metavar = str, "|".join(choice for choice in get_args(hint) if choice)
        elif get_origin(hint) is Mapping:
            hint = str
        elif hint is bool and f.default is not False:
            flag += f"/--no-{name_flag(f.name)}"
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
    """`int` for `int | None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    [kind] = [part for part in get_args(hint) if part is not NoneType]
    return kind


def name_flag(name: str) -> str:
    return SINGULAR.get(name, name.replace("_", "-"))


def _find_group(name: str, rest_group: str) -> str:
    group = next((group for group, names in GROUPS.items() if name in names), rest_group)
    return rest_group if (group, rest_group) == ("Teacher", "Agent") else group


def _describe_default(default: Any) -> str | bool:
    """The default for `--help`. `False` shows none; the help text then explains the empty value."""
    if default is None or default in ("", ()):
        return False
    if isinstance(default, (int, float)) and default == -1:
        return "automatic"
    return str(default)
