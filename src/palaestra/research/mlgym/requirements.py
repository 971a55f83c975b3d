"""Virtual environments with the packages that a task requires."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from palaestra.core.errors import TaskError
from palaestra.engines.models import cache_folder
from palaestra.runs.files import storage_errors

SAID = 600
"""Characters of pip's error that are reported."""


def install_requirements(path: Path) -> Path:
    """Return a virtual environment with the packages of a requirements file, and create it if this machine has none
    yet.

    It lies in the user's cache, keyed by the file's content and the Python version.

    Raises:
        TaskError: the packages cannot be installed.
    """
    text = path.read_bytes()
    mark = f"{sys.version_info[:2]}:{sys.base_prefix}:".encode()
    home = cache_folder() / "research" / f"packages-{hashlib.blake2b(mark + text, digest_size=8).hexdigest()}"
    if (home / "installed").exists():
        return home
    with storage_errors(home, "keeping the packages of a research task"):
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".packages-", dir=home.parent))
    try:
        # At its final path, because the scripts of an environment contain it.
        shutil.rmtree(home, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(path)],
        ):
            done = subprocess.run(command, cwd=partial, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                message = " ".join(done.stderr.split())[-SAID:]
                raise TaskError(f"the requirements {path} cannot be installed: {message}")
        (home / "installed").touch()
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return home


def variables(home: Path) -> dict[str, str]:
    """Return the environment variables that select a virtual environment in a sandbox."""
    from palaestra.sandbox.bubblewrap import environment

    return {"VIRTUAL_ENV": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{environment()['PATH']}"}
