"""Which tasks an environment has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, SettingsError
from palaestra.research.mlgym import load_mlgym
from palaestra.research.tasks.task import ResearchTask, load_task

TaskName = str | Path | ResearchTask
"""The name of a research task, its folder, or the task itself."""


def load_tasks(
    tasks: TaskName | Iterable[TaskName] | Mapping[str, TaskName], mlgym: str | Path | None = None
) -> dict[str, ResearchTask]:
    """Tasks by name.

    Arguments:
        tasks: one, several, or several by names of one's own.
        mlgym: a checkout of MLGym, whose tasks the names are.

    Raises:
        EnvError: something that is no task, or none at all.
        SettingsError: the same task twice.
        UnknownNameError: there is no task of that name.
    """
    if isinstance(tasks, Mapping):
        found = {str(name): _task(given, mlgym)[1] for name, given in tasks.items()}
    else:
        found = {}
        for given in _several(tasks):
            name, task = _task(given, mlgym)
            if name in found:
                raise SettingsError(f"every task is to be named once; got '{name}' twice")
            found[name] = task
    if not found:
        raise EnvError("at least one task is needed; got none")
    return found


def _several(tasks: Any) -> list[Any]:
    if isinstance(tasks, TaskName):
        return [tasks]
    if not isinstance(tasks, Iterable):
        raise EnvError(f"tasks are names, folders or ResearchTasks; got {short_repr(tasks)}")
    return list(tasks)


def _task(given: Any, mlgym: str | Path | None) -> tuple[str, ResearchTask]:
    if isinstance(given, ResearchTask):
        return given.name, given
    if not isinstance(given, (str, Path)) or not str(given).strip():
        raise EnvError(f"a task is the name of one, its folder or a ResearchTask; got {short_repr(given)}")
    if mlgym is not None:
        return str(given), load_mlgym(mlgym, str(given))
    task = load_task(given)
    return task.name, task
