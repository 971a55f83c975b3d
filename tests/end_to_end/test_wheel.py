"""The wheel: built, installed into an empty environment, and used."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra import __version__

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.backends


def test_the_wheel_is_installed_and_used(tmp_path: Path) -> None:
    source, home, python = tmp_path / "source", tmp_path / "home", tmp_path / "venv" / "bin" / "python"
    home.mkdir()
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "dist", source]
    subprocess.run(build, check=True)
    [wheel] = (tmp_path / "dist").glob("palaestra-*.whl")
    assert wheel.stat().st_size < 40_000_000
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG", "OMP_"))}
    environment = {**kept, "HOME": str(home), "PATH": f"{python.parent}:/usr/bin:/bin"}

    def run(*command: str | Path) -> str:
        result = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert __version__ in run(python.parent / "palaestra", "--version")
    assert "4 problems" in run(python.parent / "palaestra", "evaluate", "--limit", "4")
