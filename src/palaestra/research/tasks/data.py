"""The data of research tasks, generated once per machine by the task's `data.py`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.errors import TaskError
from palaestra.core.plugins import load_file
from palaestra.core.seeding import Seeds
from palaestra.engines.models import cache_folder
from palaestra.research.tasks.plugins import task_error
from palaestra.research.tasks.records import TaskData
from palaestra.research.tasks.task import ResearchTask
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
        make = load_function(task.folder / task.data, "make")
        with storage_errors(home, "keeping the data of a research task"):
            home.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{task.name}-", dir=home.parent))
        try:
            for part in ("public", "hidden"):
                (partial / part).mkdir()
            _generate(task, make, partial)
            # Concurrent processes generate the same data from the same seed; the first one wins.
            try:
                os.rename(partial, home)
            except OSError:
                if not home.is_dir():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TaskData(home / "public", home / "hidden")


def _generate(task: ResearchTask, make: Callable[..., Any], folder: Path) -> None:
    rng: np.random.Generator = Seeds(0).derive("research", task.name).generator()
    try:
        make(folder / "public", folder / "hidden", rng)
    except (Exception, SystemExit) as error:
        raise task_error(f"the data of task '{task.name}'", "cannot be made", error, task.folder) from error


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """Import a file of a task anew and return one of its functions.

    Raises:
        TaskError: the file cannot be imported or lacks the function.
    """
    try:
        module = load_file(path, f"palaestra_research_{path.parent.name}_{path.stem}")
    except (Exception, SystemExit) as error:
        raise task_error(str(path), "cannot be imported", error, path.parent) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TaskError(f"{path} must define the function {name}; it does not")
    return function  # type: ignore[no-any-return]
