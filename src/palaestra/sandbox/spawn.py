"""Starting a program that waits at the door: it says that it is there, gets its limits and files, and is let in."""

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
PATIENCE = 20.0
"""Seconds that the kernel may take to end what was killed: freeing memory takes time."""

# Run by /bin/sh, with our socket as its stdin; $0 is where the program's own stdin is. It stays the parent, so that
# what the program leaves behind has one; what it would say itself about a program's end goes nowhere.
DOORKEEPER = 'echo >&0; read -r _ || exit 125; exec 4>&2 2>/dev/null; (exec "$@" <"$0" 2>&4 4>&-); exit $?'


ATTENTIVE = ("/usr/bin/env", "--default-signal=INT")


class Child:
    """A process behind a door: its stdin is a socket to us, and what is to be its stdin has another number.

    Arguments:
        argv: the program, by its full path. The word `STDIN` in it becomes the number of what is to be its stdin, the
            word `STATUS` that of a socket of its own, whose other end is `status`.
        env: its whole environment.
        files: further open files that it inherits. No other file of ours is.
        session: whether it gets a session of its own.
        folder: where it starts; None is where we are.
    """

    STDIN, STATUS = "\0stdin\0", "\0status\0"
    """Words that no argument can hold."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        files: Sequence[int] = (),
        session: bool = False,
        folder: str | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.control, theirs = socket.socketpair()
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.status: socket.socket | None = None
        stdin, self.stdin = os.pipe()
        numbers = {self.STDIN: high_number(stdin)}
        os.close(stdin)
        if self.STATUS in argv:
            self.status, told = socket.socketpair()
            self.status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            numbers[self.STATUS] = high_number(told.fileno())
            told.close()
        # Who is started in the background of a shell has interrupts ignored, and so have all that it starts: a bash among
        # them could not be told to give up its command.
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        try:
            self.process = subprocess.Popen(
                [*(ATTENTIVE if ignored else ()), *(_with_numbers(argument, numbers) for argument in argv)],
                env=env, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                pass_fds=(*numbers.values(), *files), start_new_session=session, cwd=folder,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self._hang_up()
            reason = getattr(error, "strerror", None) or error
            raise SandboxError(f"cannot start a program in the sandbox: {reason}; look at its arguments") from error
        finally:
            theirs.close()
            for number in numbers.values():
                os.close(number)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.pid = self.process.pid
        self.stdout, self.stderr = self.process.stdout.fileno(), self.process.stderr.fileno()

    def meet(self, seconds: float = 20.0) -> int:
        """Wait until the program is at the door; returns its process as the host counts, below 0 if it never came."""
        return receive(self.control, seconds)[1]

    def let_in(self) -> None:
        with suppress(OSError):
            self.control.send(b"\n")

    def errors(self) -> str:
        """What it wrote to stderr so far, in one line."""
        os.set_blocking(self.stderr, False)
        with suppress(OSError):
            return " ".join(os.read(self.stderr, 4096).decode("utf-8", "replace").split())
        return ""

    def wait(self) -> int:
        """The exit code, 128 and the signal if it was one. Raises if it does not end."""
        if self.returncode is None:
            try:
                self._ended(self.process.wait(PATIENCE))
            except subprocess.TimeoutExpired:
                raise SandboxError(
                    f"a killed program did not die within {PATIENCE:.0f} s; look at the machine's log (dmesg)"
                ) from None
        assert self.returncode is not None
        return self.returncode

    def wait_for_usage(self) -> tuple[int, resource.struct_rusage]:
        """As `wait`, for one that has ended, with what it and all below it used."""
        _, status, usage = os.wait4(self.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        return self._ended(self.process.returncode), usage

    def kill(self) -> None:
        if self.returncode is None:  # so its number is still its own
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it lives, and close everything."""
        self.kill()
        self._hang_up()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def _hang_up(self) -> None:
        self.control.close()
        if self.status is not None:
            self.status.close()
        self.close_stdin()

    def _ended(self, code: int) -> int:
        self.returncode = code if code >= 0 else 128 - code
        return self.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def receive(control: socket.socket, seconds: float, longest: int = 4096) -> tuple[bytes, int]:
    """The next message, and the process that sent it by the kernel's word; `NOTHING` when time is up, `GONE` when
    nobody is left who could send one."""
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


def behind_door(argv: Sequence[str]) -> list[str]:
    """The command that waits, and then runs `argv`."""
    return ["/bin/sh", "-c", DOORKEEPER, f"/dev/fd/{Child.STDIN}", *argv]


def holding(content: bytes) -> int:
    """An open file with `content`, at its start, that nobody can change."""
    file = os.memfd_create("palaestra", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(file, content)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        os.lseek(file, 0, os.SEEK_SET)
        return high_number(file)
    finally:
        os.close(file)


def copying(content: bytes) -> int:
    """An open file with `content`, at its start, for a program that reads it once. Faster than `holding`."""
    file = os.memfd_create("palaestra", os.MFD_CLOEXEC)
    os.pwrite(file, content, 0)
    if file > 2:
        return file
    try:
        return high_number(file)
    finally:
        os.close(file)


def high_number(file: int) -> int:
    """The same file under a number that no shell uses for itself."""
    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 64)
