"""Several validation and test tasks in one run: what the teacher sees, what is measured, what is rejected."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import processes
import pytest
from chat_server import Server
from doubling_task import DoublingTask, make_student
from scripted_student import SKILLS
from skilled_model import skilled

from palaestra.cli.terminal import gain_table, study_table
from palaestra.core.errors import PalaestraError
from palaestra.core.records import Event
from palaestra.core.statistics import measure_gain
from palaestra.engines.mock import MockEngine
from palaestra.envs.lesson.student import STUDENTS
from palaestra.recipes.evaluate import recipe as evaluate
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.skills import parse_entries
from palaestra.recipes.teach.study import study
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.tasks.base import TASKS
from palaestra.teachers.base import TEACHERS
from palaestra.teachers.quality.base import Inspection
from palaestra.teachers.simple import OpenEnded

SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 2, "lesson_size": 8, "validation": 5, "test": 6, "teacher": "open_ended",
    "learning": "scripted", "threads": 1,
}  # fmt: skip
SEVERAL = SMALL | {"validation_tasks": ("math-skills,doubles",), "test_tasks": ("doubles problems=4", "math-skills")}


@pytest.fixture(autouse=True)
def _doubles_and_student(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS._entries, "doubles", DoublingTask)
    monkeypatch.setitem(STUDENTS._entries, "scripted", make_student(0.3, 0.6, 0.9, lesson=8))


def drop_seconds(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "seconds"}


def test_teacher_sees_all_tasks_and_each_test_task_has_a_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []

    class Seeing(OpenEnded):
        def write(self, state: Any, size: int, generator: Any) -> Any:
            states.append(state)
            return super().write(state, size, generator)

    lengths: dict[str, set[int]] = {}
    generate = MockEngine.generate

    def record_lengths(engine: MockEngine, requests: Any) -> Any:
        for request in requests:
            kind = request.messages[-1].text.split()[0] == "Double"
            lengths.setdefault("doubles" if kind else "math-skills", set()).add(request.sampling.max_tokens)
        return generate(engine, requests)

    monkeypatch.setattr(MockEngine, "generate", record_lengths)
    monkeypatch.setitem(TEACHERS._entries, "seeing", Seeing)
    result = teach.teach(out=tmp_path / "run", **(SEVERAL | {"teacher": "seeing"}))
    summary = result.summary
    for state in states:
        assert {a.skill for a in state.attempts} == {*SKILLS, "doubles/small", "doubles/large"}
        assert len(state.attempts) == state.report.count == 4 * 5
    assert len(lengths["doubles"]) == len(lengths["math-skills"]) == 1
    assert lengths["doubles"] == {7} != lengths["math-skills"]  # Each is asked as it would be alone.
    with Run.open(tmp_path / "run") as run:
        before, after = run.store.attempts("0/test"), run.store.attempts("2/test")
        taught = {example.skill for r in (1, 2) for example in run.store.lesson(r).examples}  # type: ignore[union-attr]
        assert teach.resume(run).summary == summary
    assert taught & set(SKILLS)
    assert taught & {"doubles/small", "doubles/large"}
    parts = {
        name: [
            [a for a in part if a.problem.id.startswith("doubles/") == (name == "doubles")] for part in (before, after)
        ]
        for name in ("doubles", "math-skills")
    }
    assert {name: row["problems"] for name, row in summary["test_tasks"].items()} == {"doubles": 8, "math-skills": 12}
    for name, (first, second) in parts.items():
        gain = measure_gain(first, second)
        row = summary["test_tasks"][name]
        assert (row["gain"], row["gain_low"]) == (
            pytest.approx(gain.points, abs=0.01),
            pytest.approx(gain.low, abs=0.01),
        )
    assert summary["gain"] == pytest.approx(measure_gain(before, after).points, abs=0.01)
    assert summary["problems"] == 20
    assert set(summary["by_skill"]) == {*SKILLS, "doubles/small", "doubles/large"}
    rounds = summary["validation_tasks"]["doubles"]
    assert [(row["round"], row["problems"]) for row in rounds] == [(0, 10), (1, 10), (2, 10)]
    page = write_report(tmp_path / "run").read_text()
    assert 'id="tasks"' in page
    assert "Validation, which the teacher sees" in page
    shown = [str(cell) for cell in gain_table(summary).columns[0].cells]
    assert {"task doubles", "task math-skills", "all"} <= set(shown)


def test_single_test_task_has_the_score_of_an_evaluation(tmp_path: Path) -> None:
    values = {"skills": ("addition",), "rounds": 1, "lesson_size": 4, "validation": 2, "threads": 1, "epochs": 1}
    result = teach.teach(out=tmp_path / "run", test_tasks=("math-skills skills=geometry problems=6",), **values)
    alone = evaluate.evaluate(out=tmp_path / "alone", skills=("geometry",), problems=6)
    label = "math-skills skills=geometry problems=6"
    assert list(result.summary["test_tasks"]) == [label]
    assert result.summary["before"] == pytest.approx(100 * (alone.report.accuracy or 0), abs=0.01)
    assert set(result.summary["by_skill"]) == {f"{label}/geometry"}


def test_validation_task_that_is_not_taught_gets_no_lessons(tmp_path: Path) -> None:
    values = SMALL | {"validation_tasks": ("math-skills", "doubles taught=false")}
    summary = teach.teach(out=tmp_path / "run", **values).summary
    assert set(summary["validation_tasks"]) == set(summary["test_tasks"]) == {"math-skills", "doubles"}
    given = {skill: row["examples"] for skill, row in summary["by_skill"].items()}
    assert (given["doubles/small"], given["doubles/large"], sum(given.values())) == (0, 0, 16)


def test_model_writes_for_all_tasks_of_one_data_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    further = "math-skills skills=geometry problems=4"
    monkeypatch.setattr(STUDENTS._entries["scripted"], "plan", defaultdict(lambda: 0.8, {0: 0.3}))
    with Server(skilled) as server:
        values = SMALL | {
            "skills": ("addition",), "rounds": 1, "validation": 4, "test": 2, "validation_tasks": ("math-skills", further, "doubles"),
            "teacher": "no_state", "writer": server.model, "cache": str(tmp_path / "calls.sqlite"),
            "checks": ("readable", "scorer"), "lesson_size": 12,
        }  # fmt: skip
        own = teach.teach(out=tmp_path / "own", **values).summary
        without = values | {"validation_tasks": ("math-skills", further), "teacher": "skill_list"}
        result = teach.teach(out=tmp_path / "found", discover=server.model, categories=2, **without).summary
    with Run.open(tmp_path / "own", read_only=True) as run:
        (inspection,), lesson = run.store.inspections(Inspection).values(), run.store.lesson(1)
        assert lesson is not None
        # DoublingTask has no data for a language model: it is seen, and not taught.
        assert {example.skill for example in lesson.examples} == {"addition", f"{further}/geometry"}
        assert (inspection.check("scorer").not_judged, inspection.check("scorer").failed) == (0, 0)
    assert set(own["validation_tasks"]) == {"math-skills", further, "doubles"}
    assert set(result["by_skill"]) == set(result["discovery"]["categories"]) == {"numbers", "shapes"}
    assert {name: row["problems"] for name, row in result["test_tasks"].items()} == {"math-skills": 2, further: 4}


def test_run_stopped_at_any_event_resumes_to_the_same_end(tmp_path: Path) -> None:
    values = SEVERAL | {"test_every_round": True, "checkpoints": "all"}
    events: list[Event] = []
    alone = teach.teach(out=tmp_path / "alone", listener=events.append, **values).summary
    lessons = (tmp_path / "alone" / "lessons.jsonl").read_bytes()

    class Stop(Exception):
        """The process ends here."""

    for stop in range(3, len(events), 7):
        seen: list[Event] = []

        def listener(event: Event, seen: list[Event] = seen, stop: int = stop) -> None:
            seen.append(event)
            if len(seen) == stop:
                raise Stop

        folder = tmp_path / f"stop-{stop}"
        with pytest.raises(Stop):
            teach.teach(out=folder, listener=listener, **values)
        with Run.open(folder) as run:
            assert drop_seconds(teach.resume(run).summary) == drop_seconds(alone)
        assert (folder / "lessons.jsonl").read_bytes() == lessons
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["round-1", "round-2"]
        assert len(json.loads((folder / "provenance.json").read_text())["resumed"]) == 1


def test_a_study_and_its_page_show_the_gain_on_every_test_task(tmp_path: Path) -> None:
    settings = TeachSettings(**(SEVERAL | {"teacher": "no_state"}))
    result = study(settings, {"keep": ["last", "best"]}, 1, out=tmp_path / "study")
    assert {name: mean.count for name, mean in result.rows[0].tasks.items()} == {"doubles": 1, "math-skills": 1}
    summary = json.loads((tmp_path / "study" / "summary.json").read_text())
    assert set(summary["rows"][0]["tasks"]) == {"doubles", "math-skills"}
    assert "Gain by test task" in write_report(tmp_path / "study").read_text()
    assert "  task doubles" in [str(cell) for cell in study_table(result).columns[0].cells]
    assert json.loads((tmp_path / "study" / "provenance.json").read_text())["started"]["models"]["nano"]["sha256"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"test_tasks": ("doubels",)}, "doubles"),
        ({"test_tasks": ("doubles path=x",)}, "'path'"),
        ({"test_tasks": ("doubles,doubles",)}, "given twice"),
        ({"test_tasks": ("doubles skills=tiny",)}, "tiny"),
        ({"test_tasks": ("doubles problems=many",)}, "whole number"),
        ({"validation_tasks": ("doubles taught=no",)}, "true or false"),
        ({"test_tasks": ("doubles size",)}, "name=value"),
        ({"validation_tasks": ("",)}, "name of a task"),
        ({"validation_tasks": ('doubles word="a',)}, "no closing quotation"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PalaestraError, match=message) as raised:
        teach.teach(out=tmp_path / "run", **(SMALL | values))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_test_problem_in_validation_of_other_task_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reshuffled(DoublingTask):
        def problems(self, split: Any, per_skill: int, seed: int, skills: Any = ()) -> Any:
            return super().problems("validation" if split == "test" else split, per_skill, seed, skills)  # type: ignore[arg-type]

    monkeypatch.setitem(TASKS._entries, "reshuffled", Reshuffled)
    values = SMALL | {"validation_tasks": ("doubles",), "test_tasks": ("reshuffled",)}
    with pytest.raises(PalaestraError, match=r"reshuffled/small-1000 .*doubles/"):
        teach.teach(out=tmp_path / "run", **values)


def test_entries_are_read_with_their_options() -> None:
    (entry,) = parse_entries(['math path="a b" levels=[1,2] problems=3 skills=algebra,geometry'], "test_tasks")
    assert (entry.name, entry.options) == ("math", {"path": "a b", "levels": [1, 2]})
    assert (entry.problems, entry.skills) == (3, ("algebra", "geometry"))


def test_the_command_takes_several_tasks_and_tests_every_round(tmp_path: Path) -> None:
    done = processes.run_command(
        "teach",
        "--skill",
        "addition",
        "--rounds",
        "1",
        "--lesson-size",
        "4",
        "--validation",
        "1",
        "--test",
        "2",
        "--epochs",
        "1",
        "--threads",
        "1",
        "--test-every-round",
        "--checkpoints",
        "all",
        "--teacher",
        "no_state",
        "--validation-task",
        "math-skills",
        "--test-task",
        "math-skills",
        "--test-task",
        "math-skills skills=percent,geometry",
        "--out",
        tmp_path / "run",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "test accuracy in % after every round" in done.stdout
    assert "task math-skills" in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [row["round"] for row in summary["test_rounds"]] == [0, 1]
    command = json.loads((tmp_path / "run" / "provenance.json").read_text())["started"]["command"]
    assert "math-skills skills=percent,geometry" in command
