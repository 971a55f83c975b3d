"""Skill discovery in whole `teach` runs, with a real server, a real student and a scripted model."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_server import Call, Reply, Server
from skilled_model import SHY, question_of, skilled, stage_of

from palaestra.core.errors import BudgetSpentError, RunError, SettingsError, TaskError
from palaestra.core.records import Split
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.run import Run
from palaestra.runs.store import Store
from palaestra.tasks.math.task import MathSkills
from palaestra.teachers.quality.base import Inspection
from palaestra.teachers.skills.overview import agreement
from palaestra.teachers.skills.records import SkillMap
from palaestra.teachers.skills.task import map_own_skills

SKILLS = ("addition", "geometry")
VALIDATION, TEST = 4, 2
SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 1, "lesson_size": 8, "validation": VALIDATION, "test": TEST, "epochs": 1, "threads": 1,
    "teacher": "skill_list", "answer_tokens": 24, "categories": 2,
}  # fmt: skip
DIFFERENT = {"seconds", "calls", "prompt_tokens", "completion_tokens"}
"""What a run from the cache may say otherwise."""
NAMED = 2 * VALIDATION + 2  # The one that it does not name is asked twice more.
CALLS = NAMED + 1 + 1 + 2 * TEST


def run_discovery(server: Server, folder: Path, **values: Any) -> teach.TeachResult:
    model = {"writer": server.model, "discover": server.model, "cache": str(folder.parent / "calls.sqlite")}
    return teach.teach(out=folder, **(SMALL | model | values))


def count_stages(server: Server, start: int = 0) -> dict[str, int]:
    return dict(Counter(map(stage_of, server.calls[start:])))


def list_questions(split: Split, count: int) -> set[str]:
    return {problem.messages[-1].text for problem in MathSkills().problems(split, count, 0, SKILLS)}


def drop_costs(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in DIFFERENT}


@pytest.mark.backends
def test_teachers_use_discovered_skills_and_rerun_makes_no_call(tmp_path: Path) -> None:
    with Server(skilled) as server:
        first = run_discovery(server, tmp_path / "first").summary
        calls = len(server.calls)
        again = run_discovery(server, tmp_path / "again").summary
        assert len(server.calls) == calls
        tree = run_discovery(server, tmp_path / "tree", teacher="skill_tree", categories=3).summary
        assert set(count_stages(server, calls)) == {"cluster", "assign", "write"}  # The names are known.
    assert (first["calls"], again["calls"]) == (calls, 0)
    assert drop_costs(first) == drop_costs(again)
    result = first["discovery"]
    numbers, shapes = (result["categories"][name] for name in ("numbers", "shapes"))
    assert (numbers["problems"], shapes["problems"]) == (VALIDATION, VALIDATION)
    assert (numbers["test"], shapes["test"]) == (TEST, TEST)
    assert (numbers["gold"], shapes["gold"]) == ({"addition": VALIDATION}, {"geometry": VALIDATION})
    assert shapes["names"] == {"perimeter of a field": 2, "area of a field": 1, "side of a field": 1}
    assert result["agreement"]["adjusted_rand"] == result["agreement_test"]["purity"] == 1.0
    assert (result["unnamed"], result["unassigned"], result["repairs"]) == ({"malformed": 1}, {}, [])
    assert (result["reasked"], result["wanted"], result["problems"], result["test"]) == ({"names": 2}, 2, 8, 4)
    assert set(first["by_skill"]) == {"numbers", "shapes"}
    assert set(tree["by_skill"]) == {"numbers", "shapes", "sides"}
    assert sum(part["problems"] for part in first["by_skill"].values()) == 2 * TEST
    with Run.open(tmp_path / "tree", read_only=True) as run:
        lesson, (inspection,) = run.store.lesson(1), run.store.inspections(Inspection).values()
        assert lesson is not None
        assert {decision.skill for decision in lesson.decisions} >= {"numbers", "shapes", "sides"}
        assert {example.skill for example in lesson.examples} <= {"numbers", "shapes", "sides"}
        # The task's own scorer judges what is taught, though it has never heard of these skills.
        for check in (inspection.check("scorer"), inspection.check("solved")):
            assert (check.given > 0, check.not_judged, check.failed) == (True, 0, 0)
        skills = {attempt.problem.skill for phase in run.store.phases() for attempt in run.store.attempts(phase)}
    assert skills - {""} == {"numbers", "shapes", "sides"}  # Rehearsed train problems have no skill.


@pytest.fixture(scope="module")
def train_discovery(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Call]]:
    """A run that also names train problems: its folder, its discovery and its calls."""
    folder = tmp_path_factory.mktemp("discovery") / "run"
    with Server(skilled) as server:
        result = run_discovery(server, folder, discover_train=2).summary["discovery"]
        return folder, result, list(server.calls)


def test_test_problems_shape_nothing_and_no_teacher_sees_them(
    train_discovery: tuple[Path, dict[str, Any], list[Call]],
) -> None:
    _, _, calls = train_discovery
    shaping = list_questions(Split.VALIDATION, VALIDATION) | list_questions(Split.TRAIN, 2)
    by_stage: dict[str, list[Call]] = {}
    for call in calls:
        by_stage.setdefault(stage_of(call), []).append(call)
    assert {question_of(call) for call in by_stage["name"]} == shaping
    assert {question_of(call) for call in by_stage["assign"]} == {SHY, *list_questions(Split.TEST, TEST)}
    reported = json.dumps([call.body for call in (*by_stage["cluster"], *by_stage["write"])])
    assert not [question for question in list_questions(Split.TEST, TEST) if question in reported]
    secrets = {problem.id for problem in MathSkills().problems(Split.VALIDATION, VALIDATION, 0, SKILLS)}
    assert not [secret for secret in secrets if secret in json.dumps([call.body for call in calls])]


def test_report_shows_categories_names_and_agreement(
    train_discovery: tuple[Path, dict[str, Any], list[Call]],
) -> None:
    folder, result, _ = train_discovery
    page = write_report(folder).read_text()
    section = page[page.index('<section id="discovery">') :].split("</section>")[0]
    for row in result["categories"].values():
        assert all(f"{name}&nbsp;{count}" in section for name, count in row["names"].items())
        assert all(f"{name}&nbsp;{count}" in section for name, count in row["gold"].items())
    assert f"<td>{result['agreement']['adjusted_rand']:.2f}</td>" in section
    assert "0 is chance" in section
    assert "1 problem could not be named (malformed 1)" in section
    assert "retried 2 times because an answer was invalid (names 2)" in section
    assert (
        "named the skills of 11 of 12 problems, with 5 different names, and grouped them into 2 categories" in section
    )
    assert "The discovery has not ended" not in section
    task = MathSkills()
    asked = [*task.problems(Split.VALIDATION, VALIDATION, 0, SKILLS), *task.problems(Split.TRAIN, 2, 0, SKILLS)]
    with Run.open(folder, read_only=True) as run:
        compared = agreement(run.store.skills(SkillMap)["assignment"], map_own_skills(task, asked))
    assert (result["agreement"]["problems"], compared.problems) == (len(asked), len(asked))
    assert result["agreement"]["adjusted_rand"] == compared.adjusted_rand


def test_discovery_resumes_after_each_stage_without_new_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last instant before a stage is stored is the worst: all its calls are made, and none of it is in the store."""
    add, stopped = Store.add_skills, []

    def stop(self: Store, stage: str, *rest: Any) -> None:
        if stage not in stopped and stage != "own":
            stopped.append(stage)
            raise KeyboardInterrupt
        add(self, stage, *rest)

    with Server(skilled) as server:
        whole = run_discovery(server, tmp_path / "whole", cache=str(tmp_path / "other.sqlite"))
        calls = count_stages(server)
        assert {name: calls[name] for name in ("name", "cluster", "assign")} == {
            "name": NAMED,
            "cluster": 1,
            "assign": 1 + 2 * TEST,
        }
        built = len(server.calls)
        monkeypatch.setattr(Store, "add_skills", stop)
        with pytest.raises(KeyboardInterrupt):
            run_discovery(server, tmp_path / "run")
        page = write_report(tmp_path / "run").read_text()
        assert "The run has not ended" in page
        assert "Discovered skills" not in page
        with Run.open(tmp_path / "run") as run:
            for done in ("names", "categories", "assignment"):
                with pytest.raises(KeyboardInterrupt):
                    teach.resume(run)
                assert done in run.store.skills(SkillMap)
                assert "The discovery has not ended" in write_report(tmp_path / "run").read_text()
            result = teach.resume(run)
            spent = run.store.total("skill discovery")
        assert stopped == ["names", "categories", "assignment", "test"]
        assert count_stages(server, built) == calls
    assert drop_costs(result.summary) == drop_costs(whole.summary)
    assert result.summary["calls"] == whole.summary["calls"]
    assert spent.calls == CALLS


def test_spent_budget_stops_discovery_and_counts_all_tokens(tmp_path: Path) -> None:
    with Server(skilled) as server:
        with pytest.raises(BudgetSpentError, match="--max-calls"):
            run_discovery(server, tmp_path / "run", max_calls=5, in_flight=2)
        assert len(server.calls) == 5
        with Run.open(tmp_path / "run") as run:
            assert (run.store.skills(SkillMap), run.store.phases()) == ({}, [])
            assert run.store.total("skill discovery").calls == 5
            with pytest.raises(BudgetSpentError):
                teach.resume(run, max_calls=NAMED + 1)
            assert "categories" in run.store.skills(SkillMap)
            # The writer draws on the same budget: the discovery fits into it, and a lesson does not.
            with pytest.raises(BudgetSpentError):
                teach.resume(run, max_calls=CALLS)
            assert run.store.lesson(1) is None
            spent = run.store.total("skill discovery")
            assert (spent.calls, len(server.calls)) == (CALLS, CALLS)
            assert (spent.prompt_tokens, spent.completion_tokens) == (server.prompt_tokens, server.completion_tokens)
            summary = teach.resume(run, max_calls=100).summary
        assert summary["calls"] == len(server.calls)


def test_model_that_names_nothing_ends_run_with_its_reply(tmp_path: Path) -> None:
    with Server(lambda call, times: Reply("I would\nrather not.")) as server:
        with pytest.raises(TaskError, match=r"none of 8 problems \(malformed 8\)") as caught:
            run_discovery(server, tmp_path / "run")
        assert "I would rather not." in str(caught.value)
        assert "another model" in str(caught.value)
        assert "\n" not in str(caught.value)
        calls = len(server.calls)
        with Run.open(tmp_path / "run") as run:
            assert (run.store.skills(SkillMap), run.store.phases(), run.summary) == ({}, [], None)
            assert run.store.total("skill discovery").calls == calls == 24
            with pytest.raises(TaskError):
                teach.resume(run)
        assert len(server.calls) == calls
    assert "The run has not ended" in write_report(tmp_path / "run").read_text()


def test_unclustered_names_are_kept_for_other_categories(tmp_path: Path) -> None:
    def fail_at_two(call: Call, times: int) -> Reply:
        hard = stage_of(call) == "cluster" and "exactly 2" in call.body["messages"][0]["content"]
        return Reply('{"groups": 2}') if hard else skilled(call, times)

    with Server(fail_at_two) as server:
        with pytest.raises(TaskError, match=r"7 of 8 problems .*no categories"):
            run_discovery(server, tmp_path / "run")
        with Run.open(tmp_path / "run") as run:
            assert set(run.store.skills(SkillMap)) == {"names", "own"}
            before = len(server.calls)
            with pytest.raises(SettingsError, match="'categories'"):
                teach.resume(run, categories=-1)
            result = teach.resume(run, categories=3).summary["discovery"]
            assert run.settings["categories"] == 3
        assert "name" not in count_stages(server, before)
    assert set(result["categories"]) == {"numbers", "shapes", "sides"}
    assert result["agreement"]["adjusted_rand"] < 1.0 == result["agreement"]["purity"]


@pytest.mark.backends
def test_other_categories_reuse_names_until_a_lesson_is_taught(tmp_path: Path) -> None:
    with Server(skilled) as server:
        straight = run_discovery(server, tmp_path / "straight", categories=3, cache=str(tmp_path / "other.sqlite"))
        with pytest.raises(BudgetSpentError):
            run_discovery(server, tmp_path / "run", max_calls=CALLS)
        before = len(server.calls)
        with Run.open(tmp_path / "run") as run:
            assert set(run.store.phases()) == {"0/rehearsal", "0/validation", "0/test"}
            result = teach.resume(run, categories=3, max_calls=100)
            assert count_stages(server, before)["cluster"] == 1
            assert "name" not in count_stages(server, before)
            # The student's answers are stored under the skills as they are now.
            skills = {attempt.problem.skill for phase in run.store.phases() for attempt in run.store.attempts(phase)}
            assert skills - {""} == {"numbers", "shapes", "sides"}
            with pytest.raises(RunError, match=r"new run.*--categories 2"):
                teach.resume(run, categories=2)
            assert run.settings["categories"] == 3
        assert drop_costs(result.summary) == drop_costs(straight.summary)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"writer": "task"}, "'math-skills' .*own skills only"),
        ({"discover": ""}, "'categories' .*discovers skills"),
        ({"discover": "", "categories": 0, "discover_train": 3}, "'discover_train'"),
        ({"discover": "openai:gpt-4o-mini"}, "OPENAI_API_KEY"),
        ({"discover": "nanoo"}, "'nano'"),
        ({"categories": -1}, "'categories': .*at least 0"),
    ],
)
def test_invalid_discovery_is_refused_before_writing(
    values: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = {"writer": "http://127.0.0.1:9/v1#nobody", "discover": "http://127.0.0.1:9/v1#nobody"}
    with pytest.raises(Exception, match=expected) as caught:
        teach.teach(out=tmp_path / "run", **(SMALL | model | values))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
