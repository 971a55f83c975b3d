"""Whole `teach` runs with a skills file."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from chat_server import Server
from scripted_student import SKILLS, ScriptedStudent
from skilled_model import skilled, stage_of

from palaestra.core.errors import SettingsError
from palaestra.core.records import Split
from palaestra.envs.lesson.student import STUDENTS
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import study
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.tasks.math.task import MathSkills

SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 1, "lesson_size": 6, "validation": 4, "test": 2, "threads": 1, "answer_tokens": 24, "teacher": "skill_list",
    "learning": "scripted",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _scripted_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDENTS._entries, "scripted", ScriptedStudent.following(0.3, 0.8, lesson=6))


def write_gold_file(path: Path, **skills: Any) -> str:
    """Write a skills file with the task's own skills; `skills` replaces some of them."""
    labels = {
        problem.id: skills.get(problem.skill, [problem.skill, problem.subskill])
        for split, count in ((Split.VALIDATION, 4), (Split.TEST, 2))
        for problem in MathSkills().problems(split, count, 0, SKILLS)
    }
    path.write_text(json.dumps(labels))
    return str(path)


def test_discovered_skills_are_the_skills_file_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The writer may write fewer examples than were ordered: a plan for every number.
    monkeypatch.setattr(STUDENTS._entries["scripted"], "plan", defaultdict(lambda: 0.8, {0: 0.3}))
    with Server(skilled) as server:
        values = SMALL | {"writer": server.model, "cache": str(tmp_path / "calls.sqlite"), "checks": ("readable",)}
        first = teach.teach(out=tmp_path / "first", discover=server.model, categories=2, **values).summary
        calls = len(server.calls)
        second = teach.teach(out=tmp_path / "second", skills_file=str(tmp_path / "first"), **values).summary
        third = teach.teach(out=tmp_path / "third", skills_file=str(tmp_path / "second/skills.json"), **values).summary
        assert {stage_of(call) for call in server.calls[calls:]} <= {"write"}
    assert set(second["by_skill"]) == {"numbers", "shapes"}
    assert second["by_skill"] == first["by_skill"] == third["by_skill"]
    assert second["weights_sha256"] == first["weights_sha256"]
    assert second["discovery"]["file"] == str(tmp_path / "first")
    for name in ("categories", "problems", "test", "agreement", "agreement_test"):
        assert second["discovery"][name] == first["discovery"][name]
    page = write_report(tmp_path / "second").read_text()
    assert "Skills of the skills file" in page


def test_generators_write_for_a_file_and_resume_needs_no_file(tmp_path: Path) -> None:
    file = write_gold_file(tmp_path / "gold.json", geometry=None)
    result = teach.teach(out=tmp_path / "run", skills_file=file, **SMALL)
    assert set(result.summary["by_skill"]) == {"", "addition"}  # A problem without a skill is measured.
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert {example.skill for example in run.store.lesson(1).examples} == {"addition"}  # type: ignore[union-attr]
    Path(file).unlink()
    (tmp_path / "run" / "summary.json").unlink()
    with Run.open(tmp_path / "run") as run:
        run.store._db.execute("DELETE FROM attempts WHERE phase='1/test'")
        again = teach.resume(run).summary
    assert again["by_skill"] == result.summary["by_skill"]
    assert again["weights_sha256"] == result.summary["weights_sha256"]


def test_file_that_does_not_fit_is_refused_before_writing(tmp_path: Path) -> None:
    file = write_gold_file(tmp_path / "gold.json")
    for values, message in (
        ({"validation": 5}, r"2 of 10 validation problems of 'math-skills'"),
        ({"test": 5}, "6 of 10 test problems"),
        ({"discover": "openai:any"}, "'discover' and 'skills_file'"),
        ({"categories": 3}, "'categories' .*discovers skills"),
        ({"skills_file": str(tmp_path / "none.json")}, r"none\.json .*not exist"),
        ({"skills_file": write_gold_file(tmp_path / "own.json", geometry="shapes")}, "'shapes'"),
        (
            {"skills_file": write_gold_file(tmp_path / "part.json", geometry=["geometry", "moons"])},
            "'moons'",
        ),
        ({"skills_file": write_gold_file(tmp_path / "none2.json", geometry=None, addition=None)}, "no skills"),
    ):
        with pytest.raises(SettingsError, match=message) as raised:
            teach.teach(out=tmp_path / "run", **({"skills_file": file} | SMALL | values))  # type: ignore[arg-type]
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match="no entry"):  # Another seed draws other problems.
        study(TeachSettings(**SMALL, skills_file=file), {}, 2, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()
