import json
from itertools import pairwise
from pathlib import Path

import pytest

from palaestra.core.errors import LessonError, ModelError, RunError, SettingsError, TaskError, UnknownNameError
from palaestra.core.records import Event, Lesson, Split
from palaestra.core.statistics import measure_gain
from palaestra.envs.lesson.env import REHEARSAL
from palaestra.recipes.evaluate import recipe as evaluate
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.runs.run import Run
from palaestra.tasks.base import TaskHooks, get_hooks, make_task
from palaestra.teachers.base import TEACHERS
from palaestra.teachers.simple import NoState

SMALL = {"skills": ("geometry", "percent", "addition"), "rounds": 2, "lesson_size": 40, "validation": 4, "test": 8, "threads": 1}  # fmt: skip

TINY = {**SMALL, "lesson_size": 6, "validation": 2, "test": 2, "epochs": 1, "answer_tokens": 24}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> teach.TeachResult:
    events: list[Event] = []
    outcome = teach.teach(out=tmp_path_factory.mktemp("runs") / "run", listener=events.append, **SMALL)
    phases = {event.phase for event in events}
    assert {"load", "lesson", "train", "0/validation", "2/test"} <= phases
    return outcome


def test_the_summary_has_the_promised_figures(result: teach.TeachResult) -> None:
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary == result.summary
    for name in (
        "before",
        "after",
        "gain",
        "gain_low",
        "gain_high",
        "rounds",
        "examples",
        "failures",
        "seconds",
        "weights_sha256",
    ):
        assert name in summary
    assert (summary["rounds"], summary["examples"], summary["failures"]) == (2, 80, {})
    assert set(summary["by_skill"]) == set(SMALL["skills"])  # type: ignore[call-overload]
    for row in summary["by_skill"].values():
        assert row["gain_low"] <= row["gain"] <= row["gain_high"]
    assert sum(row["examples"] for row in summary["by_skill"].values()) == 80


def test_the_student_learns(result: teach.TeachResult) -> None:
    assert result.summary["gain"] > 15
    assert result.summary["gain_low"] > 0


def test_the_metrics_are_those_of_the_attempts_in_the_store(result: teach.TeachResult) -> None:
    with Run.open(result.folder) as run:
        before, after = run.store.attempts("0/test"), run.store.attempts("2/test")
        assert result.summary["gain"] == pytest.approx(measure_gain(before, after).points, abs=0.01)
        # The same problems in the same words: a change of the prompt is no gain.
        assert [a.problem for a in before] == [a.problem for a in after]
        assert run.store.weights_sha256(2) == result.summary["weights_sha256"]
        assert set(run.store.curves()) == {1, 2}


def test_rewards_of_rounds_and_skills_are_stored(result: teach.TeachResult) -> None:
    with Run.open(result.folder) as run:
        metrics = run.store.metrics()
        measured = [run.store.attempts(f"{round_}/validation") for round_ in range(3)]
    assert set(metrics) == {1, 2}
    for skill in ("", *result.summary["by_skill"]):
        reported = (result.summary["by_skill"][skill] if skill else result.summary)["rewards"]
        name = f"reward/{skill}" if skill else "reward"
        assert [item["round"] for item in reported] == [1, 2]
        for item, (before, after) in zip(reported, pairwise(measured), strict=True):
            gain = measure_gain(*([a for a in part if skill in ("", a.problem.skill)] for part in (before, after)))
            assert (item["points"], item["problems"]) == (pytest.approx(gain.points, abs=0.01), gain.count)
            assert item["low"] <= item["points"] <= item["high"]
            row = metrics[item["round"]]
            assert (row[name], row[f"{name}_count"]) == (pytest.approx(gain.points / 100), gain.count)
    assert [metrics[round_]["reward"] for round_ in (1, 2)] == pytest.approx(result.trajectory.rewards)


def test_no_lesson_holds_a_validation_or_test_question(result: teach.TeachResult) -> None:
    with Run.open(result.folder) as run:
        taught = {e.messages[0].text for r in (1, 2) for e in run.store.lesson(r).examples}  # type: ignore[union-attr]
        asked = {
            a.problem.messages[0].text for p in run.store.phases() if p != REHEARSAL for a in run.store.attempts(p)
        }
    assert taught.isdisjoint(asked)


def test_the_same_settings_give_the_same_metrics_and_weights(tmp_path: Path) -> None:
    first, again = (teach.teach(out=tmp_path / name, **TINY).summary for name in ("first", "again"))
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in first.items() if k != "seconds"}


def test_tasks_set_the_amounts_of_their_own_lessons() -> None:
    task = make_task("tools-skills")
    hooks, defaults = get_hooks(task), (TaskHooks.lesson_size, TaskHooks.epochs, TaskHooks.learning_rate)
    own = hooks.lesson_size, hooks.epochs, hooks.learning_rate
    assert not set(own) & set(defaults)
    assert TeachSettings().get_amounts(task) == own
    assert TeachSettings(lesson_size=7).get_amounts(task) == (7, *defaults[1:])
    assert TeachSettings(epochs=2).get_amounts(task) == (own[0], 2, own[2])
    assert TeachSettings(learning_rate=0.1).get_amounts(task) == (*own[:2], 0.1)
    assert TeachSettings(budget=100).get_amounts(task) == defaults
    # Lessons of a model cost money.
    assert TeachSettings(writer="mock:x").get_amounts(task) == defaults


def test_resuming_a_finished_run_changes_nothing(result: teach.TeachResult) -> None:
    before = {f: f.read_bytes() for f in result.folder.rglob("*.json")}
    with Run.open(result.folder) as run:
        assert teach.resume(run).summary == result.summary
    assert {f: f.read_bytes() for f in result.folder.rglob("*.json")} == before


def test_the_taught_student_evaluates_as_the_run_said(result: teach.TeachResult, tmp_path: Path) -> None:
    weights = str(result.folder / "checkpoints" / "round-2")
    outcome = evaluate.evaluate(model=weights, skills=SMALL["skills"], problems=8, out=tmp_path / "e")
    assert 100 * outcome.report.accuracy == pytest.approx(result.summary["after"], abs=0.01)  # type: ignore[operator]
    with Run.open(tmp_path / "e") as run:
        assert evaluate.resume(run).summary == outcome.summary
        assert run.store.phases() == [f"0/{Split.TEST}"]


def test_a_damaged_checkpoint_is_noticed_before_it_is_used(result: teach.TeachResult, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(result.folder, tmp_path / "copy")
    weights = tmp_path / "copy" / "checkpoints" / "round-2" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 0xFF
    weights.write_bytes(data)
    with Run.open(tmp_path / "copy") as run:
        run.store._db.execute("DELETE FROM attempts WHERE phase='2/test'")
        with pytest.raises(RunError, match="changed after"):
            teach.resume(run)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"task": "math-skill"}, UnknownNameError),
        ({"teacher": "nostate"}, UnknownNameError),
        ({"student": "nanoo"}, UnknownNameError),
        ({"skills": ("clok",)}, UnknownNameError),
        ({"rounds": "2"}, SettingsError),
        ({"settings": teach.TeachSettings(), "seed": 1}, SettingsError),
    ],
)
def test_bad_names_are_refused_before_anything_is_written(
    values: dict[str, object], error: type, tmp_path: Path
) -> None:
    with pytest.raises(error):
        teach.teach(out=tmp_path / "run", **values)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_too_many_problems_are_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="100000 test problems"):
        teach.teach(out=tmp_path / "run", test=100_000)
    with pytest.raises(TaskError, match="given twice"):
        evaluate.evaluate(out=tmp_path / "run", skills=("clock", "clock"))
    assert not (tmp_path / "run").exists()


def test_a_model_that_cannot_be_loaded_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nobody/nothing"):
        teach.teach(out=tmp_path / "run", student="nobody/nothing")
    with pytest.raises(SettingsError, match="'nowhere'"):
        teach.teach(out=tmp_path / "run", device="nowhere")
    assert not (tmp_path / "run").exists()


class Lazy:
    """A teacher that writes nothing at first, and well once it is mended."""

    mended = False

    def __init__(self, task: object, skills: tuple[str, ...] = ()) -> None:
        self.other = NoState(task, skills)  # type: ignore[arg-type]

    def write(self, state: object, size: int, generator: object) -> Lesson:
        return self.other.write(state, size, generator) if self.mended else Lesson(())  # type: ignore[arg-type]


def test_failed_lesson_is_not_stored_and_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEACHERS._entries, "lazy", Lazy)
    values = {**TINY, "teacher": "lazy", "rounds": 1}
    with pytest.raises(LessonError, match="'lazy'"):
        teach.teach(out=tmp_path / "run", **values)  # type: ignore[arg-type]
    monkeypatch.setattr(Lazy, "mended", True)
    with Run.open(tmp_path / "run") as run:
        assert run.store.lesson(1) is None
        assert teach.resume(run).summary["examples"] == 6


@pytest.mark.parametrize("learning", ["preference", "practice"])
def test_student_learns_by_other_methods_from_last_round(learning: str, tmp_path: Path) -> None:
    values = {
        "skills": ("average",),
        "rounds": 2,
        "lesson_size": 8,
        "validation": 2,
        "test": 2,
        "threads": 1,
        "epochs": 1,
    }
    options = {"passes": 1.0, "problems": 4, "group_size": 2} if learning == "practice" else {"samples": 2}
    outcome = teach.teach(out=tmp_path / "run", learning=learning, student_kwargs=options, start="last", **values)
    assert outcome.summary["examples"] == 16
    with Run.open(tmp_path / "run") as run:
        first, second = (run.store.weights_sha256(round_) for round_ in (1, 2))
        assert first != second == outcome.summary["weights_sha256"]
        assert teach.resume(run).summary["weights_sha256"] == second
    with pytest.raises(SettingsError, match="'bata'"):
        teach.teach(out=tmp_path / "other", learning=learning, student_kwargs={"bata": 1}, **values)
    assert not (tmp_path / "other").exists()
