"""No sandbox: a plain process with limits. For machines where nothing else runs, and code that is trusted."""

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
from palaestra.sandbox.local_host import LocalHost, RunningSandbox, find_bash, keeper
from palaestra.sandbox.processes import ChildTree, LimitMonitor, limit_process
from palaestra.sandbox.program import supervise
from palaestra.sandbox.shell import BashShell
from palaestra.sandbox.spawn import Child, behind_door, holding


class NoSandbox:
    """Runs programs as the user who asks, with all that this user may do: read keys, delete files, use the network.

    The limits hold for honest programs; one that detaches itself escapes them, and `limits.disk` does not hold at all.
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
        """See `Sandbox.run`. `read_only` cannot be given: everything is there already."""
        if not argv:
            raise SandboxError("run needs a program; got an empty argv")
        folder, made = _workspace(workspace, read_only)
        try:
            tenancy = self._start(behind_door(argv), limits, {"OMP_NUM_THREADS": "1", **env}, folder)
            try:
                write_files(tenancy.workspace, files)
                tenancy.child.let_in()
                watch = LimitMonitor(tenancy.tree, limits)
                result = supervise(tenancy.child, stdin, limits, watch, lambda: _end(tenancy))
                _end(tenancy)
                if read_back:
                    result = replace(result, files=read_files(tenancy.workspace, read_back, limits.file_size))
            finally:
                _end(tenancy)
                tenancy.close()
        finally:
            if made:
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
        folder, made = _workspace(workspace, read_only)

        def make_room() -> LocalHost:
            tenancy = self._start(keeper(find_bash()), limits, env, folder, bash=True)

            def clean_up() -> None:
                _end(tenancy)
                if made:
                    _remove(folder)

            try:
                write_files(tenancy.workspace, files)
                return LocalHost(tenancy, limits, folder, clean_up)
            except BaseException:
                tenancy.close()
                clean_up()
                raise

        return BashShell(make_room, limits)

    def _start(
        self, command: Sequence[str], limits: Limits, env: Mapping[str, str], folder: str, bash: bool = False
    ) -> RunningSandbox:
        held = [holding(STEP)] if bash else []
        try:
            if bash:
                command = [*command, str(held[0]), Child.STDIN, Child.STATUS]
            base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb"}
            child = Child(command, {**base, "HOME": folder, **env}, held, session=True, folder=folder)
        finally:
            for file in held:
                os.close(file)
        try:
            first = child.meet()
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
    except RecursionError:  # folders in folders, a thousand deep
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True, check=False)


def _end(tenancy: RunningSandbox) -> None:
    tenancy.tree.kill(tenancy.tree.pids())
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(tenancy.first, signal.SIGKILL)
