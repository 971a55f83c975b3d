"""Write a turn environment as a package of another library.

A target is a function that returns the files of the exported package, and a line of registration in `EXPORTERS`.
`render_templates` renders a folder of `templates/` for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.registry import REFERENCE, Registry
from palaestra.envs.base import Options, ToolSchemas
from palaestra.envs.factory import check_options, make_single_turn_env
from palaestra.runs.files import check_empty_folder, write_text
from palaestra.version import __version__

_ENVIRONMENT_FILE = "environment.py"
"""The copy of a user's own file in the package."""
_EXTRAS = ("gem", "openenv", "textarena", "verifiers")
"""Extras that have the name of a prefix of environment ids."""


@dataclass(frozen=True)
class EnvironmentPackage:
    """What a package is written for.

    Arguments:
        env_id: the environment, as the package makes it.
        env_kwargs: arguments of the environment.
        name: the name of the distribution, for example `guess-v0`.
        tools: the tools of the environment, in OpenAI's format.
    """

    env_id: str
    env_kwargs: Options
    name: str
    tools: ToolSchemas = ()

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
        return f"palaestra{f'[{prefix}]' if prefix in _EXTRAS else ''}>={__version__}"


_Exporter = Callable[[EnvironmentPackage], Mapping[str, str]]
"""Returns the texts of a package's files by their paths below its folder."""
EXPORTERS = Registry("export target", "palaestra.exporters")


def export_environment(
    env_id: str, to: str, out: str | Path = "", env_kwargs: Options | None = None, name: str = ""
) -> Path:
    """Write a turn environment as a package for another library. Returns the folder of the package.

    The arguments and errors are those of `plan_export`.
    """
    folder, texts = plan_export(env_id, to, out, env_kwargs, name)
    write_texts(folder, texts)
    return folder


def plan_export(
    env_id: str, to: str, out: str | Path = "", env_kwargs: Options | None = None, name: str = ""
) -> tuple[Path, dict[str, str]]:
    """The folder of a package for another library, and the texts of its files by their paths below it. Writes nothing.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it. The file of `file.py:Class` is copied into the
            package; it must not import other files beside it.
        to: a name in `EXPORTERS`.
        out: the folder to write; by default the name of the package. It must not exist or be empty.
        env_kwargs: arguments of the environment.
        name: the name of the package; by default it comes from the id.

    Raises:
        EnvError: it is not a turn environment, or it cannot be made or reset.
        SettingsError: the name is not a package name.
        RunError: the folder is not empty.
    """
    exporter: _Exporter = EXPORTERS.get(to)
    env_kwargs = dict(env_kwargs or {})
    tools = _check_environment(env_id, env_kwargs)
    name = name or _to_package_name(env_id)
    if not re.fullmatch("[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise SettingsError(f"the name of a package has lower-case letters, digits and hyphens; got {name!r}")
    source, reference = None, REFERENCE.fullmatch(env_id)
    if reference is not None and reference["module"].endswith(".py"):
        source = Path(reference["module"]).expanduser().resolve()
        env_id = f"{name.replace('-', '_')}.{Path(_ENVIRONMENT_FILE).stem}:{reference['name']}"
    package = EnvironmentPackage(env_id, env_kwargs, name, tools)
    folder = Path(out or name)
    check_empty_folder(folder)
    texts = dict(exporter(package))
    if source is not None:
        texts[f"{package.module}/{_ENVIRONMENT_FILE}"] = source.read_text(encoding="utf-8")
    return folder, texts


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts to files by their paths below a folder."""
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)


def _check_environment(env_id: str, env_kwargs: Options) -> ToolSchemas:
    """Make and reset a turn environment. Returns its tools.

    Raises:
        EnvError: it is not a turn environment, cannot be made, or ignores its seed.
    """
    check_options(env_id, env_kwargs)
    env = make_single_turn_env(env_id, env_kwargs)
    try:
        conversations = [env.reset(seed=0)[0].messages for _ in range(2)]
    finally:
        env.close()
    if conversations[0] != conversations[1]:
        raise EnvError(f"{env_id} ignores its seed: two episodes with seed 0 begin differently")
    return env.tools


def _to_package_name(env_id: str) -> str:
    """The name of a package for an environment.

    >>> _to_package_name("palaestra/Guess-v0"), _to_package_name("text:FrozenLake-v1"), _to_package_name("games/my.py:Echo")
    ('guess-v0', 'text-frozenlake-v1', 'echo')
    """
    reference = REFERENCE.fullmatch(env_id)
    name = reference["name"] if reference is not None else env_id.removeprefix("palaestra/")
    return "-".join(re.findall("[a-z0-9]+", name.lower()))


def _render_package(folder: str, package: EnvironmentPackage) -> Mapping[str, str]:
    return render_templates(Path(__file__).parent / "templates" / folder, package.module, {"package": package})


def render_templates(root: Path, module: str, values: Mapping[str, object]) -> dict[str, str]:
    """Render the files `*.j2` of a folder. `MODULE` in a path becomes the name of the Python package."""
    jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True)
    jinja.filters["literal"] = repr
    texts = {}
    for file in sorted(root.rglob("*.j2")):
        path = file.relative_to(root).as_posix().replace("MODULE", module).removesuffix(".j2")
        texts[path] = jinja.from_string(file.read_text(encoding="utf-8")).render(values)
    return texts


EXPORTERS.register(
    "verifiers",
    partial(_render_package, "verifiers"),
    "a package of verifiers: a taskset of seeds and an environment that plays them",
)
EXPORTERS.register(
    "openenv", partial(_render_package, "openenv"), "a package of OpenEnv: a server, a client and a Dockerfile"
)
