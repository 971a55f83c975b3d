"""Settings of a recipe: one dataclass for the Python call, the command line and the settings file. Also the settings that recipes share."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from palaestra.core.errors import RunError, SettingsError, suggest
from palaestra.core.records import LOCAL_SCHEME, Json, Listener, Values, notice
from palaestra.core.registry import is_reference, is_temporary, make_absolute, make_reference
from palaestra.core.settings import describe_fields, setting, short_repr
from palaestra.engines.base import apply_engine, check_serves_weights
from palaestra.executors.base import EXECUTORS, Resources
from palaestra.recipes.own_data import is_dataset, store_data
from palaestra.recipes.own_model import is_model, keep_model, write_model
from palaestra.runs.files import read_json, read_text
from palaestra.runs.run import Run
from palaestra.runs.trust import check_trust, list_code, list_texts
from palaestra.tasks.sources import HUB, is_data

S = TypeVar("S")
_DATA = ("task", "prompts", "datasets_path", "held_out_path")
"""Settings that name data: a file, a folder, or a dataset on the hub."""
_MODELS = ("model", "student")
"""Settings that accept a model object in Python."""


def build(kind: type[S], values: Values) -> S:
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
        name = next((name for name, value in values.items() if not _is_plain(value)), "")
        raise SettingsError(f"setting '{name}': expected a plain value; got {short_repr(values[name])}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        if name.endswith("_kwargs") and first["type"] == "dict_type":
            raise SettingsError(
                f"setting '{name}': expected names and values, for example {{'name': 1}}; got {first['input']!r}"
            ) from error
        raise SettingsError(f"setting '{name}': {first['msg'].lower()}; got {first['input']!r}") from error


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def resolve_settings(
    kind: type[S], settings: S | None, values: Values, build_settings: Callable[[Values], S] | None = None
) -> S:
    """Return the settings of a Python call, which passes either a settings object or single values as keywords.

    Classes and functions among the values (a task, a teacher, a reward) become references. Data becomes a file, and a model
    object with its `tokenizer` a checkpoint. Paths of the user's code become absolute, so that a run can be resumed from
    another folder.

    Arguments:
        build_settings: builds the settings from the keywords; by default `build`.
    """
    if settings is not None and values:
        raise SettingsError(f"pass either settings or single values; got settings and {', '.join(sorted(values))}")
    if settings is not None and not isinstance(settings, kind):
        raise SettingsError(
            f"expected settings of type {kind.__name__}, or single values; got {type(settings).__name__}"
        )
    if settings is None:
        values = {name: _to_plain_value(name, value) for name, value in _write_models(values).items()}
        settings = build_settings(values) if build_settings is not None else build(kind, values)
    changes: Json = {f.name: _make_paths_absolute(f.name, getattr(settings, f.name)) for f in fields(settings)}  # type: ignore[arg-type]
    return replace(settings, **changes)  # type: ignore[type-var]


def _write_models(values: Values) -> Values:
    """Replace model objects by the paths of checkpoints, with the tokenizer among the values."""
    objects = {name: value for name, value in values.items() if name in _MODELS and is_model(value)}
    if not objects:
        require("tokenizer" not in values, "setting 'tokenizer': expected a model object beside it; pass model=object")
        return values
    rest = {name: value for name, value in values.items() if name != "tokenizer"}
    return rest | {name: write_model(value, values.get("tokenizer")) for name, value in objects.items()}


def _to_plain_value(name: str, value: Any) -> Any:
    """Replace classes, functions, paths and data by texts that name them, at any depth."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _to_plain_value(name, entry) for key, entry in value.items()}
    if name in _MODELS and not isinstance(value, str):
        raise SettingsError(
            f"setting '{name}': expected a name, a folder or a transformers model; got {short_repr(value)}"
        )
    if name == "task" and hasattr(value, "problems") and not isinstance(value, type):  # As `make_task` returns it.
        return make_reference(lambda: value, value.name)
    if name in _DATA and not isinstance(value, str) and not callable(value):
        if not is_dataset(value) and not isinstance(value, list | tuple):
            raise SettingsError(
                f"setting '{name}': expected a name, a file, rows or a dataset; got {short_repr(value)}"
            )
        return store_data(value)
    if isinstance(value, list | tuple):
        return [_to_plain_value(name, entry) for entry in value]
    return make_reference(value) if callable(value) else value


def _make_paths_absolute(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _make_paths_absolute("", entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_make_paths_absolute(name, entry) for entry in value)
    if not isinstance(value, str):
        return value
    if name in _DATA and is_data(value) and not value.startswith(HUB):
        return str(Path(value).expanduser().resolve())
    return make_absolute(value) if name == "plugins" or is_reference(value) else value


def prepare_resume(settings: S, folder: Path, listener: Listener) -> S:
    """Keep what a run of a Python call needs to be resumed, and tell the user what another process cannot load.

    Model objects become checkpoints in the run folder. Returns the settings with their paths.
    """
    paths = {name: getattr(settings, name) for name in _MODELS if hasattr(settings, name)}
    kept = {name: keep_model(path, folder) for name, path in paths.items()}
    if kept != paths:
        listener(notice(f"the model is stored in the run folder; if it is stopped: palaestra resume {folder}"))
    names = sorted({text for _, text in list_texts("", to_plain(settings)) if is_temporary(text)})
    if names:
        listener(
            notice(
                f"this run cannot be resumed by another process, because no file defines {', '.join(names)}; define it at the "
                "top level of a file to resume the run"
            )
        )
    return replace(settings, **kept) if kept != paths else settings  # type: ignore[type-var]


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


def read_values(path: Path) -> Json:
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


def load_values(path: Path, overridden: Collection[str] = ()) -> Json:
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


def to_plain(settings: Any) -> Json:
    """Convert settings to plain values for a JSON file."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()}


def list_settings(kind: type[Any]) -> list[tuple[str, Any, str]]:
    """List the name, default and documentation of every setting of `kind`."""
    texts = describe_fields(kind)  # type: ignore[arg-type]
    return [
        (f.name, f.default_factory() if f.default_factory is not MISSING else f.default, texts[f.name])
        for f in fields(kind)
    ]


def parse_options(texts: Sequence[str], name: str) -> Json:
    """Parse options of the command line of the form `name=value`. Values are JSON; anything else is a string.

    Arguments:
        name: the name of the setting, for error messages.

    >>> parse_options(["path=data", "shots=4"], "task_kwargs")
    {'path': 'data', 'shots': 4}
    """
    options: Json = {}
    for text in texts:
        key, equals, value = text.partition("=")
        require(bool(equals and key), f"setting '{name}': expected name=value; got {text!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def check_effects(settings: Any, *rules: tuple[object, str, Collection[str]]) -> None:
    """Raise for the first setting that differs from its default and has no effect on this run.

    Arguments:
        rules: whether several settings have an effect, why they have none, and their names.
    """
    for has_effect, reason, names in rules:
        for f in fields(settings):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if not has_effect and f.name in names and getattr(settings, f.name) != default:
                raise SettingsError(f"setting '{f.name}' has no effect {reason}")


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` if `condition` is false."""
    if not condition:
        raise SettingsError(message)


@dataclass(frozen=True)
class RunSettings:
    """Base class of the settings of recipes."""

    name: str = setting("", panel="Run")
    """Name of the run in lists and reports; the viewer can change it."""
    tags: tuple[str, ...] = setting((), panel="Run")
    """Words of your own for the list of runs, which can be searched and grouped by them."""


INLINE = "inline"
CALL_TIMEOUT = 600.0
WORKER_SETTINGS = ("worker_cpus", "worker_gpus", "worker_memory")


@dataclass(frozen=True)
class ExecutorSettings:
    """Base class of the settings of recipes that use an executor."""

    executor: str = setting(INLINE, panel="Cluster")
    """Where independent parts run: inline, processes:N, or ray:ADDRESS (ray alone: this machine)."""
    worker_cpus: float = setting(1.0, above=0, panel="Cluster")
    """CPU cores of a Ray worker."""
    worker_gpus: float = setting(0.0, low=0, panel="Cluster")
    """GPUs of a Ray worker; fractions are allowed."""
    worker_memory: float = setting(0.0, low=0, panel="Cluster")
    """Memory of a Ray worker in GB; 0: unspecified."""

    def check_executor(self) -> None:
        """Raise if there is no such executor, or if the resources of its workers are given and it has none."""
        scheme, _, argument = self.executor.partition(":")
        EXECUTORS.check(scheme)
        if scheme != "ray" and self.executor != INLINE:  # Ray may start a cluster.
            EXECUTORS.get(scheme)(argument).close()
        check_effects(self, (scheme == "ray", "without the executor ray", WORKER_SETTINGS))

    @property
    def resources(self) -> Resources:
        return Resources(self.worker_cpus, self.worker_gpus, int(self.worker_memory * 1e9))


@dataclass(frozen=True)
class EngineSettings:
    """Base class of the settings of recipes that generate with local models."""

    engine: str = setting(LOCAL_SCHEME, panel="Model", names="engines")
    """What generates with local models: transformers or vllm."""
    engine_kwargs: Mapping[str, Any] = setting({}, panel="Model")
    """Arguments of vllm.LLM for --engine vllm, for example max_model_len=4096."""

    def resolve_model(self, name: str) -> str:
        """Return the name of a model with its engine: `vllm:nano` for `nano`. A name with a scheme does not change."""
        return apply_engine(name, self.engine)

    def check_engine(self) -> None:
        """Raise if the engine cannot load local weights, or if it has no options. Loads nothing."""
        if self.engine != LOCAL_SCHEME:
            check_serves_weights(self.engine, "engine")
        elif self.engine_kwargs:
            raise SettingsError(
                f"setting 'engine_kwargs': the engine '{LOCAL_SCHEME}' has no options; set 'engine' to 'vllm'"
            )


def check_prices(max_cost: float, *models: str) -> None:
    """Raise if a cost limit is set for a model without a known price. Local models are free."""
    from palaestra.engines.budget import check_price

    if max_cost:
        for name in models:
            check_price(name)


def set_threads(count: int) -> None:
    """Set the number of CPU threads of torch; 0 keeps its default, and does not import torch."""
    if count:
        import torch

        torch.set_num_threads(count)
