"""The data of research tasks: made by the task's own `data.py`, once for each machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.core.errors import TaskError
from palaestra.core.plugins import load_file
from palaestra.core.seeding import Seeds
from palaestra.engines.models import cache_folder
from palaestra.research.tasks.plugins import broken
from palaestra.research.tasks.task import ResearchTask
from palaestra.runs.guard import storage_errors


@dataclass(frozen=True, slots=True)
class TaskData:
    """Two folders of the host: what the agent sees, and what only the evaluator does."""

    public: Path | None = None
    hidden: Path | None = None


def data_of(task: ResearchTask) -> TaskData:
    """The data of a task, made now if this machine has none yet. Several processes may ask at once.

    Raises:
        TaskError: the task's `data.py` broke.
    """
    if not task.data:
        return TaskData()
    home = cache_folder() / "research" / f"{task.name}-{task.digest()}"
    if not home.is_dir():
        make = function_of(task.folder / task.data, "make")
        with storage_errors(home, "keeping the data of a research task"):
            home.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{task.name}-", dir=home.parent))
        try:
            for part in ("public", "hidden"):
                (partial / part).mkdir()
            _made(task, make, partial)
            # Whoever is first has made it; the same data, as it comes from the same seed.
            try:
                os.rename(partial, home)
            except OSError:
                if not home.is_dir():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return TaskData(home / "public", home / "hidden")


def _made(task: ResearchTask, make: Callable[..., Any], folder: Path) -> None:
    rng: np.random.Generator = Seeds(0).derive("research", task.name).generator()
    try:
        make(folder / "public", folder / "hidden", rng)
    except (Exception, SystemExit) as error:
        raise broken(f"the data of task '{task.name}'", "cannot be made", error, task.folder) from error


def function_of(path: Path, name: str) -> Callable[..., Any]:
    """A function of a file of a task, imported afresh.

    Raises:
        TaskError: the file breaks, or has no such function.
    """
    try:
        module = load_file(path, f"palaestra_research_{path.parent.name}_{path.stem}")
    except (Exception, SystemExit) as error:
        raise broken(str(path), "cannot be imported", error, path.parent) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise TaskError(f"{path} must define the function {name}; it does not")
    return found  # type: ignore[no-any-return]
