"""Write a turn environment as a package of another library.

A target is a module of this package with a function that returns the files of the exported package, and a line of
registration in `EXPORTERS`. `render_templates` renders a folder of `templates/` for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.plugins import REFERENCE
from palaestra.core.registry import Registry
from palaestra.runs.files import check_empty_folder, write_text
from palaestra.version import __version__

ENVIRONMENT_FILE = "environment.py"
"""The copy of a user's own file in the package."""
EXTRAS = ("gem", "openenv", "textarena", "verifiers")
"""Extras that have the name of a prefix of environment ids."""


@dataclass(frozen=True)
class EnvironmentPackage:
    """What a package is written for.

    Arguments:
        env_id: the environment, as the package makes it.
        env_options: arguments of the environment.
        name: the name of the distribution, for example `guess-v0`.
        tools: the tools of the environment, in OpenAI's format.
    """

    env_id: str
    env_options: Mapping[str, Any]
    name: str
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def module(self) -> str:
        """The name of the Python package, for example `guess_v0`."""
        return self.name.replace("-", "_")

    @property
    def class_prefix(self) -> str:
        """The beginning of the names of its classes, for example `GuessV0`."""
        return "".join(part[:1].upper() + part[1:] for part in self.name.split("-"))

    @property
    def requirement(self) -> str:
        """The requirement on Palaestra."""
        prefix = self.env_id.partition(":")[0]
        return f"palaestra{f'[{prefix}]' if prefix in EXTRAS else ''}>={__version__}"


Exporter = Callable[[EnvironmentPackage], Mapping[str, str]]
"""Returns the texts of a package's files by their paths below its folder."""
EXPORTERS = Registry("export target", "palaestra.exporters")
EXPORTERS.register(
    "verifiers",
    "palaestra.integrations.export.verifiers:render_package",
    "a package of verifiers: a taskset of seeds and an environment that plays them",
)
EXPORTERS.register(
    "openenv",
    "palaestra.integrations.export.openenv:render_package",
    "a package of OpenEnv: a server, a client and a Dockerfile",
)


def export_environment(
    env_id: str, to: str, out: str | Path = "", env_options: Mapping[str, Any] | None = None, name: str = ""
) -> Path:
    """Write a turn environment as a package for another library. Returns the folder of the package.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it. The file of `file.py:Class` is copied into the
            package; it must not import other files beside it.
        to: a name in `EXPORTERS`.
        out: the folder to write; by default the name of the package. It must not exist or be empty.
        env_options: arguments of the environment.
        name: the name of the package; by default it comes from the id.

    Raises:
        EnvError: it is not a turn environment, or it cannot be made or reset.
        SettingsError: the name is not a package name.
        RunError: the folder is not empty.
    """
    exporter: Exporter = EXPORTERS.get(to)
    env_options = dict(env_options or {})
    tools = check_environment(env_id, env_options)
    name = name or to_package_name(env_id)
    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise SettingsError(f"the name of a package has lower-case letters, digits and hyphens; got {name!r}")
    source, reference = None, REFERENCE.fullmatch(env_id)
    if reference is not None and reference["module"].endswith(".py"):
        source = Path(reference["module"]).expanduser().resolve()
        env_id = f"{name.replace('-', '_')}.{Path(ENVIRONMENT_FILE).stem}:{reference['name']}"
    package = EnvironmentPackage(env_id, env_options, name, tools)
    folder = Path(out or name)
    check_empty_folder(folder)
    texts = dict(exporter(package))
    if source is not None:
        texts[f"{package.module}/{ENVIRONMENT_FILE}"] = source.read_text(encoding="utf-8")
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return folder


def check_environment(env_id: str, env_options: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Make and reset a turn environment. Returns its tools.

    Raises:
        EnvError: it is not a turn environment, cannot be made, or ignores its seed.
    """
    from palaestra.envs.factory import check_options, make_single_turn_env

    check_options(env_id, env_options)
    env = make_single_turn_env(env_id, env_options)
    try:
        conversations = [env.reset(seed=0)[0].messages for _ in range(2)]
    finally:
        env.close()
    if conversations[0] != conversations[1]:
        raise EnvError(f"{env_id} ignores its seed: two episodes with seed 0 begin differently")
    return env.tools


def to_package_name(env_id: str) -> str:
    """The name of a package for an environment.

    >>> to_package_name("palaestra/Guess-v0"), to_package_name("text:FrozenLake-v1"), to_package_name("games/my.py:Echo")
    ('guess-v0', 'text-frozenlake-v1', 'echo')
    """
    reference = REFERENCE.fullmatch(env_id)
    name = reference["name"] if reference is not None else env_id.removeprefix("palaestra/")
    return "-".join(re.findall("[a-z0-9]+", name.lower()))


def render_templates(folder: str, package: EnvironmentPackage, **values: Any) -> dict[str, str]:
    """Render the files `*.j2` of `templates/<folder>`. `MODULE` in a path becomes the name of the Python package.

    Arguments:
        values: further values of the templates, beside `package`.
    """
    jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters["literal"] = repr
    root = files("palaestra.integrations.export") / "templates" / folder
    return {
        path.replace("MODULE", package.module).removesuffix(".j2"): jinja.from_string(
            template.read_text(encoding="utf-8")
        ).render(package=package, **values)
        for path, template in _list_files(root)
    }


def _list_files(folder: Traversable, above: str = "") -> list[tuple[str, Traversable]]:
    """The files below a folder with their paths, in the order of their names."""
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    listed = [(f"{above}{entry.name}", entry) for entry in entries if entry.name.endswith(".j2")]
    return listed + [
        pair for entry in entries if entry.is_dir() for pair in _list_files(entry, f"{above}{entry.name}/")
    ]
