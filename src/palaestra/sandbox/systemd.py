"""A control group from systemd: an ordinary user's service manager gives groups that the user may divide."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

SECONDS = 3.0


def request_scope(own: Path = Path("/proc/self/cgroup")) -> bool:
    """Ask the user's service manager to move this process into a scope of its own that it may divide.

    Only a process of a login session or of the user's services is moved: one that a batch system or a container
    manages stays where it was put.

    Returns:
        Whether the process was moved.
    """
    before = own.read_text()
    user = f"/user.slice/user-{os.getuid()}.slice/"
    busctl, runtime = shutil.which("busctl"), os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if user not in before or busctl is None or not os.path.exists(f"{runtime}/bus"):
        return False
    pid = str(os.getpid())
    properties = ["PIDs", "au", "1", pid, "Delegate", "b", "true", "CollectMode", "s", "inactive-or-failed"]
    command = [
        busctl, "--user", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))",
        f"palaestra-{pid}.scope", "replace", "3", *properties, "0",
    ]  # fmt: skip
    try:
        answer = subprocess.run(
            command, env={**os.environ, "XDG_RUNTIME_DIR": runtime}, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    end = time.monotonic() + SECONDS
    while answer.returncode == 0 and time.monotonic() < end:  # the answer comes before the move
        if own.read_text() != before:
            return True
        time.sleep(0.01)
    return False
