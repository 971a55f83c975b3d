"""Skills files: the skill of every problem, read from a file.

The file holds one of

- a JSON object from problem ids to skills: `"fractions"`, `["fractions", "addition"]` (skill and subskill),
  `{"skill": "fractions", "subskill": "addition"}`, or `null` for a problem without a skill;
- JSON Lines, each line `{"id": ..., "skill": ..., "subskill": ...}`;
- the `skills.json` that a run with skill discovery leaves in its folder, which is a whole `SkillMap`;
- a file of DataEnvGym's `save_precomputed_skills`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure, FailureCause
from palaestra.runs.files import write_text
from palaestra.runs.records import from_json, to_json
from palaestra.teachers.skills.records import Category, SkillMap

SKILLS_FILE = "skills.json"
NO_SKILL = Failure(FailureCause.INVALID_REQUEST, "the skills file has no skill for this problem")


def write_skills(path: Path, skills: SkillMap) -> None:
    """Write a skill map as a file that `read_skills` reads."""
    write_text(path, to_json(skills) + "\n")


def read_skills(path: Path) -> SkillMap:
    """Read a skills file, or the skills file of a run folder.

    Raises:
        SettingsError: the file is missing or has an unknown format; the message names the place.
    """
    path = path.expanduser()
    path = path / SKILLS_FILE if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"the skills file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the skills file {path} cannot be read: {error}") from None
    try:
        skills = _parse(text)
    except ValueError as error:
        raise SettingsError(f"the skills file {path}: {' '.join(str(error).split())[:300]}") from None
    if not skills.categories:
        raise SettingsError(f"the skills file {path} contains no skills")
    return skills


def _parse(text: str) -> SkillMap:
    try:
        data = json.loads(text, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or not lines[0][1].lstrip().startswith("{"):
            raise ValueError(f"expected JSON or JSON Lines; line {error.lineno}: {error.msg}") from None
        return _from_labels(_read_lines(lines))
    if isinstance(data, list):
        return _from_labels((f"entry {place}", _row(row, f"entry {place}")) for place, row in enumerate(data, 1))
    if not isinstance(data, dict):
        raise ValueError(f"expected an object of problem ids and skills; got {type(data).__name__}")
    if {"categories", "assignment"} <= set(data):
        return _check_map(from_json(SkillMap, text))
    if {"skill_categories", "instance_id_to_skill_category"} <= set(data):
        return _from_dataenvgym(data)
    if "skill" in data and "id" in data:
        return _from_labels([("line 1", _row(data, "line 1"))])
    return _from_labels((repr(name), (name, *_label(value, repr(name)))) for name, value in data.items())


def _read_lines(lines: Iterable[tuple[int, str]]) -> Iterable[tuple[str, tuple[str, str, str]]]:
    for number, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error.msg}") from None
        yield f"line {number}", _row(row, f"line {number}")


def _row(row: Any, where: str) -> tuple[str, str, str]:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or "skill" not in row:
        raise ValueError(f"{where}: expected an object with id and skill; got {json.dumps(row)[:80]}")
    return (row["id"], *_label(row if isinstance(row["skill"], str) else row["skill"], where))


def _label(value: Any, where: str) -> tuple[str, str]:
    """Skill and subskill of a value; both empty for `null`."""
    if value is None:
        return "", ""
    parts: list[Any] = [None]
    if isinstance(value, str):
        parts = [value]
    elif isinstance(value, dict) and "skill" in value:
        parts = [value["skill"], value.get("subskill") or ""]
    elif isinstance(value, list) and 1 <= len(value) <= 2:
        parts = value
    if not all(isinstance(part, str) for part in parts) or not parts[0].strip():
        raise ValueError(
            f"{where}: expected a skill, [skill, subskill], an object with skill, or null; got {json.dumps(value)[:80]}"
        )
    return parts[0].strip(), parts[1].strip() if len(parts) > 1 else ""


def _from_labels(rows: Iterable[tuple[str, tuple[str, str, str]]]) -> SkillMap:
    members: dict[str, dict[str, None]] = {}
    names: dict[str, str] = {}
    assignment: dict[str, str] = {}
    unassigned: dict[str, Failure] = {}
    for where, (problem, skill, subskill) in rows:
        if problem in assignment or problem in unassigned:
            raise ValueError(f"{where}: problem {problem} has a skill already; give each problem once")
        if not skill:
            unassigned[problem] = NO_SKILL
            continue
        assignment[problem] = skill
        parts = members.setdefault(skill, {})
        if subskill:
            names[problem] = subskill
            parts[subskill] = None
    categories = tuple(Category(skill, "", tuple(parts)) for skill, parts in members.items())
    return SkillMap(names=names, categories=categories, assignment=assignment, unassigned=unassigned)


def _from_dataenvgym(data: dict[str, Any]) -> SkillMap:
    try:
        categories = tuple(
            Category(str(entry["descriptive_name"]), "", tuple(map(str, entry["skills"])))
            for entry in data["skill_categories"]
        )
        names = {str(entry["instance_id"]): str(entry["skill"]["name"]) for entry in data["labeled_instructions"]}
        assignment = {
            str(problem): str(category["descriptive_name"])
            for problem, category in data["instance_id_to_skill_category"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected DataEnvGym's precomputed skills; {type(error).__name__}: {error}") from None
    return _check_map(SkillMap(names=names, categories=categories, assignment=assignment))


def _check_map(skills: SkillMap) -> SkillMap:
    known = {category.name for category in skills.categories}
    for problem, skill in skills.assignment.items():
        if skill not in known:
            raise ValueError(f"problem {problem} is assigned to {skill!r}, which is not among the categories")
    return skills


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice; give each problem once")
    return data
