"""Skills files: the skill of every problem, read from a file.

The file contains one of

- a JSON object from problem ids to skills: `"fractions"`, `["fractions", "addition"]` (skill and subskill), or `null` for a
  problem without a skill;
- JSON Lines, each line `{"id": ..., "skill": ..., "subskill": ...}`;
- the `skills.json` that a run with skill discovery writes to its folder, which is a whole `SkillMap`;
- a file of DataEnvGym's `save_precomputed_skills`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure, FailureCause
from palaestra.runs.files import from_json, to_json, write_text
from palaestra.teachers.skills.records import Category, SkillMap

SKILLS_FILE = "skills.json"
NO_SKILL = Failure(FailureCause.INVALID_REQUEST, "the skills file has no skill for this problem")


class SkillRow(BaseModel):
    """A line of a skills file."""

    id: str
    skill: str | None
    subskill: str = ""


_LABELS = TypeAdapter(dict[str, str | Annotated[list[str], Field(min_length=1, max_length=2)] | None])


def write_skills(path: Path, skills: SkillMap) -> None:
    """Write a skill map as a file that `read_skills` reads."""
    write_text(path, to_json(skills) + "\n")


def read_skills(path: Path) -> SkillMap:
    """Read a skills file, or the skills file of a run folder.

    Raises:
        SettingsError: the file is missing or has an unknown format; the message names the location.
    """
    path = path.expanduser()
    path = path / SKILLS_FILE if path.is_dir() else path
    try:
        skills = _parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"the skills file {path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise SettingsError(f"the skills file {path} cannot be read: {message}") from None
    if not skills.categories:
        raise SettingsError(f"the skills file {path} contains no skills")
    known = {category.name for category in skills.categories}
    for problem, skill in skills.assignment.items():
        if skill not in known:
            raise SettingsError(f"the skills file {path} assigns {problem} to {skill!r}, which is not among its skills")
    return skills


def _parse(text: str) -> SkillMap:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return _from_rows([SkillRow.model_validate_json(line) for line in text.splitlines() if line.strip()])
    if "categories" in data and "assignment" in data:
        return from_json(SkillMap, text)
    if "skill_categories" in data and "instance_id_to_skill_category" in data:
        return _from_dataenvgym(data)
    if "skill" in data and "id" in data:
        return _from_rows([SkillRow.model_validate(data)])
    rows = []
    for problem, label in _LABELS.validate_python(data).items():
        skill, subskill = (label, "") if isinstance(label, str | None) else (*label, "")[:2]
        rows.append(SkillRow(id=problem, skill=skill, subskill=subskill))
    return _from_rows(rows)


def _from_rows(rows: Sequence[SkillRow]) -> SkillMap:
    members: dict[str, dict[str, None]] = {}
    names: dict[str, str] = {}
    assignment: dict[str, str] = {}
    unassigned: dict[str, Failure] = {}
    for row in rows:
        if row.id in assignment or row.id in unassigned:
            raise ValueError(f"problem {row.id} is listed twice; list each problem once")
        if not row.skill:
            unassigned[row.id] = NO_SKILL
            continue
        assignment[row.id] = row.skill
        parts = members.setdefault(row.skill, {})
        if row.subskill:
            names[row.id] = row.subskill
            parts[row.subskill] = None
    categories = tuple(Category(skill, "", tuple(parts)) for skill, parts in members.items())
    return SkillMap(names=names, categories=categories, assignment=assignment, unassigned=unassigned)


def _from_dataenvgym(data: Any) -> SkillMap:
    return SkillMap(
        names={entry["instance_id"]: entry["skill"]["name"] for entry in data["labeled_instructions"]},
        categories=tuple(
            Category(entry["descriptive_name"], "", tuple(entry["skills"])) for entry in data["skill_categories"]
        ),
        assignment={
            problem: category["descriptive_name"] for problem, category in data["instance_id_to_skill_category"].items()
        },
    )
