"""The provenance of a run: versions, model hashes and the command line, in `provenance.json` of the run folder.

The file is written when a run starts. Every resume of an unfinished run adds an entry with the differences from the start.
Secrets on the command line are masked, and no environment variable is written.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.core.errors import RunError
from palaestra.core.secrets import mask_arguments, mask_settings
from palaestra.runs.files import read_json, write_json
from palaestra.version import __version__

PROVENANCE = "provenance.json"
_GIT_SECONDS = 10


def record_provenance(folder: Path, models: Mapping[str, Any], *, ended: bool = False) -> None:
    """Write `provenance.json` if the folder has none, otherwise add an entry for this resume.

    Arguments:
        models: the hashes of the base weights by model name.
        ended: whether the run has ended; then nothing is added.
    """
    known = read_provenance(folder)
    if known is None or not ended:
        write_json(folder / PROVENANCE, extend_provenance(known, models))


def extend_provenance(known: Mapping[str, Any] | None, models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a run that starts now, or `known` with an entry for a resume."""
    now = collect_provenance(models)
    if known is None:
        return {"started": now, "resumed": []}
    entry = {"time": now["time"], "command": now["command"], "changed": find_changes(known["started"], now)}
    return {**known, "resumed": [*known["resumed"], entry]}


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """Return the content of `provenance.json`; `None` if the run has none.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / PROVENANCE
    if not path.exists():
        return None
    data = read_json(path)
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("started"), dict)
        or not isinstance(data.get("resumed"), list)
    ):
        raise RunError(
            f"the run folder is damaged: {path} has no 'started' or no 'resumed'; delete the file to continue without it"
        )
    return data


def collect_provenance(models: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the versions of Palaestra, Python, the platform and all packages, and the command line."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": mask_arguments(sys.argv),
        "palaestra": {"version": __version__, **_read_own_checkout()},
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "host": platform.node(),
        "accelerator": _accelerator(),
        "packages": list_packages(),
        "models": {mask_settings(name): hashes for name, hashes in models.items()},
    }


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences between two provenance records, except time, host and command, as `[before, now]` by dotted name.

    >>> find_changes({"python": "3.11", "packages": {"numpy": "2.0"}}, {"python": "3.12", "packages": {"numpy": "2.0"}})
    {'python': ['3.11', '3.12']}
    """
    first, second = _flatten(before), _flatten(now)
    return {
        name: [first.get(name), second.get(name)]
        for name in sorted({*first, *second})
        if name not in ("time", "command", "host") and first.get(name) != second.get(name)
    }


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def read_checkout(package: Path) -> dict[str, Any]:
    """Return the git commit of the checkout with `package`, and whether it is dirty; both `None` outside a checkout.

    Dirty means changed tracked files, or new files in the package. An installed package inside a user's repository is not
    tracked there, so it is not part of a checkout.
    """
    nothing: dict[str, Any] = {"commit": None, "dirty": None}
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return nothing
    commit = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    added = _git(package, "ls-files", "--others", "--exclude-standard")
    if commit is None or changed is None or added is None:
        return nothing
    return {"commit": commit.strip(), "dirty": bool(changed.strip() or added.strip())}


@functools.cache
def _read_own_checkout() -> dict[str, Any]:
    """Read the checkout of this package once: a process keeps the code that it has imported."""
    return read_checkout(Path(__file__).resolve().parents[1])


def _git(folder: Path, *arguments: str) -> str | None:
    """Run a read-only git command. Returns its output; `None` if it fails."""
    # Variables such as GIT_DIR, which git sets in hooks, would point at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True, text=True, errors="replace", timeout=_GIT_SECONDS, env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def list_packages() -> dict[str, str]:
    """List name and version of all installed packages by the `.dist-info` folders on the import path.

    `importlib.metadata` parses a file for each package and takes a hundred times as long.
    """
    packages: dict[str, str] = {}
    for entry in sys.path:
        try:
            names = [path.name for path in Path(entry or ".").glob("*.dist-info")]
        except OSError:
            continue
        for name in names:
            package, dash, version = name.removesuffix(".dist-info").partition("-")
            if dash:
                packages.setdefault(package, version)
    return dict(sorted(packages.items(), key=lambda item: item[0].lower()))


def _accelerator() -> str | None:
    """Return the name of the GPU, if torch is loaded and has one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name(0))
