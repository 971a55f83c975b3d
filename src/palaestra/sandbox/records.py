"""What a sandbox is given and what it returns: limits, commands and results."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from os import PathLike
from typing import Self

from palaestra.core.errors import SandboxError

KIB, MIB, GIB = 2**10, 2**20, 2**30
WAITING = 8.0
"""Wall time of a judged program in multiples of its CPU time."""

Files = Mapping[str, bytes | str]
"""Relative paths and contents."""


class Status(Enum):
    """How a program ended."""

    OK = "ok"
    """It exited with code 0."""
    EXIT = "exit"
    """It exited with another code. As in a shell, 127 means that the program does not exist."""
    SIGNAL = "signal"
    """A signal killed it, but no limit was exceeded: a crash, or a signal that it sent itself."""
    WALL_TIME = "wall_time"
    CPU_TIME = "cpu_time"
    MEMORY = "memory"
    PROCESSES = "processes"
    """It had too many processes and threads."""
    DISK = "disk"
    """It wrote a file that is too large, or too many files. A full folder appears as an error of the program."""
    OUTPUT = "output"

    @property
    def is_limit(self) -> bool:
        """Whether the program exceeded a limit."""
        return self not in (Status.OK, Status.EXIT, Status.SIGNAL)

    @property
    def overrun(self) -> str:
        """What a program had too much of, as judges of answers name it: `time`, `memory` or `output`; else empty."""
        name = self.value.removeprefix("wall_").removeprefix("cpu_")
        return name if name in ("time", "memory", "output") else ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program. A program that exceeds one is killed; the status names the limit.

    CPU time, memory and processes are counted for all processes together. The kernel enforces them where control
    groups are available; otherwise they are polled about fifty times a second (see `report_limits`). In a shell, wall
    and CPU time are those of one command.
    """

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory: int = 512 * MIB
    """Bytes. With control groups, kernel buffers and files in the sandbox's folders count too."""
    processes: int = 64
    """Processes and threads at the same time."""
    open_files: int = 256
    """Open files per process."""
    file_size: int = 64 * MIB
    """Largest file that may be written, in bytes."""
    output: int = MIB
    """Bytes of stdout, and of stderr, that are kept."""
    disk: int = 256 * MIB
    """Bytes in each writable folder: workspace, home, temporary folder, shared memory."""

    @classmethod
    def for_work(cls, seconds: float, cores: float = 1.0, **others: int) -> Self:
        """Return the limits of a program that is judged: its CPU time measures its work, so that a busy machine does not
        change the result. Wall time only ends a program that waits.

        Arguments:
            seconds: CPU time on each core.
            cores: the number of cores that the program may use at the same time.
            others: the other limits by name.
        """
        return cls(wall_seconds=WAITING * seconds + 1, cpu_seconds=cores * seconds, **others)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value <= 0 or ("seconds" not in item.name and not isinstance(value, int)):
                kind = "number" if "seconds" in item.name else "whole number"
                raise SandboxError(f"the limit {item.name} must be a {kind} above 0; got {value!r}")


SHELL_LIMITS = Limits(
    wall_seconds=60.0,
    cpu_seconds=3600.0,
    memory=4 * GIB,
    processes=512,
    open_files=1024,
    file_size=GIB,
    output=64 * KIB,
    disk=2 * GIB,
)
"""Default limits of a shell."""


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """A program to run in a sandbox, with all that it gets.

    Arguments:
        argv: the program and its arguments. It runs in the workspace, without a shell.
        files: files of the workspace, by relative path.
        stdin: the program's input; or a socket for its stdin and stdout. When the other end of the socket is closed,
            stdin ends. The result contains the output in either case.
        limits: resource limits.
        env: additions to the environment, which has PATH, HOME, LANG and little else.
        read_back: relative paths of files to return. They are read when all processes are dead; links are not followed.
        workspace: a folder of the host to use as workspace. `limits.disk` does not apply there.
        read_only: further paths to mount, from the path inside to that of the host.
        pass_fds: open files that the program inherits under the same numbers. Containers do not support them.
    """

    argv: Sequence[str]
    files: Files = field(default_factory=dict)
    stdin: bytes | socket.socket = b""
    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict)
    read_back: Sequence[str] = ()
    workspace: str | PathLike[str] | None = None
    read_only: Mapping[str, str] = field(default_factory=dict)
    pass_fds: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The result of a program."""

    status: Status
    exit_code: int
    """As in a shell: 128 plus the signal if a signal killed it."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """Wall time of the program, without the time to start the sandbox."""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    peak_memory: int | None = None
    """Bytes, as far as measured; None if the program ended before the first measurement."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files of `SandboxCommand.read_back` that exist as regular files."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """Stdout as text. Invalid UTF-8 becomes U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")

    @property
    def signal(self) -> int | None:
        """The signal that killed the program, according to its exit code."""
        return self.exit_code - 128 if 128 < self.exit_code <= 192 else None


@dataclass(frozen=True, slots=True)
class ShellResult:
    """The result of one command of a shell."""

    status: Status
    exit_code: int
    output: bytes
    """Stdout and stderr, interleaved. If the output exceeds the limit, a note replaces its middle."""
    seconds: float
    truncated: bool = False
    restarted: bool = False
    """A new shell was started. The workspace is unchanged; variables and the current folder are lost."""
    note: str = ""
    """A remark of the sandbox: a timeout, a limit, a new shell."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """The output as text. Invalid UTF-8 becomes U+FFFD."""
        return self.output.decode("utf-8", "replace")
