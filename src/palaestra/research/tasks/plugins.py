"""Errors of a task's own code and its missing packages."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from palaestra.core.errors import TaskError
from palaestra.core.user_code import describe_error_within

EXTRA = frozenset({"pyflakes", "sklearn", "yaml"})
"""The import names of the packages in `palaestra[research]`."""


def task_error(what: str, how: str, error: BaseException, within: Path) -> TaskError:
    """Build the error for task code that raised: what failed and where, or which package to install."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and not is_installed(missing.partition(".")[0]):
        return missing_package(what, missing)
    return TaskError(f"{what} {how}: {describe_error_within(error, within)}")


def is_installed(package: str) -> bool:
    """Whether a package or submodule (`os.path`) can be imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # The parent package is missing, or the name is invalid.
        return False


def missing_package(needed_by: str, package: str) -> TaskError:
    """Build the error for a missing package, with the install command."""
    with suppress(PackageNotFoundError, ValueError):
        name = distribution(package).name
        modules = sorted(
            module
            for module, distributions in packages_distributions().items()
            if name in distributions and module[0] != "_"
        )
        return TaskError(f"{needed_by} names the package '{package}', which Python imports as {' or '.join(modules)}")
    top = package.partition(".")[0]
    how = "install it with: pip install 'palaestra[research]'" if top in EXTRA else f"try: pip install {top}"
    return TaskError(f"{needed_by} needs the package '{package}', which is not installed; {how}")
