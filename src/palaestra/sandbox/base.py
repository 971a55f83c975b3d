"""The interface of sandboxes: run an untrusted program and report its result."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from os import PathLike
from typing import ClassVar

from palaestra.core.errors import SandboxError
from palaestra.core.registry import Registry
from palaestra.sandbox.records import (
    KIB,
    MIB,
    SHELL_LIMITS,
    WAITING,
    Limits,
    SandboxCommand,
    SandboxResult,
    ShellResult,
    Status,
)
from palaestra.sandbox.shell import RunningSandbox, Shell, ShellHost

__all__ = [
    "KIB",
    "MIB",
    "SANDBOXES",
    "WAITING",
    "Limits",
    "Sandbox",
    "SandboxCommand",
    "SandboxResult",
    "Shell",
    "ShellResult",
    "Status",
    "make_sandbox",
]

SANDBOXES = Registry("sandbox", "palaestra.sandboxes")
SANDBOXES.register(
    "bubblewrap",
    "palaestra.sandbox.bubblewrap:Bubblewrap",
    "Linux namespaces without a daemon or root; about 10 ms per program (the default)",
)
SANDBOXES.register("docker", "palaestra.sandbox.containers:Docker", "a container of the Docker engine")
SANDBOXES.register("podman", "palaestra.sandbox.containers:Podman", "a container of Podman")
SANDBOXES.register("none", "palaestra.sandbox.local_host:NoSandbox", "no isolation at all, only limits; warns")


class Sandbox(ABC):
    """Runs code that a model wrote. A subclass implements `start`.

    Each `run` starts with an empty workspace and the given files, without network and without the files, environment
    and processes of the host. Nothing is left afterwards. A sandbox has no state; many threads can use it.

    Example:
        >>> from palaestra.sandbox import SandboxCommand, make_sandbox
        >>> sandbox = make_sandbox()  # doctest: +SKIP
        >>> sandbox.run(SandboxCommand(["python3", "main.py"], {"main.py": "print(1 + 1)"})).text  # doctest: +SKIP
        '2\\n'
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self, command: SandboxCommand) -> RunningSandbox:
        """Start a sandbox for a program, or for a shell if the command has no `argv`. No program runs yet.

        Raises:
            SandboxError: the sandbox cannot start.
        """

    def run(self, command: SandboxCommand) -> SandboxResult:
        """Run a program until it ends or exceeds a limit.

        Raises:
            SandboxError: the sandbox could not run the program. Errors of the program are in the `SandboxResult`.
        """
        if not command.argv:
            raise SandboxError("run needs a program; got an empty argv")
        _check_workspace(command.workspace)
        # By default, numeric libraries start a thread for each core, which would exceed the limit on processes.
        with closing(self.start(replace(command, env={"OMP_NUM_THREADS": "1", **command.env}))) as running:
            running.write_files(command.files)
            result = running.run(command)
            if command.read_back:
                running.kill()
                result = replace(result, files=running.read_files(command.read_back, command.limits.file_size))
        return result

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> Shell:
        """Open a persistent shell (bash) in a private workspace, or in a folder of the host."""
        _check_workspace(workspace)
        command = SandboxCommand((), limits=limits, env=env, workspace=workspace, read_only=read_only)

        def start_host() -> ShellHost:
            running = self.start(command)
            try:
                running.write_files(files)
                return running.make_shell_host(limits)
            except BaseException:
                running.close()
                raise

        return Shell(start_host, limits)


def _check_workspace(workspace: str | PathLike[str] | None) -> None:
    if workspace is not None and not os.path.isdir(workspace):
        raise SandboxError(f"the workspace must be an existing folder; got '{os.fspath(workspace)}'")


def make_sandbox(name: str = "bubblewrap", **options: object) -> Sandbox:
    """Build the sandbox that is registered under `name`.

    Raises:
        SandboxError: it does not work on this machine; the message says what to install.
    """
    kind = SANDBOXES.get(name)
    if not hasattr(os, "pidfd_open"):
        raise SandboxError(
            f"the sandbox '{name}' needs Linux; on macOS and Windows run Palaestra in a Linux container or in WSL, see docs/platforms.md"
        )
    sandbox: Sandbox = kind(**options)
    return sandbox
