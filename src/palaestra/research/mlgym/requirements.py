"""The packages that a task asks for, in a virtual environment of its own."""

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
from palaestra.runs.guard import storage_errors

SAID = 600
"""Characters of pip's error that are told."""


def install_requirements(path: Path) -> Path:
    """The virtual environment with the packages of a requirements file, made now if this machine has none yet.

    It lies in the user's cache, by the content of the file and the version of Python. Packages come from where pip finds them.

    Raises:
        TaskError: they cannot be installed; says why.
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
        # At its final place: the scripts of an environment have its path written into them.
        shutil.rmtree(home, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(home)],
            [str(home / "bin/python"), "-m", "pip", "install", "--quiet", "-r", str(path)],
        ):
            done = subprocess.run(command, cwd=partial, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode:
                said = " ".join(done.stderr.split())[-SAID:]
                raise TaskError(f"the requirements {path} cannot be installed: {said}")
        (home / "installed").touch()
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return home


def variables(home: Path) -> dict[str, str]:
    """The environment variables with which a sandbox uses it."""
    from palaestra.sandbox.bubblewrap import environment

    return {"VIRTUAL_ENV": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{environment()['PATH']}"}
