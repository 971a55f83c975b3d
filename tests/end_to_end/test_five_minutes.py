"""The first five minutes with own data, as docs/start/data.md shows them: look, evaluate, teach, train, compare, a picture."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "data.md").read_text()
STEPS = re.findall(r"^palaestra (.+)$", PAGE, re.MULTILINE)


def run_steps(folder: Path, python: Path | str, environment: dict[str, str]) -> None:
    """Write the two files of the page, a reward of three lines among them, and run its commands."""
    write_rows, reward = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    subprocess.run([str(python), "-c", write_rows], cwd=folder, check=True)
    (folder / "my_reward.py").write_text(reward)
    assert len(reward.strip().splitlines()) <= 3
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for step in STEPS:
        arguments = [str(python), "-m", "palaestra", *step.partition("#")[0].split()]
        result = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, (step, result.stderr)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    sys.stdout.write(f"{len(STEPS)} commands: {seconds:.0f} s, {cpu:.0f} s of processor time\n")
    # Other work on the machine stretches the time, but not the processor time.
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert (cpu if is_busy else seconds) < 300
    summaries = {name: json.loads((folder / name / "summary.json").read_text()) for name in ("taught", "trained")}
    assert summaries["taught"]["gain_low"] > 0
    assert summaries["trained"]["gain"] > 0
    assert (folder / "comparison.html").is_file()
    assert list((folder / "trained" / "figures").glob("*.svg"))


@pytest.mark.backends
def test_own_data_is_evaluated_taught_and_trained_on(tmp_path: Path) -> None:
    run_steps(tmp_path, sys.executable, dict(os.environ))


@pytest.mark.backends
def test_the_base_install_in_a_new_environment_is_enough(tmp_path: Path) -> None:
    source, home, python = tmp_path / "source", tmp_path / "home", tmp_path / "venv" / "bin" / "python"
    home.mkdir()
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # Settings of the installer and the system stay; home, caches and everything of this environment do not.
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG", "OMP_"))}
    environment = {**kept, "HOME": str(home), "PATH": f"{python.parent}:/usr/bin:/bin"}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", source]
    subprocess.run(install, env=environment, check=True)
    run_steps(tmp_path, python, environment)


def test_the_page_has_all_steps() -> None:
    names = [step.split()[0] for step in STEPS]
    assert names == ["data", "evaluate", "teach", "train", "evaluate", "compare", "report"]
