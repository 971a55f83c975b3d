"""The contents of `palaestra list`: registries, skills, models, environments, research tasks and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from palaestra.core.registry import Registry, load_reference

REGISTRIES = {
    "tasks": "palaestra.tasks.base:TASKS",
    "scorers": "palaestra.tasks.scorers:SCORERS",
    "teachers": "palaestra.teachers.base:TEACHERS",
    "policies": "palaestra.teachers.tree.policies:POLICIES",
    "students": "palaestra.students.registry:STUDENTS",
    "checks": "palaestra.teachers.quality.base:CHECKS",
    "image_generators": "palaestra.tasks.vision.image_generators.base:IMAGE_GENERATORS",
    "engines": "palaestra.engines.base:ENGINES",
    "algorithms": "palaestra.rl.algorithms:ALGORITHMS",
    "curricula": "palaestra.rl.curriculum:CURRICULA",
    "agents": "palaestra.research.agents:AGENTS",
    "commands": "palaestra.research.workspace.commands:COMMANDS",
    "parsers": "palaestra.research.workspace.parsing:PARSERS",
    "histories": "palaestra.research.agents.history:HISTORIES",
    "models": "palaestra.models.registry:MODELS",
    "environments": "palaestra.envs:DESCRIPTIONS",
    "exporters": "palaestra.integrations.export.base:EXPORTERS",
    "trajectory_formats": "palaestra.integrations.export.trajectories:TRAJECTORY_FORMATS",
}
"""Registries, or descriptions by name, as `module:name`. Importing them does not load torch."""


def list_entries(kind: str) -> Mapping[str, str]:
    """Return the names of one of `KINDS`, each with its description."""
    if kind in OTHERS:
        return OTHERS[kind]()
    entries: Registry | Mapping[str, str] = load_reference(REGISTRIES[kind])
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


def list_runs() -> Mapping[str, str]:
    """Return the runs below `runs/`: what each does, how far it is, and why it failed."""
    from palaestra.view.runs import RunIndex

    runs = {}
    for card in RunIndex([folder]).cards() if (folder := Path("runs")).is_dir() else ():
        progress = f" {card.done} of {card.planned}" if card.planned and card.status != "ended" else ""
        facts = (f"{card.kind} {card.status}{progress}", card.subject, card.model, card.result, card.started)
        runs[card.label] = "; ".join(filter(None, (*facts, card.problem)))
    return runs


OTHERS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "sandboxes": list_sandboxes,
    "skills": list_skills,
    "research": list_research_tasks,
    "runs": list_runs,
}
KINDS = (*REGISTRIES, *OTHERS)
