"""No sandbox: plain processes with limits, for trusted code on machines without a sandbox."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any

from palaestra.core.errors import SandboxError, SandboxWarning
from palaestra.sandbox.base import Limits
from palaestra.sandbox.bash_protocol import STEP
from palaestra.sandbox.local_host import LocalSandbox, RunningSandbox, find_bash, make_supervisor_command
from palaestra.sandbox.processes import ChildTree, limit_process
from palaestra.sandbox.program import Child, make_sealed_file


class NoSandbox(LocalSandbox):
    """Runs programs with all rights of the current user: they can read keys, delete files and use the network.

    A program that detaches itself escapes the limits, and `limits.disk` has no effect. `read_only` is not supported:
    all paths are visible anyway.
    """

    name = "none"

    def __init__(self) -> None:
        warnings.warn(
            "the sandbox 'none' isolates nothing: code of a model can do all that you can; use bubblewrap, docker or podman for code that you did not read",
            SandboxWarning,
            stacklevel=3,
        )

    def _start(
        self,
        command: Sequence[str] | None,
        limits: Limits,
        env: Mapping[str, str],
        workspace: str | PathLike[str] | None,
        read_only: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> RunningSandbox:
        if read_only:
            raise SandboxError("the sandbox 'none' shows every path where it is; read_only cannot be given")
        if workspace is not None and not os.path.isdir(workspace):
            raise SandboxError(f"the workspace must be a folder that exists; got '{os.fspath(workspace)}'")
        folder = tempfile.mkdtemp(prefix="palaestra-") if workspace is None else os.path.abspath(workspace)
        step = make_sealed_file(STEP)
        try:
            command = make_supervisor_command(find_bash(), step) if command is None else command
            base = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb"}
            files = [step, *pass_fds]
            child = Child(command, {**base, "HOME": folder, **env}, files, session=True, folder=folder)
            try:
                first = child.wait_until_ready()
                if first < 0:
                    raise SandboxError(f"a program cannot start: {child.errors() or 'no error message'}")
                limit_process(first, limits, own_users=False)
                tree, opened = ChildTree(first, keep=(first,)), os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                return _PlainProcesses(child, first, tree, opened, (), None, folder, is_private=workspace is None)
            except BaseException:
                child.close()
                raise
        except BaseException:
            if workspace is None:
                _remove(folder)
            raise
        finally:
            os.close(step)


class _PlainProcesses(RunningSandbox):
    """Processes without a namespace: their process group is killed too, and a private workspace is deleted."""

    def __init__(self, *arguments: Any, is_private: bool) -> None:
        super().__init__(*arguments)
        self.is_private = is_private

    def kill(self) -> None:
        super().kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.first, signal.SIGKILL)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self.is_private:
                _remove(self.place)


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # deeply nested folders
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True, check=False)
