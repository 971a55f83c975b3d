"""Run a command that ends with the process that started it.

`python process_guard.py PID COMMAND ARGUMENTS` runs the command until it ends, the process PID (the parent) ends, or a
SIGTERM arrives. Then it kills the command with all its descendants. Its exit code is that of the command.

A process group or a signal at the parent's death does not reach all of them: torchrun starts its workers in sessions of
their own. This file imports only the standard library, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

_POLL = 0.1
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux' prctl."""


def run(parent: int, command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _control_process(_SET_CHILD_SUBREAPER, 1)  # Orphans of the command become children of this process.
    process = None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _control_process(_SET_DEATH_SIGNAL, signal.SIGKILL)
        )
        while process.poll() is None and os.getppid() == parent:
            time.sleep(_POLL)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_children(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _control_process(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_children(process: subprocess.Popen[bytes] | None) -> None:
    """Kill the command and all its descendants. The children of a killed process become children of this one."""
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    while children := _find_children():
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)


def _find_children() -> list[int]:
    children = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in brackets, may contain anything.
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if name.isdigit() and parent == os.getpid():
                children.append(int(name))
    return children


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
