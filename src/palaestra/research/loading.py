"""Code of others in this process: files of tasks, plugins and packages, and what they raise in one line."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import ModuleType

from palaestra.core.errors import SettingsError, TaskError

EXTRA = frozenset({"pyflakes", "sklearn", "yaml"})
"""What `palaestra[research]` brings, as it is imported."""


def load_file(path: Path, label: str) -> ModuleType:
    """A Python file as a module of the name `label`, run now. Whatever it raises comes out."""
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module  # Dataclasses look their module up.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(label, None)
        raise
    return module


def load_plugins(names: Iterable[str]) -> None:
    """Import code of the user's own, which registers agents, commands, output parsers or tasks; each once.

    Arguments:
        names: files by their paths, for example `my_agent.py`, or modules that can be imported.

    Raises:
        SettingsError: one of them cannot be imported; says why, and where.
    """
    for name in names:
        path = Path(name).expanduser().resolve()
        label = f"palaestra_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
        try:
            if path.suffix != ".py":
                importlib.import_module(name)
            elif not path.is_file():
                raise FileNotFoundError("there is no such file")
            elif label not in sys.modules:
                load_file(path, label)
        except (Exception, SystemExit) as error:  # Code of the user's: it may raise anything.
            hint = "" if path.suffix == ".py" else "; a file is named by its path, for example my_agent.py"
            raise SettingsError(f"setting 'plugins': {name} cannot be imported: {told(error, path)}{hint}") from error


def told(error: BaseException, within: Path) -> str:
    """What was raised, and the innermost place of it in the file or folder `within`, in one line."""
    said = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(within)), None)
    return said if place is None else f"{said} ({Path(place.filename).name}, line {place.lineno})"


def broken(what: str, how: str, error: BaseException, within: Path) -> TaskError:
    """The error of a task whose own code raised: what it is, and where; or which package is to be installed for it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not is_installed(missing.partition(".")[0]):
        return missing_package(what, missing)
    return TaskError(f"{what} {how}: {told(error, within)}")


def is_installed(package: str) -> bool:
    """Whether a package, or a part of one (`os.path`), can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # The package around it is not there; or that is no name of one.
        return False


def missing_package(needed_by: str, package: str) -> TaskError:
    """The error where a package is not installed, with the command that installs it."""
    with suppress(PackageNotFoundError, ValueError):
        name = distribution(package).name
        modules = sorted(one for one, given in packages_distributions().items() if name in given and one[0] != "_")
        return TaskError(f"{needed_by} names the package '{package}', which Python imports as {' or '.join(modules)}")
    top = package.partition(".")[0]
    how = "install it with: pip install 'palaestra[research]'" if top in EXTRA else f"try: pip install {top}"
    return TaskError(f"{needed_by} needs the package '{package}', which is not installed; {how}")
