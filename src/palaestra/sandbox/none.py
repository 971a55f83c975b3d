"""No sandbox: a plain process with limits, for trusted code on machines without a sandbox."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import PathLike

from palaestra.core.errors import SandboxError, SandboxWarning
from palaestra.sandbox.base import SHELL_LIMITS, Limits, SandboxResult
from palaestra.sandbox.bash_protocol import STEP
from palaestra.sandbox.files import read_files, write_files
from palaestra.sandbox.local_host import LocalHost, RunningSandbox, find_bash, make_supervisor_command
from palaestra.sandbox.processes import ChildTree, LimitMonitor, limit_process
from palaestra.sandbox.program import supervise
from palaestra.sandbox.shell import BashShell
from palaestra.sandbox.spawn import Child, make_gated_command, make_sealed_file


class NoSandbox:
    """Runs programs with all rights of the current user: they can read keys, delete files and use the network.

    A program that detaches itself escapes the limits, and `limits.disk` has no effect.
    """

    name = "none"

    def __init__(self) -> None:
        warnings.warn(
            "the sandbox 'none' isolates nothing: code of a model can do all that you can; use bubblewrap, docker or podman for code that you did not read",
            SandboxWarning,
            stacklevel=3,
        )

    def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, bytes | str] = {},
        stdin: bytes | socket.socket = b"",
        limits: Limits = Limits(),
        env: Mapping[str, str] = {},
        read_back: Sequence[str] = (),
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> SandboxResult:
        """See `Sandbox.run`. `read_only` is not supported: all paths are visible anyway."""
        if not argv:
            raise SandboxError("run needs a program; got an empty argv")
        folder, is_private = _workspace(workspace, read_only)
        try:
            running = self._start(make_gated_command(argv), limits, {"OMP_NUM_THREADS": "1", **env}, folder)
            try:
                write_files(running.workspace, files)
                running.child.release()
                monitor = LimitMonitor(running.tree, limits)
                result = supervise(running.child, stdin, limits, monitor, lambda: _end(running))
                _end(running)
                if read_back:
                    result = replace(result, files=read_files(running.workspace, read_back, limits.file_size))
            finally:
                _end(running)
                running.close()
        finally:
            if is_private:
                _remove(folder)
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> BashShell:
        """See `Sandbox.shell`."""
        folder, is_private = _workspace(workspace, read_only)

        def start_host() -> LocalHost:
            running = self._start(make_supervisor_command(find_bash()), limits, env, folder, bash=True)

            def clean_up() -> None:
                _end(running)
                if is_private:
                    _remove(folder)

            try:
                write_files(running.workspace, files)
                return LocalHost(running, limits, folder, clean_up)
            except BaseException:
                running.close()
                clean_up()
                raise

        return BashShell(start_host, limits)

    def _start(
        self, command: Sequence[str], limits: Limits, env: Mapping[str, str], folder: str, bash: bool = False
    ) -> RunningSandbox:
        held = [make_sealed_file(STEP)] if bash else []
        try:
            if bash:
                command = [*command, str(held[0]), Child.STDIN, Child.STATUS]
            base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb"}
            child = Child(command, {**base, "HOME": folder, **env}, held, session=True, folder=folder)
        finally:
            for file in held:
                os.close(file)
        try:
            first = child.wait_until_ready()
            if first < 0:
                raise SandboxError(f"a program cannot start: {child.errors() or 'it said nothing'}")
            limit_process(first, limits, own_users=False)
            return RunningSandbox(
                child, first, ChildTree(first, keep=(first,)), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            )
        except BaseException:
            child.close()
            raise


def _workspace(workspace: str | PathLike[str] | None, read_only: Mapping[str, str]) -> tuple[str, bool]:
    if read_only:
        raise SandboxError("the sandbox 'none' shows every path where it is; read_only cannot be given")
    if workspace is None:
        return tempfile.mkdtemp(prefix="palaestra-"), True
    if not os.path.isdir(workspace):
        raise SandboxError(f"the workspace must be a folder that exists; got '{os.fspath(workspace)}'")
    return os.path.abspath(workspace), False


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # deeply nested folders
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True, check=False)


def _end(running: RunningSandbox) -> None:
    running.tree.kill(running.tree.pids())
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.first, signal.SIGKILL)
