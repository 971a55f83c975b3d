"""What a task's own code needs: packages that are not there, and errors in one line."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from palaestra.core.errors import TaskError
from palaestra.core.plugins import locate_error

EXTRA = frozenset({"pyflakes", "sklearn", "yaml"})
"""What `palaestra[research]` brings, as it is imported."""


def broken(what: str, how: str, error: BaseException, within: Path) -> TaskError:
    """The error of a task whose own code raised: what it is, and where; or which package is to be installed for it."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not is_installed(missing.partition(".")[0]):
        return missing_package(what, missing)
    return TaskError(f"{what} {how}: {locate_error(error, within)}")


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
