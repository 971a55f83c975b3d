"""`keep=best`: the best round on validation, chosen without the test split, also after interruptions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_student import SKILLS, ScriptedStudent, weights_of

from palaestra import LessonEnv, make_teacher, run_episode
from palaestra.core.errors import SettingsError
from palaestra.core.records import Event
from palaestra.core.statistics import measure_gain
from palaestra.envs.lesson.state import RoundCheckpoints
from palaestra.envs.lesson.student import STUDENTS
from palaestra.recipes.teach import recipe as teach
from palaestra.report import write_report
from palaestra.runs.run import Run

SMALL: dict[str, Any] = {
    "skills": SKILLS, "rounds": 3, "lesson_size": 6, "validation": 10, "test": 10, "teacher": "no_state", "answer_tokens": 24,
    "learning": "scripted", "threads": 1,
}  # fmt: skip


@pytest.fixture
def set_accuracies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that sets the student's accuracy after each round."""

    def register_student(*accuracies: float) -> None:
        monkeypatch.setitem(STUDENTS._entries, "scripted", ScriptedStudent.following(*accuracies, lesson=6))

    return register_student


def list_checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def drop_seconds(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "seconds"}


@pytest.mark.parametrize("start", ["base", "last"])
def test_only_the_best_round_is_tested(set_accuracies: Any, start: str, tmp_path: Path) -> None:
    set_accuracies(0.2, 0.9, 0.4, 0.6)
    last = teach.teach(out=tmp_path / "last", start=start, **SMALL).summary
    best = teach.teach(out=tmp_path / "best", start=start, keep="best", **SMALL).summary
    assert (last["kept_round"], best["kept_round"], best["rounds"], best["examples"]) == (3, 1, 3, 18)
    assert best["after"] > last["after"] > last["before"] == best["before"]
    assert (last["weights_sha256"], best["weights_sha256"]) == (weights_of(18), weights_of(6))
    assert (list_checkpoints(tmp_path / "last"), list_checkpoints(tmp_path / "best")) == (["round-3"], ["round-1"])
    with Run.open(tmp_path / "best") as run:
        assert [phase for phase in run.store.phases() if phase.endswith("test")] == ["0/test", "1/test"]
        gain = measure_gain(run.store.attempts("0/test"), run.store.attempts("1/test"))
        assert best["gain"] == pytest.approx(gain.points, abs=0.01)
        assert teach.resume(run).summary == best


def test_earlier_of_equal_rounds_is_kept(set_accuracies: Any, tmp_path: Path) -> None:
    set_accuracies(0.2, 0.3, 0.9, 0.9)
    assert teach.teach(out=tmp_path / "equal", keep="best", **SMALL).summary["kept_round"] == 2
    set_accuracies(0.9, 0.3, 0.9, 0.1)
    base = teach.teach(out=tmp_path / "base", keep="best", **SMALL).summary
    assert (base["kept_round"], base["gain"], base["weights_sha256"]) == (0, 0.0, weights_of(0))
    assert base["before"] == base["after"]
    assert list_checkpoints(tmp_path / "base") == []
    with Run.open(tmp_path / "base") as run:
        assert [phase for phase in run.store.phases() if phase.endswith("test")] == ["0/test"]
    page = write_report(tmp_path / "base").read_text()
    assert "Kept: the untaught student" in page
    assert "not measured yet" not in page


class Stop(Exception):
    """The process ends here."""


@pytest.mark.backends
@pytest.mark.parametrize("start", ["base", "last"])
def test_resumed_study_keeps_the_same_student(set_accuracies: Any, start: str, tmp_path: Path) -> None:
    set_accuracies(0.2, 0.6, 0.9, 0.4)
    values = SMALL | {"keep": "best", "start": start}
    events: list[Event] = []
    alone = teach.teach(out=tmp_path / "alone", listener=events.append, **values).summary
    assert alone["kept_round"] == 2
    assert [event.phase for event in events[:2]] == ["notice", "load"]  # Before there is a run to resume.
    for stop in range(3, len(events), 4):
        folder, seen = tmp_path / f"stop-{stop}", list[Event]()

        def listener(event: Event, seen: list[Event] = seen, stop: int = stop) -> None:
            seen.append(event)
            if len(seen) == stop:
                raise Stop

        with pytest.raises(Stop):
            teach.teach(out=folder, listener=listener, **values)
        with Run.open(folder) as run:
            assert drop_seconds(teach.resume(run).summary) == drop_seconds(alone)
        assert list_checkpoints(folder) == ["round-2"]


def test_a_stop_before_old_weights_are_removed_changes_nothing(
    set_accuracies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_accuracies(0.2, 0.9, 0.4, 0.6)
    values = SMALL | {"keep": "best"}
    alone = teach.teach(out=tmp_path / "alone", **values).summary
    original = RoundCheckpoints.tidy
    for stop in range(1, 5):  # After each of three trainings, and at the end.
        calls: list[int] = []

        def prune_or_stop(
            checkpoints: RoundCheckpoints, *rounds: int, calls: list[int] = calls, stop: int = stop
        ) -> None:
            calls.append(stop)
            if len(calls) == stop:
                raise Stop
            original(checkpoints, *rounds)

        with monkeypatch.context() as patched:
            patched.setattr(RoundCheckpoints, "tidy", prune_or_stop)
            with pytest.raises(Stop):
                teach.teach(out=tmp_path / f"stop-{stop}", **values)
        with Run.open(tmp_path / f"stop-{stop}") as run:
            assert drop_seconds(teach.resume(run).summary) == drop_seconds(alone)
        assert list_checkpoints(tmp_path / f"stop-{stop}") == ["round-1"]


def environment(*shares: float, **values: Any) -> LessonEnv:
    student = ScriptedStudent.following(*shares, lesson=6)()
    return LessonEnv(
        student=student, skills=SKILLS, validation=10, test=10, rounds=3, budget=100, keep="best", **values
    )


def test_round_without_training_is_not_better() -> None:
    env = environment(0.2, 0.9, 0.4)
    teacher = make_teacher("no_state", env.task, SKILLS)
    state, _ = env.reset(seed=0)
    state, *_ = env.step(teacher.write(state, 6, np.random.default_rng(0)))
    state, *_ = env.skip_round()
    *_, truncated, info = env.step(teacher.write(state, 6, np.random.default_rng(1)))
    assert truncated
    assert (info["kept_round"], info["kept_sha256"], info["weights_sha256"]) == (1, weights_of(6), weights_of(12))
    assert env.student.weights_sha256() == weights_of(6)
    assert info["test"].accuracy > 0.7


def test_an_episode_of_the_users_own_ends_with_the_best_student(tmp_path: Path) -> None:
    env = environment(0.2, 0.9, 0.4, 0.6)
    teacher = make_teacher("no_state", env.task, SKILLS)
    for _ in range(2):  # The second time over the weights of the first.
        reports = run_episode(env, teacher, tmp_path / "kept", num_iterations=2, data_per_iteration=6)
        assert [sorted(result) for result in reports.values()] == [
            ["test", "validation"],
            ["test", "validation"],
            ["validation"],
        ]
        assert (env.kept_round, env.student.weights_sha256()) == (1, weights_of(6))
        assert reports[1]["test"].accuracy > reports[0]["test"].accuracy  # type: ignore[operator]
    assert json.loads((tmp_path / "kept" / "test-1.json").read_text())["count"] == 20
    assert not (tmp_path / "kept" / "test-2.json").exists()


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(SettingsError, match="'keep'"):
        teach.teach(keep="first")
    with pytest.raises(SettingsError, match=r"keep: .*'last' or 'best'; got 'first'"):
        LessonEnv(student=ScriptedStudent(), keep="first")  # type: ignore[arg-type]
