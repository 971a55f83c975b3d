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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "# a comment\nskills: [clock, percent]\nlearning_rate: 1e-4\nseed: 4\nmethod: full\n"),
        ("s.YML", "skills:\n  - clock\n  - percent\nlearning_rate: 0.0001\nseed: 4\nmethod: full\n"),
        ("s.toml", 'skills = ["clock", "percent"]\nlearning_rate = 1e-4\nseed = 4\nmethod = "full"\n'),
    ],
)
def test_yaml_and_toml_hold_the_same_settings(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    values = {"skills": ["clock", "percent"], "learning_rate": 1e-4, "seed": 4, "method": "full"}
    assert build(TeachSettings, read_values(tmp_path / name)) == build(TeachSettings, values)


@pytest.mark.parametrize(("name", "kind"), [("s.yaml", "YAML"), ("s.toml", "TOML")])
@pytest.mark.parametrize("content", ["a: [1", "= 3", "\x00"])
def test_unreadable_file_of_another_format_is_one_clear_line(
    tmp_path: Path, name: str, kind: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=f"{name} .*({kind}|must contain)") as caught:
        build(TeachSettings, read_values(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_the_settings_file_of_a_run_serves_as_well(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps({"format": 1, "recipe": "teach", "settings": {"seed": 9}}))
    assert read_values(tmp_path / "settings.json") == {"seed": 9}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"round": 3}, "'round'; .*'rounds'"),
        ({"rounds": "three"}, "'rounds': .*valid integer; got 'three'"),
        ({"rounds": 2.5}, "'rounds'"),
        ({"rounds": "3"}, "'rounds'"),
        ({"rounds": 0}, "'rounds': .*at least 1; got 0"),
        ({"seed": -1}, "'seed': .*at least 0; got -1"),
        ({"method": "half"}, "'method': .*'auto', 'full' or 'lora'"),
        ({"skills": "clock"}, "'skills'"),
        ({"seed": True}, "'seed'"),
        ({"seed": object()}, "plain value"),
    ],
)
def test_a_bad_setting_is_one_clear_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        build(TeachSettings, values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[1]", "{", "null"])
def test_a_file_that_is_no_settings_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(SettingsError, match=r"s\.json"):
        read_values(tmp_path / "s.json")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.json"):
        read_values(Path("nowhere.json"))
