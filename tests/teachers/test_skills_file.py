"""Skills files: all accepted formats, and one-line errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure, FailureCause
from palaestra.teachers.skills.records import Category, SkillMap, read_skills, write_skills

FORMS = {
    "object": '{"a": "sums", "b": ["shapes", "area"], "c": ["shapes", "side"], "d": null}',
    "lines": '{"id": "a", "skill": "sums"}\n\n{"id": "b", "skill": "shapes", "subskill": "area"}\n'
    '{"id": "c", "skill": "shapes", "subskill": "side"}\n{"id": "d", "skill": null}\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_and_skills_are_read_from_an_object_and_lines(form: str, tmp_path: Path) -> None:
    (tmp_path / "skills").write_text(FORMS[form], encoding="utf-8")
    result = read_skills(tmp_path / "skills")
    assert result.skills() == {"sums": (), "shapes": ("area", "side")}
    assert {name: (result.skill(name), result.subskill(name)) for name in "abcd"} == {
        "a": ("sums", ""),
        "b": ("shapes", "area"),
        "c": ("shapes", "side"),
        "d": ("", ""),
    }
    assert set(result.unassigned) == {"d"}


def test_skill_map_is_the_same_after_write_and_read(tmp_path: Path) -> None:
    skills = SkillMap(
        {"a": "adding"}, (Category("sums", "all sums", ("adding",)),), {"a": "sums"}, {},
        {"b": Failure(FailureCause.MALFORMED, "no")}, 2, ("one",), {"names": 1}, ("model",),
    )  # fmt: skip
    write_skills(tmp_path / "skills.json", skills)
    assert read_skills(tmp_path / "skills.json") == read_skills(tmp_path) == skills


def test_the_precomputed_skills_of_dataenvgym_are_read(tmp_path: Path) -> None:
    category = {"category_id": 1, "descriptive_name": "Graphs", "skills": ["bfs", "dfs"]}
    data = {
        "labeled_instructions": [{"instance_id": "1", "instruction": "...", "skill": {"name": "bfs"}}],
        "skill_categories": [category],
        "instance_id_to_skill_category": {"1": category, "2": category},
    }
    (tmp_path / "precomputed.json").write_text(json.dumps(data))
    result = read_skills(tmp_path / "precomputed.json")
    assert result.skills() == {"Graphs": ("bfs", "dfs")}
    assert [(result.skill(name), result.subskill(name)) for name in "12"] == [("Graphs", "bfs"), ("Graphs", "")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no skills"),
        ("sums", "Invalid JSON"),
        ("3", "TypeError"),
        ("{}", "no skills"),
        ('{"a": null}', "no skills"),
        ('{"a": 1}', "valid string"),
        ('{"a": ["x", "y", "z"]}', "at most 2 items"),
        ('{"id": "a", "skill": "x"}\n{"id": "a", "skill": "x"}', "a is listed twice"),
        ('{"id": "a", "skill": "x"}\n{"id": "b"', "Invalid JSON"),
        ('{"id": "a", "skill": "x"}\n{"id": 3, "skill": "x"}', "valid string"),
        ('{"categories": [{"name": "x"}], "assignment": {"a": "y"}}', "'y'"),
        ('{"categories": 3, "assignment": {}}', "categories"),
        ('{"skill_categories": [{}], "instance_id_to_skill_category": {}}', "KeyError"),
    ],
)
def test_what_is_no_skills_file_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "skills.json").write_text(text)
    with pytest.raises(SettingsError, match=message) as raised:
        read_skills(tmp_path / "skills.json")
    assert "\n" not in str(raised.value)
    assert "skills.json" in str(raised.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.json"):
        read_skills(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="binary"):
        read_skills(tmp_path / "binary")


def test_a_map_can_be_cut_to_some_problems() -> None:
    data: dict[str, Any] = {"names": {"a": "x", "b": "y"}, "assignment": {"a": "s", "b": "s"}}
    assert SkillMap(**data).select(["a", "z"]) == SkillMap(names={"a": "x"}, assignment={"a": "s"})
