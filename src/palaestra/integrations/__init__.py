"""Adapters to other libraries. Importing this registers them; a library is imported when its adapter is used."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from palaestra.core.errors import MissingExtraError
from palaestra.core.registry import declare_entry
from palaestra.envs import register_env


def load_library(module: str, package: str, extra: str, needed_for: str) -> ModuleType:
    """Import a module of an optional package. Raises `MissingExtraError` if the package is not installed."""
    if find_spec(module.partition(".")[0]) is None:
        raise MissingExtraError(package, extra, needed_for)
    return import_module(module)


_ENVS = (
    ("TextArena", "textarena:TextArenaEnv", "a game of TextArena, also as textarena:ID"),
    ("GEM", "gem:GemEnv", "an environment of GEM, also as gem:ID"),
    ("OpenEnv", "openenv.env:OpenEnvEnv", "a server or class of OpenEnv, also as openenv:URL or openenv:module:Class"),
    ("Verifiers", "verifiers.env:VerifiersEnv", "an environment of verifiers, also as verifiers:ID"),
)
"""Environments by their name: the class below this package, and a description. The prefix is the name in lower case."""
for _name, _target, _description in _ENVS:
    register_env(f"palaestra/{_name}-v0", f"{__name__}.{_target}", f"turn scale: {_description}", prefix=_name.lower())
declare_entry(
    "palaestra.tasks",
    "reasoning_gym",
    "palaestra.integrations.reasoning_gym:make_source",
    "procedural data sets of reasoning-gym, one or several joined by +: skills, with curriculum levels as subskills",
    is_prefix=True,
)
declare_entry(
    "palaestra.tasks",
    "inspect",
    "palaestra.integrations.inspect_ai.source:make_source",
    "tasks of Inspect AI whose solver calls the model once: package/task, file.py or file.py@task",
    is_prefix=True,
)
declare_entry("palaestra.task_formats", "task.toml", "palaestra.integrations.harbor:load_harbor", "a task of Harbor")
declare_entry(
    "palaestra.task_formats",
    "program.md",
    "palaestra.integrations.autoresearch:load_autoresearch",
    "a folder of autoresearch: prepare.py, train.py, program.md",
)
declare_entry("palaestra.task_checkouts", "mlgym", "palaestra.integrations.mlgym:load_mlgym", "the tasks of MLGym")
declare_entry(
    "palaestra.agent_files", "mlgym", "palaestra.integrations.mlgym.agent_file:agent_settings", "an agent of MLGym"
)
_FORMATS = {
    "atif": ("harbor.atif:ATIF", "the Agent Trajectory Interchange Format of Harbor, version 1.7"),
    "otel": ("otel:OTEL", "traces of OpenTelemetry's conventions for generative AI, as OTLP in JSON"),
}
"""Formats of trajectories by their name: the format below this package, and a description."""
for _name, (_target, _description) in _FORMATS.items():
    declare_entry("palaestra.trajectory_formats", _name, f"{__name__}.{_target}", _description)
