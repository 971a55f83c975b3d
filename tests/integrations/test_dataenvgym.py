"""DataEnvGym's runner: every budget counts all data."""

import json
from pathlib import Path

import pytest

from palaestra import LessonEnv, make_teacher, run_episode
from palaestra.core.errors import SettingsError
from palaestra.core.records import Lesson
from palaestra.models.registry import LoadedModel
from palaestra.runs.files import from_json
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision

SMALL = {"skills": ("geometry", "addition"), "validation": 2, "test": 2, "rounds": 5, "budget": 100}


@pytest.fixture
def env(fresh_nano: LoadedModel) -> LessonEnv:
    return LessonEnv(student=SupervisedStudent(fresh_nano, Supervision(epochs=1)), **SMALL)  # type: ignore[arg-type]


def test_the_stop_counts_all_data_and_no_lesson_goes_beyond_it(env: LessonEnv, tmp_path: Path) -> None:
    teacher = make_teacher("no_state", env.task, ("geometry", "addition"))
    reports = run_episode(
        environment=env,
        data_generation_agent=teacher,
        io_provider=tmp_path / "kept",
        stop_at_num_training_data=25,
        num_iterations=10,
        data_per_iteration=10,
    )
    assert list(reports) == [0, 1, 2, 3]
    sizes = [len(from_json(Lesson, (tmp_path / "kept" / f"lesson-{k}.json").read_text()).examples) for k in (1, 2, 3)]
    assert sizes == [10, 10, 5]
    assert "test" in reports[0]
    assert json.loads((tmp_path / "kept" / "validation-3.json").read_text())["count"] == reports[3]["validation"].count


@pytest.mark.backends
def test_iterations_or_rounds_end_an_episode(env: LessonEnv) -> None:
    teacher = make_teacher("no_state", env.task, ("geometry",))
    assert list(run_episode(env, teacher, num_iterations=2, data_per_iteration=4)) == [0, 1, 2]
    results = run_episode(env, teacher, num_iterations=9, data_per_iteration=4)
    assert list(results) == [0, 1, 2, 3, 4, 5]
    assert "test" in results[5]


@pytest.mark.parametrize("values", [{"num_iterations": 0}, {"stop_at_num_training_data": 0}, {"data_per_iteration": 0}])
def test_numbers_that_make_no_sense_are_refused(env: LessonEnv, values: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(values))} .*0"):
        run_episode(env, make_teacher("no_state", env.task), **values)  # type: ignore[arg-type]
