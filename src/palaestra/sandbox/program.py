"""Start a program behind a gate, and run it to its end: input, output, limits and result.

A program behind its gate reports that it is ready, gets its limits and files, and is released.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from palaestra.core.errors import SandboxError
from palaestra.sandbox.processes import LimitMonitor
from palaestra.sandbox.records import Limits, SandboxResult, Status

_CHECK_EVERY = 0.02

_OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"OutOfMemoryError", b"out of memory")
"""Messages of programs whose memory allocation failed, which cannot be observed from outside."""


@dataclass(slots=True)
class _CapturedStream:
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room


class _InputRelay:
    """Feeds the stdin of a program from bytes or from a socket, and forwards its stdout to the socket."""

    def __init__(self, source: bytes | socket.socket, child: Child, poller: select.poll) -> None:
        self.child, self.poller = child, poller
        self.channel = source if isinstance(source, socket.socket) else None
        self._in, self._out = bytearray(b"" if isinstance(source, socket.socket) else source), bytearray()
        self._input_closed = self.channel is None
        os.set_blocking(child.stdin, False)
        if self.channel is not None:
            self.channel.setblocking(False)
        self._register()

    def forward(self, data: bytes) -> None:
        """Queue output of the program for the socket."""
        if self.channel is not None:
            self._out += data
            self._register()

    def handle(self, file: int) -> None:
        """Move data after an event of the poller."""
        if file == self.child.stdin:
            self._in = _write(self._in, lambda data: os.write(file, data))
        elif self.channel is not None:
            self._out = _write(self._out, self.channel.send)
            if not self._input_closed:
                self._read_socket(self.channel)
        self._register()

    def _read_socket(self, channel: socket.socket) -> None:
        try:
            data = channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._in += data
        self._input_closed = not data

    def _register(self) -> None:
        """Wait for the events that data wait for. At the end of the input, close the program's stdin."""
        if self.channel is not None:
            events = (select.POLLOUT if self._out else 0) | (0 if self._input_closed else select.POLLIN)
            self._wait_for(self.channel.fileno(), events)
        if self.child.stdin >= 0:
            self._wait_for(self.child.stdin, select.POLLOUT if self._in else 0)
            if self._input_closed and not self._in:
                self.child.close_stdin()

    def _wait_for(self, file: int, events: int) -> None:
        if events:
            self.poller.register(file, events)
        else:
            with suppress(KeyError):
                self.poller.unregister(file)

    def finish(self) -> None:
        """Send the rest of the output."""
        if self.channel is not None:
            self.channel.settimeout(_KILL_SECONDS)
            with suppress(OSError):
                self.channel.sendall(self._out)


def _write(data: bytearray, write: Callable[[bytearray], int]) -> bytearray:
    """Write what fits, and return the rest; nothing if the other end is closed."""
    if data:
        try:
            del data[: write(data[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            data.clear()
    return data


def supervise(
    child: Child, stdin: bytes | socket.socket, limits: Limits, monitor: LimitMonitor | None, kill: Callable[[], None]
) -> SandboxResult:
    """Write the input of a started program, read its output, enforce its limits, and wait for its end.

    Arguments:
        child: when it is dead, all its descendants are.
        stdin: the input; or a socket for stdin and stdout.
        monitor: checked fifty times a second.
        kill: kills all processes; called again until they are dead.

    Raises:
        SandboxError: the killed processes do not die.
    """
    streams = {child.stdout: _CapturedStream(limits.output), child.stderr: _CapturedStream(limits.output)}
    out, err = streams.values()
    poller = select.poll()
    handle = os.pidfd_open(child.pid)
    status: Status | None = None
    start = time.monotonic()
    deadline, next_check = start + limits.wall_seconds, start + _CHECK_EVERY / 2
    try:
        poller.register(handle, select.POLLIN)
        for file in streams:
            os.set_blocking(file, False)
            poller.register(file, select.POLLIN)
        relay = _InputRelay(stdin, child, poller)
        dead = False
        while not dead:
            until = min(deadline, next_check)
            for file, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000 + 0.5):
                if file == handle:
                    dead = True
                elif file in streams:
                    had = len(streams[file].kept)
                    if not _take(file, streams[file]):
                        poller.unregister(file)
                    if file == child.stdout:
                        relay.forward(bytes(streams[file].kept[had:]))
                else:
                    relay.handle(file)
            now = time.monotonic()
            if dead:
                continue
            if status is not None:
                if now >= deadline:
                    raise SandboxError(_NOT_DEAD)
                if now >= next_check:
                    kill()
                    next_check = time.monotonic() + _CHECK_EVERY
                continue
            if out.truncated or err.truncated:
                status = Status.OUTPUT
            elif now >= deadline:
                status = Status.WALL_TIME
            elif now >= next_check:
                status = monitor.check() if monitor else None
                next_check = time.monotonic() + _CHECK_EVERY
            if status is not None:
                kill()
                deadline = time.monotonic() + _KILL_SECONDS
        seconds = time.monotonic() - start
        had = len(out.kept)
        for file, stream in streams.items():
            while _take(file, stream, wait=False):
                pass
        relay.forward(bytes(out.kept[had:]))
        relay.finish()
    finally:
        os.close(handle)
    exit_code, usage = child.wait_for_usage()
    largest = _read_peak_memory(usage)
    if status is not None:
        exit_code = 128 + signal.SIGKILL
    elif out.truncated or err.truncated:
        status = Status.OUTPUT
    else:
        status = monitor.finish(usage.ru_utime + usage.ru_stime, largest) if monitor else None
        status = status or _classify_exit(exit_code, limits, largest, bytes(err.kept[-4096:]))
    peak = max(monitor.peak if monitor else 0, largest)
    return SandboxResult(
        status, exit_code, bytes(out.kept), bytes(err.kept), seconds, out.truncated, err.truncated, peak or None
    )


def _take(file: int, stream: _CapturedStream, wait: bool = True) -> bool:
    """Read available data. Returns False at the end of the stream; without `wait` also if there is no data."""
    try:
        data = os.read(file, 65536)
    except BlockingIOError:
        return wait
    stream.add(data)
    return bool(data)


def _read_peak_memory(usage: resource.struct_rusage) -> int:
    """Return the peak memory of the largest process in bytes; 0 if unknown. The kernel's value starts with the
    memory of *this* process when it starts a program, so smaller values are meaningless."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0


def _classify_exit(exit_code: int, limits: Limits, peak: int, errors: bytes) -> Status:
    """Return the status of a program for which no exceeded limit was observed; its last errors may name one."""
    if exit_code == 0:
        return Status.OK
    signal_ = exit_code - 128 if 128 < exit_code <= 192 else 0
    if signal_ == signal.SIGXCPU:
        return Status.CPU_TIME
    if signal_ == signal.SIGXFSZ:
        return Status.DISK
    if peak >= limits.memory * 0.95 or any(message in errors for message in _OUT_OF_MEMORY):
        return Status.MEMORY
    return Status.SIGNAL if signal_ else Status.EXIT


_NOTHING, GONE = -1, -2
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_KILL_SECONDS = 20.0
"""Seconds that the kernel may take until killed processes are gone: it has to free their memory."""
_NOT_DEAD = f"a killed program did not die within {_KILL_SECONDS:.0f} s; look at the machine's log (dmesg)"

# Run by /bin/sh, with a socket to this process as its stdin; $0 is the program's own stdin. The shell stays the parent,
# so that orphans of the program have one. Its own messages about the end of the program are discarded.
_GATE = 'echo >&0; read -r _ || exit 125; exec 4>&2 2>/dev/null; (exec "$@" <"$0" 2>&4 4>&- 8<&- 9<&-); exit $?'

_WITH_INTERRUPTS = ("/usr/bin/env", "--default-signal=INT")


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
        for placeholder, number in numbers.items():
            argv = [argument.replace(placeholder, str(number)) for argument in argv]
        # A process in the background of a shell ignores interrupts, and its children inherit that. Then bash could not be
        # interrupted.
        ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        try:
            self.process = subprocess.Popen(
                [*(_WITH_INTERRUPTS if ignored else ()), *argv],
                env=env,
                stdin=gate.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(*numbers.values(), *files),
                start_new_session=session,
                cwd=folder,
            )
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
        """Return its stderr so far, in one line."""
        os.set_blocking(self.stderr, False)
        with suppress(OSError):
            return " ".join(os.read(self.stderr, 4096).decode("utf-8", "replace").split())
        return ""

    def wait(self) -> int:
        """Wait for the exit code: 128 plus the signal if one killed it. Raises if it does not end."""
        if self.returncode is None:
            try:
                self._set_returncode(self.process.wait(_KILL_SECONDS))
            except subprocess.TimeoutExpired:
                raise SandboxError(_NOT_DEAD) from None
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

    def __exit__(self, *_: object) -> None:
        self.close()


def receive(control: socket.socket, seconds: float, longest: int = 4096) -> tuple[bytes, int]:
    """Return the next message and the process that sent it, as reported by the kernel; `_NOTHING` after a timeout,
    `GONE` if the other end is closed."""
    control.settimeout(max(0.0, seconds))
    try:
        data, extra, _, _ = control.recvmsg(longest, socket.CMSG_SPACE(_CREDENTIALS.size))
    except (TimeoutError, BlockingIOError):
        return b"", _NOTHING
    except ConnectionError:
        return b"", GONE
    for level, kind, value in extra:
        if data and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return data, _CREDENTIALS.unpack(value[: _CREDENTIALS.size])[0]
    return b"", GONE


def make_gated_command(argv: Sequence[str]) -> list[str]:
    """Return a command that waits for its release and then runs `argv`."""
    return ["/bin/sh", "-c", _GATE, f"/dev/fd/{Child.STDIN}", *argv]


def make_memory_file(content: bytes, *, sealed: bool = False) -> int:
    """Return the descriptor of a file in memory with `content`. No process can change a sealed one."""
    file = os.memfd_create("palaestra", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0))
    try:
        os.pwrite(file, content, 0)
        if sealed:
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        return duplicate_high(file)
    finally:
        os.close(file)


def duplicate_high(file: int) -> int:
    """Duplicate a descriptor to a number that no shell uses for itself."""
    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 64)
