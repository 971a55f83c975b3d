"""The sandboxes of a task: options, read-only mounts and environment variables."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import TaskError
from palaestra.research.tasks.plugins import is_installed, missing_package
from palaestra.research.tasks.records import TaskData
from palaestra.research.tasks.task import ResearchTask
from palaestra.sandbox.base import Sandbox, make_sandbox

LIBRARY = "/opt/palaestra"
"""Where this package lies for tasks that may import it."""


def sandbox_for(task: ResearchTask, name: str = "bubblewrap", **options: Any) -> Sandbox:
    """Make the sandbox of a task's agents and submissions, without files that would reveal answers.

    Raises:
        TaskError: a package that the task needs is not installed.
        SandboxError: the sandbox cannot run here.
    """
    for package in task.dependencies:
        if not is_installed(package):
            raise missing_package(f"task '{task.name}'", package)
    hide = [path for name_ in task.hide if (path := _find_installed(name_)) is not None]
    if name == "bubblewrap":
        if hide:
            options = {**options, "hide": (*options.get("hide", ()), *hide)}
        if task.place:
            options = {**options, "place": task.place}
    elif hide or task.place:
        raise TaskError(
            f"task '{task.name}' hides files of installed packages, or wants its workspace in a certain place, which only "
            f"the sandbox bubblewrap can do; got '{name}'"
        )
    return make_sandbox(name, **options)


def read_only_mounts(task: ResearchTask, data: TaskData, judging: bool = False) -> Mapping[str, str]:
    """Return what a sandbox of the task shows besides the system; `judging` selects the sandbox that judges a
    submission.
    """
    mounts = dict(task.mounts(data, judging))
    if task.palaestra:
        here = Path(__file__).parents[2]
        for path in sorted(here.iterdir()):
            if path.name not in ("research", "__pycache__") and (path.is_dir() or path.suffix in (".py", ".typed")):
                mounts[f"{LIBRARY}/palaestra/{path.name}"] = str(path)
    return mounts


def sandbox_environment(task: ResearchTask) -> dict[str, str]:
    """Return the environment variables of a task's sandboxes."""
    own = {"PYTHONPATH": LIBRARY, "HF_HUB_OFFLINE": "1"} if task.palaestra else {}
    # Workspaces share the cores; a thread per core in each would slow all of them down.
    return {"OMP_NUM_THREADS": "1", **own, **task.variables()}


def _find_installed(name: str) -> Path | None:
    """Return a path below an installed package if it exists."""
    package, _, rest = name.partition("/")
    spec = importlib.util.find_spec(package) if is_installed(package) else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / rest
    return path if path.exists() else None
