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
_TASKS = (
    ("reasoning_gym", "reasoning_gym:make_source", "procedural data sets of reasoning-gym, one or several joined by +: skills, with curriculum levels as subskills"),
    ("inspect", "inspect_ai.source:make_source", "tasks of Inspect AI whose solver calls the model once: package/task, file.py or file.py@task"),
)  # fmt: skip
"""Tasks by the prefix of their names."""
for _name, _target, _description in _TASKS:
    declare_entry("palaestra.tasks", _name, f"{__name__}.{_target}", _description, is_prefix=True)
_ENTRIES = (
    ("task_formats", "task.toml", "harbor:load_harbor", "a task of Harbor"),
    ("task_formats", "program.md", "autoresearch:load_autoresearch", "a folder of autoresearch: prepare.py, train.py, program.md"),
    ("task_checkouts", "mlgym", "mlgym:load_mlgym", "the tasks of MLGym"),
    ("agent_files", "mlgym", "mlgym.agent_file:agent_settings", "an agent of MLGym"),
    ("trajectory_formats", "atif", "harbor.atif:ATIF", "the Agent Trajectory Interchange Format of Harbor, version 1.7"),
    ("trajectory_formats", "otel", "otel:OTEL", "traces of OpenTelemetry's conventions for generative AI, as OTLP in JSON"),
)  # fmt: skip
"""Other entries: the group, the name, the object below this package, and a description."""
for _group, _name, _target, _description in _ENTRIES:
    declare_entry(f"palaestra.{_group}", _name, f"{__name__}.{_target}", _description)
