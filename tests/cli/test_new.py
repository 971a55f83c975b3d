"""`palaestra new`: what it makes has tests that pass, and a command uses it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import processes
import pytest

from palaestra.cli.new import NEW_KINDS

TRAIN = ("--iterations", "1", "--num-envs", "4", "--episodes", "8", "--evaluation", "0")
SIZES = {
    "env": TRAIN,
    "task": ("--problems", "2"),
    "teacher": ("--skill", "addition", "--rounds", "1", "--lesson-size", "8", "--epochs", "1", "--validation", "2", "--test", "2"),
    "reward": TRAIN,
    "research-task": (),
}  # fmt: skip
"""Options that make the command that uses each kind small."""

_SLOW = ("env", "teacher", "reward")
"""Kinds that are tried by `make test-backends` only, because they load torch several times."""


def run(*command: str, cwd: Path) -> str:
    """Run a command with the package of `install` on its path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd / "installed"), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def install(package: Path, target: Path) -> None:
    """Install a package without a build: link its module and write the metadata of its entry points."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    info = target / f"{project['tool']['setuptools']['packages'][0]}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['project']['name']}\nVersion: 0.1.0\n")
    groups = project["project"].get("entry-points", {}).items()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
    (info / "entry_points.txt").write_text("".join(lines))
    for module in project["tool"]["setuptools"]["packages"]:
        (target / module).symlink_to(package / module)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.backends] if kind in _SLOW else []) for kind in NEW_KINDS]
)
def test_what_is_made_passes_its_tests_and_is_used(kind: str, tmp_path: Path) -> None:
    printed = run("palaestra", "new", kind, "my-game", cwd=tmp_path)
    use = printed.splitlines()[-1].removeprefix("use it: ").rpartition("&& ")[2]
    folder = tmp_path / ("my_game" if kind == "research-task" else "my-game")
    assert " passed" in run("pytest", str(folder), "-W", "error", cwd=tmp_path)
    if (folder / "pyproject.toml").exists():
        install(folder, tmp_path / "installed")
    assert "run: runs/" in run(*use.split(), *SIZES[kind], cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("engine", "mine"), "unknown kind 'engine'"),
        (("task", "My Task"), "lower-case"),
        (("task", "class"), "no name of a Python module"),
        (("env", "json"), "no name of a Python module"),
        (("research-task", "mine", "--out", "other"), "expected mine"),
        (("reward", "full"), "is not empty"),
    ],
)
def test_wrong_names_and_folders_are_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    result = processes.run_command("new", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
