"""Start a Python script many times without the import time of its packages.

`python agent_forks.py SCRIPT ARGUMENTS` imports the packages that the script imports, and then forks a process per run. Its
stdin is a Unix socket, on which each run sends one byte with two file descriptors: a connection of its own, and the file for
its output. The connection receives the environment variables as JSON, and answers with the id of the process and, at its
end, its exit status, each on a line.

This file is run by the interpreter of the agent, which need not have Palaestra, so it imports only the standard library.
"""

from __future__ import annotations

import ast
import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any


def main(script: str, arguments: list[str]) -> None:
    """Serve runs of a script until the socket is closed."""
    orders = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    _import_packages(script)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The processes that `_supervise` a run leave no zombies.
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, 1, 2)
        if not order:
            return
        if not os.fork():
            orders.close()
            _supervise(script, socket.socket(fileno=descriptors[0]), descriptors[1])
        for descriptor in descriptors:
            os.close(descriptor)


def _import_packages(script: str) -> None:
    """Import what the script imports at its top level. An error is left to the runs."""
    with suppress(OSError, SyntaxError):
        for node in ast.parse(Path(script).read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                with suppress(Exception):
                    importlib.import_module(name)


def _supervise(script: str, connection: socket.socket, output: int) -> None:
    """Run the script in a process and a session of its own, report on it, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        variables = json.loads(connection.makefile().readline())
        if pid := os.fork():
            connection.sendall(f"{pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            return
        os.setsid()
        connection.close()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(variables)
        code = _run_script(script)
    finally:
        os._exit(code)


def _run_script(script: str) -> int:
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
