"""Settings of a recipe: one dataclass for the Python call, the command line and the settings file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from palaestra.core.errors import RunError, SettingsError, suggest
from palaestra.core.plugins import is_reference, make_absolute, make_reference
from palaestra.runs.files import read_json, read_text
from palaestra.runs.run import Run
from palaestra.runs.trust import check_trust, list_code

S = TypeVar("S")


def build(kind: type[S], values: Mapping[str, Any]) -> S:
    """Build settings of `kind` from plain values and check each value against the type of its field.

    Raises:
        SettingsError: an unknown key (the message names the nearest known one), or a value of the wrong type.
    """
    from pydantic import TypeAdapter, ValidationError

    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise SettingsError(f"unknown setting '{name}'; {suggest(name, known)}")
    try:
        # Validating JSON applies the same rules to a file, the command line and a Python call.
        settings: S = TypeAdapter(kind).validate_json(json.dumps(dict(values)), strict=True)
        return settings
    except TypeError as error:
        raise SettingsError(f"settings must be plain values: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise SettingsError(f"setting '{name}': {first['msg'].lower()}; got {first['input']!r}") from error


def resolve_settings(
    kind: type[S],
    settings: S | None,
    values: Mapping[str, Any],
    build_settings: Callable[[Mapping[str, Any]], S] | None = None,
) -> S:
    """Return the settings of a Python call, which passes either a settings object or single values as keywords.

    Classes among the values (a task, a teacher, an environment) become references. Paths of the user's code become
    absolute, so that a run can be resumed from another folder.

    Arguments:
        build_settings: builds the settings from the keywords; by default `build`.
    """
    if settings is not None and values:
        raise SettingsError(f"pass either settings or single values; got settings and {', '.join(sorted(values))}")
    if settings is None:
        values = {name: make_reference(v) if isinstance(v, type) else v for name, v in values.items()}
        settings = build_settings(values) if build_settings is not None else build(kind, values)
    changes: dict[str, Any] = {}
    for f in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, f.name)
        if f.name == "plugins":
            changes[f.name] = tuple(map(make_absolute, value))
        elif isinstance(value, str) and is_reference(value):
            changes[f.name] = make_absolute(value)
    return replace(settings, **changes) if changes else settings  # type: ignore[type-var]


def load_run_settings(kind: type[S], run: Run) -> S:
    """Load the settings of a run that is about to be continued.

    Raises:
        RunError: they are damaged, or name code that may not be run; see `palaestra.runs.trust`.
    """
    check_trust(run.folder, run.recipe, run.settings, trust=run.trusted)
    return read_run_settings(kind, run)


def read_run_settings(kind: type[S], run: Run) -> S:
    """Read the settings that a run was started with, as data."""
    try:
        return build(kind, run.settings)
    except SettingsError as error:
        raise RunError(f"the run folder is damaged: {run.folder / 'settings.json'}: {error}") from error


def read_values(path: Path) -> dict[str, Any]:
    """Read plain values from a file of settings in JSON, YAML or TOML, or from the `settings.json` of a run folder."""
    suffix = path.suffix.lower()
    kind = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}.get(suffix, "JSON")
    parsers: dict[str, Callable[[str], Any]] = {"TOML": tomllib.loads, "YAML": _parse_yaml, "JSON": json.loads}
    try:
        values: Any = parsers[kind](read_text(path, follow_link=True))
    except FileNotFoundError:
        raise SettingsError(f"the settings file {path} does not exist") from None
    except (RunError, ValueError, RecursionError) as error:
        raise SettingsError(f"the settings file {path} is not {kind}: {' '.join(str(error).split())}") from error
    if isinstance(values, dict) and {"recipe", "settings"} <= set(values):
        values = values["settings"]  # The settings.json of a run folder.
    if not isinstance(values, dict):
        raise SettingsError(f"the settings file {path} must contain names and values; got {type(values).__name__}")
    return values


def load_values(path: Path, overridden: Collection[str] = ()) -> dict[str, Any]:
    """Read the values for a new run, as `read_values` does.

    Arguments:
        overridden: names whose values the user has given otherwise.

    Raises:
        RunError: the file belongs to a run folder, and names code that is not this user's own.
    """
    values = read_values(path)
    whole = read_json(path, follow_link=True) if path.suffix.lower() == ".json" else None
    if whole is not None and whole != values:
        named = list_code(str(whole["recipe"]), {k: v for k, v in values.items() if k not in overridden})
        if named:
            check_trust(path.parent, str(whole["recipe"]), values, advice="to use them, repeat them as options")
    return values


def _parse_yaml(text: str) -> Any:
    """Parse YAML. Raises a `ValueError` if it is invalid."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-5 as a number, as in YAML 1.2; PyYAML reads it as a text."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def to_plain(settings: Any) -> dict[str, Any]:
    """Convert settings to plain values for a JSON file."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}


def list_settings(kind: type[Any]) -> list[tuple[str, Any, str]]:
    """List the name, default and documentation of every setting of `kind`."""
    return [(f.name, None if f.default is MISSING else f.default, f.metadata.get("help", "")) for f in fields(kind)]


def parse_options(texts: Sequence[str], name: str) -> dict[str, Any]:
    """Parse options of the form `name=value`. Values are JSON; anything else is a string.

    Arguments:
        name: the name of the setting, for error messages.

    >>> parse_options(["path=data", "shots=4"], "task_options")
    {'path': 'data', 'shots': 4}
    """
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        require(bool(equals and key), f"setting '{name}': expected name=value; got {text!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` if `condition` is false."""
    if not condition:
        raise SettingsError(message)
