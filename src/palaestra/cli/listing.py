"""The contents of `palaestra list`: registries, skills, models, environments and research tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from palaestra.core.registry import Registry

REGISTRIES = {
    "tasks": "palaestra.tasks.base:TASKS",
    "teachers": "palaestra.teachers.base:TEACHERS",
    "policies": "palaestra.teachers.tree.policies:POLICIES",
    "students": "palaestra.learn.students:STUDENTS",
    "checks": "palaestra.teachers.quality.base:CHECKS",
    "image_generators": "palaestra.tasks.vision.image_generators.base:IMAGE_GENERATORS",
    "engines": "palaestra.engines.base:ENGINES",
    "algorithms": "palaestra.learn.algorithms:ALGORITHMS",
    "agents": "palaestra.research.agents:AGENTS",
    "commands": "palaestra.research.workspace.commands:COMMANDS",
    "parsers": "palaestra.research.workspace.parsing:PARSERS",
    "histories": "palaestra.research.agents.history:HISTORIES",
    "models": "palaestra.engines.models:MODELS",
    "environments": "palaestra.envs:DESCRIPTIONS",
    "exporters": "palaestra.integrations.export.base:EXPORTERS",
}
"""Registries, or descriptions by name, as `module:name`. Importing them does not load torch."""


def list_entries(kind: str) -> Mapping[str, str]:
    """Return the names of one of `KINDS`, each with its description."""
    if kind in OTHERS:
        return OTHERS[kind]()
    module, _, name = REGISTRIES[kind].partition(":")
    entries: Registry | Mapping[str, str] = getattr(import_module(module), name)
    return entries.descriptions() if isinstance(entries, Registry) else entries


def list_skills() -> Mapping[str, str]:
    """Return the skills of every task, with their subskills."""
    from palaestra.tasks.base import TASKS, make_task

    return {f"{t}: {skill}": ", ".join(parts) for t in TASKS.names() for skill, parts in make_task(t).skills().items()}


def list_sandboxes() -> Mapping[str, str]:
    """Return the sandboxes, and how the default one enforces its limits on this machine."""
    from palaestra.sandbox import SANDBOXES, report_limits

    sandboxes = dict(SANDBOXES.descriptions())
    sandboxes["bubblewrap"] += f". Here {report_limits()}"
    return sandboxes


def list_research_tasks() -> Mapping[str, str]:
    """Return the research tasks with their titles."""
    from palaestra.research.tasks.task import load_task, task_names

    return {name: load_task(name).title for name in task_names()}


OTHERS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "sandboxes": list_sandboxes,
    "skills": list_skills,
    "research": list_research_tasks,
}
KINDS = (*REGISTRIES, *OTHERS)
