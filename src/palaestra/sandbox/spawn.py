"""Start a program behind a gate: it reports that it is ready, gets its limits and files, and is released."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from palaestra.core.errors import SandboxError

NOTHING, GONE = -1, -2
CREDENTIALS = struct.Struct("3i")  # process, user, group
KILL_SECONDS = 20.0
"""Seconds that the kernel may take until killed processes are gone: it has to free their memory."""

# Run by /bin/sh, with a socket to this process as its stdin; $0 is the program's own stdin. The shell stays the parent,
# so that orphans of the program have one. Its own messages about the end of the program are discarded.
GATE = 'echo >&0; read -r _ || exit 125; exec 4>&2 2>/dev/null; (exec "$@" <"$0" 2>&4 4>&-); exit $?'


WITH_INTERRUPTS = ("/usr/bin/env", "--default-signal=INT")


class Child:
    """A process behind a gate. Its stdin is a socket to this process; the later stdin has another descriptor.

    Arguments:
        argv: the program, by its full path. `STDIN` in it is replaced by the descriptor of the later stdin, `STATUS` by
            that of a socket whose other end is `status`.
        env: its whole environment.
        files: further descriptors that it inherits. All others are closed.
        session: start it in a session of its own.
        folder: its working folder; None for that of this process.
    """

    STDIN, STATUS = "\0stdin\0", "\0status\0"
    """Placeholders: no argument can contain a NUL."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        files: Sequence[int] = (),
        session: bool = False,
        folder: str | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.control, gate = socket.socketpair()
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.status: socket.socket | None = None
        stdin, self.stdin = os.pipe()
        numbers = {self.STDIN: duplicate_high(stdin)}
        os.close(stdin)
        if self.STATUS in argv:
            self.status, remote = socket.socketpair()
            self.status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            numbers[self.STATUS] = duplicate_high(remote.fileno())
            remote.close()
        # A process in the background of a shell ignores interrupts, and its children inherit that. Then bash could not be
        # interrupted.
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        try:
            self.process = subprocess.Popen(
                [*(WITH_INTERRUPTS if ignored else ()), *(_with_numbers(argument, numbers) for argument in argv)],
                env=env, stdin=gate.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                pass_fds=(*numbers.values(), *files), start_new_session=session, cwd=folder,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self._close_sockets()
            reason = getattr(error, "strerror", None) or error
            raise SandboxError(f"cannot start a program in the sandbox: {reason}; look at its arguments") from error
        finally:
            gate.close()
            for number in numbers.values():
                os.close(number)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pid = self.process.pid
        self.stdout, self.stderr = self.process.stdout.fileno(), self.process.stderr.fileno()

    def wait_until_ready(self, seconds: float = 20.0) -> int:
        """Wait for the program to reach the gate. Returns its process number on the host; negative if it never did."""
        return receive(self.control, seconds)[1]

    def release(self) -> None:
        """Let the program start."""
        with suppress(OSError):
            self.control.send(b"\n")

    def errors(self) -> str:
        """Its stderr so far, in one line."""
        os.set_blocking(self.stderr, False)
        with suppress(OSError):
            return " ".join(os.read(self.stderr, 4096).decode("utf-8", "replace").split())
        return ""

    def wait(self) -> int:
        """Wait for the exit code: 128 plus the signal if one killed it. Raises if it does not end."""
        if self.returncode is None:
            try:
                self._set_returncode(self.process.wait(KILL_SECONDS))
            except subprocess.TimeoutExpired:
                raise SandboxError(
                    f"a killed program did not die within {KILL_SECONDS:.0f} s; look at the machine's log (dmesg)"
                ) from None
        assert self.returncode is not None
        return self.returncode

    def wait_for_usage(self) -> tuple[int, resource.struct_rusage]:
        """As `wait`, for a process that has ended, with the resource usage of it and its descendants."""
        _, status, usage = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return self._set_returncode(self.process.returncode), usage

    def kill(self) -> None:
        if self.returncode is None:  # so its number is not reused
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it is alive, and close all descriptors."""
        self.kill()
        self._close_sockets()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def _close_sockets(self) -> None:
        self.control.close()
        if self.status is not None:
            self.status.close()
        self.close_stdin()

    def _set_returncode(self, code: int) -> int:
        self.returncode = code if code >= 0 else 128 - code
        return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def receive(control: socket.socket, seconds: float, longest: int = 4096) -> tuple[bytes, int]:
    """The next message and the process that sent it, as reported by the kernel; `NOTHING` after a timeout, `GONE` if
    the other end is closed."""
    control.settimeout(max(0.0, seconds))
    try:
        data, extra, _, _ = control.recvmsg(longest, socket.CMSG_SPACE(CREDENTIALS.size))
    except (TimeoutError, BlockingIOError):
        return b"", NOTHING
    except ConnectionError:
        return b"", GONE
    for level, kind, value in extra:
        if data and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return data, CREDENTIALS.unpack(value[: CREDENTIALS.size])[0]
    return b"", GONE


def _with_numbers(argument: str, numbers: Mapping[str, int]) -> str:
    for word, number in numbers.items():
        argument = argument.replace(word, str(number))
    return argument


def make_gated_command(argv: Sequence[str]) -> list[str]:
    """A command that waits for its release and then runs `argv`."""
    return ["/bin/sh", "-c", GATE, f"/dev/fd/{Child.STDIN}", *argv]


def make_sealed_file(content: bytes) -> int:
    """Descriptor of a sealed file in memory with `content`: no process can change it."""
    file = os.memfd_create("palaestra", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(file, content)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        os.lseek(file, 0, os.SEEK_SET)
        return duplicate_high(file)
    finally:
        os.close(file)


def make_memory_file(content: bytes) -> int:
    """Descriptor of a file in memory with `content`. Faster than `make_sealed_file`."""
    file = os.memfd_create("palaestra", os.MFD_CLOEXEC)
    os.pwrite(file, content, 0)
    if file > 2:
        return file
    try:
        return duplicate_high(file)
    finally:
        os.close(file)


def duplicate_high(file: int) -> int:
    """Duplicate a descriptor to a number that no shell uses for itself."""
    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 64)
