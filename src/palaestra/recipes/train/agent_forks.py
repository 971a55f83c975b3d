"""Start a Python script many times without the import time of its packages.

`python agent_forks.py SCRIPT ARGUMENTS` imports the packages that the script imports, and then forks a process per run of
the script. It reads one JSON object per line from stdin and writes one per line to stdout:

    {"run": 1, "variables": {"NAME": "value"}, "output": "/tmp/file"}  ->  {"run": 1, "pid": 4711}
                                                                       ->  {"run": 1, "status": 0}

At the end of stdin it kills all runs and exits. This file is run by the interpreter of the agent, which need not have
Palaestra, so it imports only the standard library.
"""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def main(script: str, arguments: list[str]) -> None:
    """Serve runs of a script until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What packages print while they are imported is not a reply.
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    import_packages(script)
    gc.freeze()
    wakeup, signals = socket.socketpair()
    signals.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signals.fileno())
    runs: dict[int, int] = {}
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakeup:
                    wakeup.recv(4096)
                    continue
                data = os.read(0, 1 << 16)
                if not data:
                    stop_runs(runs)
                    return
                *lines, pending = (pending + data).split(b"\n")
                for order in map(json.loads, lines):
                    pid = start_run(script, order["variables"], order["output"])
                    runs[pid] = order["run"]
                    print(json.dumps({"run": order["run"], "pid": pid}), file=replies)
            for pid, status in wait_for_children():
                print(json.dumps({"run": runs.pop(pid, 0), "status": status}), file=replies)


def import_packages(script: str) -> None:
    """Import what the script imports at its top level. An error is left to the runs."""
    with suppress(OSError, SyntaxError):
        for node in ast.parse(Path(script).read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                with suppress(Exception):
                    importlib.import_module(name)


def start_run(script: str, variables: Mapping[str, str], output: str) -> int:
    """Fork a process that runs the script in a session of its own. Returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ.update(variables)
        code = run_script(script)
    finally:
        os._exit(code)
    return 0


def run_script(script: str) -> int:
    """Run the script as `python SCRIPT` would. Returns its exit status."""
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        shutdown: Any = getattr(threading, "_shutdown", None)
        if shutdown is not None:
            shutdown()  # Waits for the threads of the script.
        getattr(atexit, "_run_exitfuncs", lambda: None)()
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def wait_for_children() -> list[tuple[int, int]]:
    """The ids and exit statuses of the runs that have ended."""
    ended = []
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def stop_runs(runs: Mapping[int, int]) -> None:
    for pid in runs:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
