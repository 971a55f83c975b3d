"""`palaestra export`: packages of turn environments for other libraries."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from palaestra.cli.main import app
from palaestra.core.errors import EnvError, RunError, SettingsError, UnknownNameError
from palaestra.integrations.export.base import EXPORTERS, EnvironmentPackage, export_environment
from palaestra.recipes.check.records import SubjectReport

OWN = """
from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.base import Reply


class Echo(TurnEnv):
    def opening(self, options):
        return {opening}

    def respond(self, message):
        return Reply(reward=1.0, stop="solved")
"""
SEEDED = """
    def draw(self):
        return f"Say {self.np_random.integers(100)}."
"""


def test_a_package_of_an_environment_has_its_id_and_options(tmp_path: Path) -> None:
    folder = export_environment("palaestra/Guess-v0", "verifiers", tmp_path / "package", {"high": 4})
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "guess-v0"
    assert project["dependencies"][0].startswith("palaestra>=")
    code = (folder / "guess_v0" / "__init__.py").read_text()
    compile(code, "guess_v0", "exec")
    assert "env_id = 'palaestra/Guess-v0'\n    env_kwargs = {'high': 4}\n" in code
    with pytest.raises(RunError, match="not empty"):
        export_environment("palaestra/Guess-v0", "verifiers", folder)


def test_a_verifiers_package_has_a_toolset_for_tools(tmp_path: Path) -> None:
    for tools, kind in ((True, "ToolSeedTaskset"), (False, "SeedTaskset")):
        folder = export_environment("palaestra/Calculator-v0", "verifiers", tmp_path / kind, {"tools": tools})
        code = (folder / "calculator_v0" / "__init__.py").read_text()
        compile(code, "calculator_v0", "exec")
        assert f"class CalculatorV0Taskset({kind}):" in code


def test_the_command_names_the_folder_for_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--to", "verifiers", "--env-option", "high=4", "--check", "0"]
    result = CliRunner().invoke(app, ["export", "palaestra/Guess-v0", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "guess-v0" / "pyproject.toml").is_file()
    assert f"pip install {tmp_path / 'guess-v0'}" in result.output.replace("\n", "")


def run_export(env: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["export", env, "--to", "verifiers", "--out", "package", *options])


def test_a_checked_package_has_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(opening="self.draw()") + SEEDED)
    result = run_export("mine.py:Echo", "--check", "1")
    assert result.exit_code == 0, result.output
    report = SubjectReport.from_json((tmp_path / "package" / "check.json").read_text())
    assert (report.target, report.level, report.with_status("fail")) == ("mine.py:Echo", 1, [])


def test_a_failing_check_refuses_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN.format(opening='"Say something."'))
    result = run_export("mine.py:Echo")
    assert result.exit_code == 1
    assert "semantic.floor_gap" in result.output
    assert "not exported" in result.output
    assert not (tmp_path / "package").exists()
    assert run_export("mine.py:Echo", "--check", "0").exit_code == 0
    assert (tmp_path / "package" / "pyproject.toml").is_file()
    assert not (tmp_path / "package" / "check.json").exists()


def test_the_file_of_an_own_environment_is_copied(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(opening='"Say something."'))
    folder = export_environment(f"{tmp_path}/mine.py:Echo", "verifiers", tmp_path / "package", name="my-echo")
    assert "class Echo" in (folder / "my_echo" / "environment.py").read_text()
    assert "env_id = 'my_echo.environment:Echo'" in (folder / "my_echo" / "__init__.py").read_text()


def test_an_openenv_package_has_a_server_and_a_client(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.format(opening='"Say something."'))
    folder = export_environment(f"{tmp_path}/mine.py:Echo", "openenv", tmp_path / "package", name="my-echo")
    for path in folder.rglob("*.py"):
        compile(path.read_text(), path.name, "exec")
    assert "class Echo" in (folder / "my_echo" / "environment.py").read_text()
    assert (
        "ENV_ID = 'my_echo.environment:Echo'\nENV_OPTIONS = {}\n" in (folder / "server/turn_environment.py").read_text()
    )
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"server": "my_echo.server.app:main"}
    assert "name: my_echo\n" in (folder / "openenv.yaml").read_text()


def test_an_adapter_needs_its_extra() -> None:
    assert EnvironmentPackage("textarena:Guess-v0", {}, "guess").requirement.startswith("palaestra[textarena]>=")


@pytest.mark.parametrize("target", EXPORTERS.names())
def test_what_cannot_be_exported_is_an_error(target: str, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"CartPole-v1 .*turn environment"):
        export_environment("CartPole-v1", target, tmp_path / "a")
    with pytest.raises(SettingsError, match=r"'hihg'.*'high'"):
        export_environment("palaestra/Guess-v0", target, tmp_path / "a", {"hihg": 4})
    with pytest.raises(SettingsError, match="lower-case letters"):
        export_environment("palaestra/Guess-v0", target, tmp_path / "a", name="../a")
    (tmp_path / "mine.py").write_text("import time\n" + OWN.format(opening="str(time.time_ns())"))
    with pytest.raises(EnvError, match=" seed 0"):
        export_environment(f"{tmp_path}/mine.py:Echo", target, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'verifiers'"):
        export_environment("palaestra/Guess-v0", "verifier")
