"""Settings of a recipe: one dataclass that is the Python call, the command line and the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, field, fields
from pathlib import Path
from typing import Any, TypeVar

from palaestra.core.errors import RunError, SettingsError, suggest
from palaestra.runs.run import Run

S = TypeVar("S")


def setting(default: Any, help: str) -> Any:
    """A field of a settings dataclass with its default and its line of documentation."""
    return field(default=default, metadata={"help": help})


def build(kind: type[S], values: Mapping[str, Any]) -> S:
    """Settings of `kind` from plain values, each checked against the type of its field.

    Raises:
        SettingsError: an unknown key (with the nearest known one), or a value of the wrong type.
    """
    import json

    from pydantic import TypeAdapter, ValidationError

    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise SettingsError(f"unknown setting '{name}'; {suggest(name, known)}")
    try:
        # By way of JSON, so that a file, the command line and a call are held to the same rules.
        settings: S = TypeAdapter(kind).validate_json(json.dumps(dict(values)), strict=True)
        return settings
    except TypeError as error:
        raise SettingsError(f"settings must be plain values: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise SettingsError(f"setting '{name}': {first['msg'].lower()}; got {first['input']!r}") from error


def given(kind: type[S], settings: S | None, values: Mapping[str, Any]) -> S:
    """The settings of a call: all at once, or single values as keywords, not both."""
    if settings is not None and values:
        raise SettingsError(f"give the settings or single values, not both; got both: {', '.join(sorted(values))}")
    return settings if settings is not None else build(kind, values)


def of_run(kind: type[S], run: Run) -> S:
    """The settings that a run was started with."""
    try:
        return build(kind, run.settings)
    except SettingsError as error:
        raise RunError(f"the run folder is damaged: {run.folder / 'settings.json'}: {error}") from error


def read_file(kind: type[S], path: Path, overrides: Mapping[str, Any]) -> S:
    """Settings from a JSON file, some of them overridden."""
    import json

    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"there is no settings file {path}") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"the settings file {path} is not JSON: {error}") from error
    if isinstance(values, dict) and {"recipe", "settings"} <= set(values):
        values = values["settings"]  # The settings.json of a run folder serves as well.
    if not isinstance(values, dict):
        raise SettingsError(f"the settings file {path} must hold an object; got {type(values).__name__}")
    return build(kind, {**values, **overrides})


def to_plain(settings: Any) -> dict[str, Any]:
    """Settings as plain values for a file."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}


def documented(kind: type[Any]) -> list[tuple[str, Any, str]]:
    """Name, default and documentation of every setting of `kind`."""
    return [(f.name, None if f.default is MISSING else f.default, f.metadata.get("help", "")) for f in fields(kind)]


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` unless `condition` holds."""
    if not condition:
        raise SettingsError(message)


def named_values(texts: Sequence[str], name: str) -> dict[str, Any]:
    """Options that are given as `name=value`, each value in JSON; a bare word is a text.

    Arguments:
        name: of the setting, for errors.

    >>> named_values(["path=data", "shots=4"], "task_options")
    {'path': 'data', 'shots': 4}
    """
    import json

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        require(bool(equals and key), f"setting '{name}': expected name=value; got {text!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def finite(settings: Any) -> None:
    """Raise `SettingsError` for the first setting that is infinite, or no number."""
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, float):
            require(math.isfinite(value), f"setting '{f.name}': expected a finite number; got {value}")


def within(settings: Any, least: float, most: float, *names: str) -> None:
    """Raise `SettingsError` for the first of the named settings that is below `least` or above `most`."""
    for name in names:
        value = getattr(settings, name)
        require(least <= value <= most, f"setting '{name}': expected {least} to {most}; got {value}")


def at_least(settings: Any, minimum: int, *names: str) -> None:
    """Raise `SettingsError` for the first of the named settings that is below `minimum`."""
    for name in names:
        value = getattr(settings, name)
        require(value >= minimum, f"setting '{name}': expected at least {minimum}; got {value}")
