"""What `palaestra list` names: everything that is registered, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

REGISTRIES = {
    "tasks": "palaestra.tasks.base:TASKS",
    "teachers": "palaestra.teachers.base:TEACHERS",
    "policies": "palaestra.teachers.tree:POLICIES",
    "students": "palaestra.learn.students:STUDENTS",
    "checks": "palaestra.teachers.quality:CHECKS",
    "image_generators": "palaestra.tasks.vision.image_generators.base:IMAGE_GENERATORS",
    "engines": "palaestra.engines.base:ENGINES",
    "algorithms": "palaestra.learn.algorithms:ALGORITHMS",
    "agents": "palaestra.research.agents:AGENTS",
    "commands": "palaestra.research.workspace.commands:COMMANDS",
    "parsers": "palaestra.research.workspace.parsing:PARSERS",
    "histories": "palaestra.research.agents.history:HISTORIES",
}
"""Where each registry is; none of them loads torch."""


def registered(kind: str) -> Mapping[str, str]:
    """Names and descriptions of a registry."""
    module, _, name = REGISTRIES[kind].partition(":")
    found: Mapping[str, str] = getattr(import_module(module), name).descriptions()
    return found


def skills() -> Mapping[str, str]:
    """The skills of every task, with their subskills."""
    from palaestra.tasks.base import TASKS, make_task

    return {f"{t}: {skill}": ", ".join(parts) for t in TASKS.names() for skill, parts in make_task(t).skills().items()}


def sandboxes() -> Mapping[str, str]:
    """The sandboxes, and what holds the limits of the default one on this machine."""
    from palaestra.sandbox import SANDBOXES, report_limits

    found = dict(SANDBOXES.descriptions())
    found["bubblewrap"] += f". Here {report_limits()}"
    return found


def models() -> Mapping[str, str]:
    """The names of the model registry."""
    from palaestra.engines.models import MODELS

    return MODELS


def environments() -> Mapping[str, str]:
    """Our environments as Gymnasium knows them."""
    from gymnasium import registry

    return {name: str(s.entry_point) for name, s in registry.items() if str(s.entry_point).startswith("palaestra")}


def research_tasks() -> Mapping[str, str]:
    """The research tasks with their titles."""
    from palaestra.research.tasks.task import load_task, task_names

    return {name: load_task(name).title for name in task_names()}


OTHERS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "sandboxes": sandboxes,
    "skills": skills,
    "models": models,
    "environments": environments,
    "research": research_tasks,
}
KINDS = (*REGISTRIES, *OTHERS)


def entries(kind: str) -> Mapping[str, str]:
    """What there is of one of `KINDS`, by name."""
    return OTHERS[kind]() if kind in OTHERS else registered(kind)
