"""The data of research tasks, the seed of hidden evaluation data, and errors of a task's own code."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.registry import describe_error_within, load_file
from palaestra.core.seeding import Seeds
from palaestra.models.registry import cache_folder
from palaestra.research.tasks.task import ResearchTask, TaskData
from palaestra.runs.files import storage_errors


def load_data(task: ResearchTask) -> TaskData:
    """Return the data of a task and generate it if this machine has none yet. Safe for concurrent processes.

    Raises:
        TaskError: the task's `data.py` raised.
    """
    if not task.data:
        return TaskData()
    home = cache_folder() / "research" / f"{task.name}-{task.digest()}"
    if not home.is_dir():
        with storage_errors(home, "storing the data of a research task"):
            home.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{task.name}-", dir=home.parent))
        try:
            generate_data(task, partial)
            # Concurrent processes generate the same data from the same seed; the first one wins.
            try:
                os.rename(partial, home)
            except OSError:
                if not home.is_dir():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TaskData(home / "public", home / "hidden")


def generate_data(task: ResearchTask, folder: Path) -> None:
    """Generate the data of a task in the new folders `public` and `hidden` of a folder.

    Raises:
        TaskError: the task's `data.py` raised.
    """
    make = load_function(task.folder / task.data, "make")
    for part in ("public", "hidden"):
        (folder / part).mkdir()
    rng: np.random.Generator = Seeds(0).derive("research", task.name).generator()
    try:
        make(folder / "public", folder / "hidden", rng)
    except (Exception, SystemExit) as error:
        raise _task_error(f"the data of task '{task.name}'", "cannot be generated", error, task.folder) from error


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Import a file of a task anew and return one of its functions.

    Raises:
        TaskError: the file cannot be imported or lacks the function.
    """
    try:
        module = load_file(path, f"palaestra_research_{path.parent.name}_{path.stem}")
    except (Exception, SystemExit) as error:
        raise _task_error(str(path), "cannot be imported", error, path.parent) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TaskError(f"{path} must define the function {name}; it does not")
    return function  # type: ignore[no-any-return]


# The seed of hidden evaluation data

VARIABLE = "PALAESTRA_RESEARCH_SEED"
"""An environment variable with a number that replaces this machine's seed, to compare scores across machines."""


def eval_seed(task: ResearchTask) -> int:
    """Return the seed of an evaluator's random choices.

    It is 0, except where a known seed would help: agents that can import this package could generate the hidden problems, and
    those of autoresearch could pick lucky runs. Those tasks use a secret seed, drawn once per machine and stored where no sandbox shows it, so that all
    submissions on this machine are judged alike.

    Raises:
        SettingsError: the environment variable is not a number.
    """
    if not task.has_secret_seed:
        return 0
    given = os.environ.get(VARIABLE, "")
    if given and not given.isdecimal():
        raise SettingsError(f"{VARIABLE} must be an integer >= 0; got '{given}'")
    return int(given) if given else _machine_seed(cache_folder() / "research" / "secret")


def seed_mark(task: ResearchTask) -> str:
    """Return a fingerprint that distinguishes secret seeds without revealing them; empty for tasks without one."""
    return f"{Seeds(eval_seed(task)).derive('mark').integer():x}"[:8] if task.has_secret_seed else ""


@cache
def _machine_seed(path: Path) -> int:
    with storage_errors(path, "storing the secret seed of research tasks"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".secret-{secrets.token_hex(8)}")
        partial.write_text(str(secrets.randbits(62)), encoding="ascii")
        partial.chmod(0o600)
        try:
            os.link(partial, path)  # The first process wins.
        except FileExistsError:
            pass
        finally:
            partial.unlink()
        return int(path.read_text(encoding="ascii"))


# Errors of a task's own code

EXTRA = frozenset({"pyflakes", "sklearn", "yaml"})
"""The import names of the packages in `palaestra[research]`."""


def _task_error(what: str, how: str, error: BaseException, within: Path) -> TaskError:
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
    """Build the error for a package that cannot be imported, with the install command."""
    top = package.partition(".")[0]
    how = "install it with: pip install 'palaestra[research]'" if top in EXTRA else f"try: pip install {top}"
    return TaskError(f"{needed_by} needs the package '{package}', which is not installed; {how}")
