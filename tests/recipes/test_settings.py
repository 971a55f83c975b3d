import json
from pathlib import Path

import pytest

from palaestra.core.errors import SettingsError
from palaestra.recipes.evaluate.settings import EvaluateSettings
from palaestra.recipes.settings import build, list_settings, read_values, to_plain
from palaestra.recipes.teach.settings import TeachSettings

KINDS = [TeachSettings, EvaluateSettings]


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_documented(kind: type) -> None:
    assert all(help_text.endswith(".") for _, _, help_text in list_settings(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_settings_survive_a_file(kind: type, tmp_path: Path) -> None:
    settings = build(kind, {"skills": ["clock"], "seed": 4})
    (tmp_path / "s.json").write_text(json.dumps(to_plain(settings)))
    assert build(kind, read_values(tmp_path / "s.json")) == settings


def test_the_settings_file_of_a_run_serves_as_well(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"format": 1, "recipe": "teach", "settings": {"seed": 9}}))
    assert read_values(tmp_path / "settings.json") == {"seed": 9}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"round": 3}, "unknown setting 'round'; did you mean 'rounds'"),
        ({"rounds": "three"}, "setting 'rounds': input should be a valid integer; got 'three'"),
        ({"rounds": 2.5}, "setting 'rounds'"),
        ({"rounds": "3"}, "setting 'rounds'"),
        ({"rounds": 0}, "setting 'rounds': expected at least 1; got 0"),
        ({"seed": -1}, "setting 'seed': expected at least 0; got -1"),
        ({"method": "half"}, "setting 'method': input should be 'auto', 'full' or 'lora'"),
        ({"skills": "clock"}, "setting 'skills'"),
        ({"seed": True}, "setting 'seed'"),
        ({"seed": object()}, "plain values"),
    ],
)
def test_a_bad_setting_is_one_clear_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(TeachSettings, values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[1]", "{", "null"])
def test_a_file_that_is_no_settings_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(SettingsError, match="settings file"):
        read_values(tmp_path / "s.json")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"settings file nowhere\.json does not exist"):
        read_values(Path("nowhere.json"))
