"""The sandbox protocol: run a program that nobody trusts, and say what became of it."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from palaestra.core.errors import SandboxError
from palaestra.core.registry import Registry

SANDBOXES = Registry("sandbox", "palaestra.sandboxes")
SANDBOXES.register(
    "bubblewrap",
    "palaestra.sandbox.bubblewrap:Bubblewrap",
    "Linux namespaces without a daemon or root; some 10 ms a program (the default)",
)
SANDBOXES.register("docker", "palaestra.sandbox.containers:Docker", "a container of the Docker engine")
SANDBOXES.register("podman", "palaestra.sandbox.containers:Podman", "a container of Podman")
SANDBOXES.register("none", "palaestra.sandbox.none:NoSandbox", "no isolation at all, only limits; warns")

KIB, MIB, GIB = 2**10, 2**20, 2**30
MOST_LISTED = 10_000
"""Files of a workspace that are listed at once."""

Files = Mapping[str, bytes | str]
"""Relative paths and contents."""


class Status(Enum):
    """What became of a program."""

    OK = "ok"
    """It ended by itself with exit code 0."""
    EXIT = "exit"
    """It ended by itself with another exit code. As in a shell, 127 is a program that does not exist."""
    SIGNAL = "signal"
    """A signal ended it that no limit had sent: a crash, or its own doing."""
    WALL_TIME = "wall_time"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    PROCESSES = "processes"
    """It held more processes and threads than allowed."""
    DISK = "disk"
    """It wrote a larger file, or made more files, than allowed. A full folder shows as an error of the program."""
    OUTPUT = "output"

    @property
    def is_limit(self) -> bool:
        """Whether a limit ended it."""
        return self not in (Status.OK, Status.EXIT, Status.SIGNAL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use. Over any of these it is ended, with the status that says which.

    CPU time, memory and processes are those of all processes together. The kernel holds them where control groups can
    be had; else they are polled some fifty times a second, see `report_limits`. In a shell, wall and CPU time are
    those of one command.
    """

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory: int = 512 * MIB
    """Bytes; with control groups also those of buffers in the kernel and of files in the sandbox's folders."""
    processes: int = 64
    """Processes and threads at a time."""
    open_files: int = 256
    """Open files a process."""
    file_size: int = 64 * MIB
    """Bytes of the largest file that may be written."""
    output: int = MIB
    """Bytes of stdout, and bytes of stderr, that are kept."""
    disk: int = 256 * MIB
    """Bytes in each of the folders that can be written: workspace, home, temporary folder, shared memory."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value <= 0 or ("seconds" not in one.name and not isinstance(value, int)):
                kind = "number" if "seconds" in one.name else "whole number"
                raise SandboxError(f"the limit {one.name} is a {kind} above 0; got {value!r}")


SHELL_LIMITS = Limits(
    wall_seconds=60.0, cpu_seconds=3600.0, memory=4 * GIB, processes=512, open_files=1024, file_size=GIB,
    output=64 * KIB, disk=2 * GIB,
)  # fmt: skip
"""What a shell may use unless told otherwise."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a program did."""

    status: Status
    exit_code: int
    """As in a shell: 128 and the signal where a signal ended it."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """Wall time of the program, without the start of the sandbox."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    peak_memory: int | None = None
    """Bytes, as far as they were seen; None for a program too short to be seen."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What was asked for by `read_back` and exists as a plain file."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """Stdout as text. Bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")

    @property
    def signal(self) -> int | None:
        """The signal that ended the program by its exit code, if one did."""
        return self.exit_code - 128 if 128 < self.exit_code <= 192 else None


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What one command of a shell did."""

    status: Status
    exit_code: int
    output: bytes
    """Stdout and stderr as they came; over the limit the middle is cut out, and a note stands in its place."""
    seconds: float
    truncated: bool = False
    restarted: bool = False
    """A new shell had to be started: the workspace is as it was, variables and the current folder are not."""
    note: str = ""
    """What the sandbox has to say beside the output: a time-out, a limit, a new shell."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """The output as text. Bytes that are not UTF-8 become U+FFFD."""
        return self.output.decode("utf-8", "replace")


class Shell(Protocol):
    """A shell that stays: what a command sets, the next one finds."""

    workspace: str
    """The workspace's path as commands see it."""

    def execute(self, command: str, timeout: float | None = None) -> ShellResult:
        """Run a command, of any number of lines, and wait for its end.

        Raises:
            SandboxError: the shell is closed, or its sandbox broke. What a command does never raises.
        """
        ...

    def write_files(self, files: Files) -> None:
        """Put files into the workspace, by relative path."""
        ...

    def read_files(
        self, names: Sequence[str], longest: int | None = None, total: int | None = None
    ) -> dict[str, bytes]:
        """The files of the workspace that exist, by relative path; no link is followed.

        Arguments:
            longest: bytes of each that are read; as many as a file may have, without.
            total: bytes of all together. They are read in the order of `names`; the first that does not fit into what
                is left is missing, and so are all behind it. Holes count as bytes.
        """
        ...

    def list_files(self, most: int = MOST_LISTED) -> list[str]:
        """The relative paths of the plain files in the workspace, at most `most`; no link is followed."""
        ...

    def close(self) -> None:
        """End the shell and everything that runs in it. A private workspace is gone with it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Sandbox(Protocol):
    """Where code that a model wrote runs.

    Each `run` starts from nothing and leaves nothing: an empty workspace with the given files, no network, none
    of the host's files, environment or processes. A sandbox holds no state and can be used by many threads.

    Example:
        >>> from palaestra.sandbox import Limits, make_sandbox
        >>> sandbox = make_sandbox()  # doctest: +SKIP
        >>> sandbox.run(["python3", "main.py"], {"main.py": "print(1 + 1)"}).text  # doctest: +SKIP
        '2\\n'
    """

    name: str

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
        """Run a program to its end, or to the end of its limits.

        Arguments:
            argv: the program and its arguments; run in the workspace, without a shell.
            files: put into the workspace beforehand, by relative path.
            stdin: what the program reads; or a socket, from which it reads and to which it prints as it goes, for a
                conversation. Its end there is the end of stdin. What it prints is in the result as well.
            limits: what it may use.
            env: added to an environment that has PATH, HOME, LANG and little else.
            read_back: relative paths of files to return, read after everything is dead; no link is followed.
            workspace: a folder of the host to work in, instead of an empty one. `limits.disk` does not hold there.
            read_only: further paths to show, from the path inside to that of the host.

        Raises:
            SandboxError: the sandbox could not run it. Whatever the program does is in the `SandboxResult`.
        """
        ...

    def shell(
        self,
        limits: Limits = SHELL_LIMITS,
        files: Mapping[str, bytes | str] = {},
        env: Mapping[str, str] = {},
        workspace: str | PathLike[str] | None = None,
        read_only: Mapping[str, str] = {},
    ) -> Shell:
        """A persistent shell (bash) in a workspace of its own, or in a given folder of the host."""
        ...


def make_sandbox(name: str = "bubblewrap", **options: Any) -> Sandbox:
    """Build the sandbox that is registered under `name`, and make sure that it can run here.

    Raises:
        SandboxError: it cannot; the message says what to install.
    """
    sandbox: Sandbox = SANDBOXES.get(name)(**options)
    return sandbox
