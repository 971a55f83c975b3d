"""Studies: several seeds and settings, and one table."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import RunError, SettingsError, UnknownNameError
from palaestra.core.records import Event
from palaestra.recipes.teach import recipe as teach
from palaestra.recipes.teach.settings import TeachSettings
from palaestra.recipes.teach.study import read_study, study

SMALL: dict[str, Any] = {
    "skills": ("addition",), "rounds": 1, "lesson_size": 4, "validation": 2, "test": 2, "epochs": 1, "threads": 1, "answer_tokens": 24,
}  # fmt: skip
GRID = {"teacher": ["no_state", "skill_list"], "state": ["on", "off"]}


def test_study_runs_all_combinations_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    original = teach.start

    def start_or_stop(settings: TeachSettings, *rest: Any) -> Any:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(f"{settings.teacher}/{settings.state}/{settings.seed}")
        return original(settings, *rest)

    monkeypatch.setattr(teach, "start", start_or_stop)
    with pytest.raises(KeyboardInterrupt):
        study(TeachSettings(**SMALL, seed=3), GRID, 2, out=tmp_path / "study")
    monkeypatch.setattr(teach, "start", original)
    events: list[Event] = []
    result = study(TeachSettings(**SMALL, seed=3), GRID, 2, out=tmp_path / "study", listener=events.append)
    assert trained == ["no_state/on/3", "no_state/off/3", "skill_list/on/3"]
    assert sum(event.phase == "load" for event in events) == 5  # Three of eight were there.
    assert [row.name for row in result.rows] == [
        "no_state-state_on",
        "no_state-state_off",
        "skill_list-state_on",
        "skill_list-state_off",
    ]
    assert [sorted(row.gains) for row in result.rows] == [[3, 4]] * 4
    # A teacher that looks at nothing does the same whatever it is shown.
    assert result.rows[0].gains == result.rows[1].gains
    assert result.rows[0].ahead is None
    assert result.rows[1].ahead is not None
    assert result.rows[1].ahead.value == 0.0
    summary = json.loads((tmp_path / "study" / "summary.json").read_text())
    assert [row["name"] for row in summary["rows"]] == [row.name for row in result.rows]
    assert {path.name for path in (tmp_path / "study").iterdir() if path.is_dir()} == {
        f"{row.name}-seed{seed}" for row in result.rows for seed in (3, 4)
    }
    plan = (tmp_path / "study" / "study.json").read_text()
    with pytest.raises(RunError, match="other settings"):
        study(TeachSettings(**{**SMALL, "epochs": 2}, seed=3), GRID, 2, out=tmp_path / "study")
    assert (tmp_path / "study" / "study.json").read_text() == plan
    # Other limits are no other runs.
    again = study(TeachSettings(**{**SMALL, "max_calls": 5}, seed=3), GRID, 2, out=tmp_path / "study")
    assert again.rows == read_study(tmp_path / "study").rows == result.rows
    assert {(pair["first"], pair["second"]) for pair in summary["pairs"]} == {
        (item.name, other.name) for item, other in combinations(result.rows, 2)
    }
    equal = summary["pairs"][0]
    assert (equal["difference"], equal["p_value"], equal["adjusted"], equal["exact"]) == (0.0, 1.0, 1.0, 1.0)
    with pytest.raises(RunError, match="not a study"):
        study(TeachSettings(**SMALL, seed=3), GRID, 2, out=tmp_path / "study" / f"{result.rows[0].name}-seed3")


def test_what_cannot_be_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    settings = TeachSettings(**SMALL)
    with pytest.raises(UnknownNameError, match="'skill_list'"):
        study(settings, {"teacher": ["no_state", "skil_list"]}, 1, out=tmp_path / "study")
    with pytest.raises(SettingsError, match="'state'"):
        study(settings, {"state": ["on", "of"]}, 1, out=tmp_path / "study")
    with pytest.raises(SettingsError, match="'rounds'"):
        study(settings, {"rounds": ["1", "2"]}, 1, out=tmp_path / "study")
    with pytest.raises(SettingsError, match="seed; got 0"):
        study(settings, {}, 0, out=tmp_path / "study")
    assert not (tmp_path / "study").exists()
