"""Run one program from start to end: input, output, limits and result."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import Limits, SandboxResult, Status
from palaestra.sandbox.processes import LimitMonitor
from palaestra.sandbox.spawn import KILL_SECONDS, Child

CHECK_EVERY = 0.02

OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"OutOfMemoryError", b"out of memory")
"""Messages of programs that the kernel refused memory. This cannot be observed from outside."""


@dataclass(slots=True)
class _CapturedStream:
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room


class _SocketRelay:
    """Relays between a socket and the stdin and stdout of a program."""

    def __init__(self, channel: socket.socket, child: Child, poller: select.poll) -> None:
        self.channel, self.child, self.poller = channel, child, poller
        self._in, self._out, self._input_closed = bytearray(), bytearray(), False
        channel.setblocking(False)
        os.set_blocking(child.stdin, False)
        poller.register(channel.fileno(), select.POLLIN)

    def forward(self, data: bytes) -> None:
        """Queue output of the program for the socket."""
        if not self._out:
            self.poller.register(self.channel.fileno(), select.POLLOUT | (0 if self._input_closed else select.POLLIN))
        self._out += data

    def handle(self, file: int, events: int) -> None:
        """Handle an event of the poller."""
        if file == self.channel.fileno():
            if events & select.POLLOUT and self._out:
                with suppress(BlockingIOError, OSError):
                    del self._out[: self.channel.send(self._out)]
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._input_closed:
                self._read_socket()
            wanted = (select.POLLOUT if self._out else 0) | (0 if self._input_closed else select.POLLIN)
            if wanted and not events & select.POLLERR:
                self.poller.modify(file, wanted)
            else:
                self.poller.unregister(file)
        else:
            left = _feed(file, memoryview(bytes(self._in)))
            self._in = bytearray(left)
            if not self._in:
                self.poller.unregister(file)
                if self._input_closed:
                    self.child.close_stdin()

    def _read_socket(self) -> None:
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            if not self._in:
                self.poller.register(self.child.stdin, select.POLLOUT)
            self._in += data
        else:
            self._input_closed = True
            if not self._in:
                self.child.close_stdin()

    def finish(self) -> None:
        """Send the rest of the output."""
        self.channel.settimeout(KILL_SECONDS)
        with suppress(OSError):
            self.channel.sendall(self._out)


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
    poller, unread = select.poll(), memoryview(stdin if isinstance(stdin, bytes) else b"")
    relay: _SocketRelay | None = None
    handle = os.pidfd_open(child.pid)
    status: Status | None = None
    start = time.monotonic()
    deadline, next_check = start + limits.wall_seconds, start + CHECK_EVERY / 2
    try:
        poller.register(handle, select.POLLIN)
        for file in streams:
            os.set_blocking(file, False)
            poller.register(file, select.POLLIN)
        if isinstance(stdin, socket.socket):
            relay = _SocketRelay(stdin, child, poller)
        elif unread:
            os.set_blocking(child.stdin, False)
            poller.register(child.stdin, select.POLLOUT)
        else:
            child.close_stdin()
        dead = False
        while not dead:
            until = min(deadline, next_check)
            for file, events in poller.poll(max(0.0, until - time.monotonic()) * 1000 + 0.5):
                if file == handle:
                    dead = True
                elif file in streams:
                    had = len(streams[file].kept)
                    if not _take(file, streams[file]):
                        poller.unregister(file)
                    if relay and file == child.stdout and len(streams[file].kept) > had:
                        relay.forward(bytes(streams[file].kept[had:]))
                elif relay:
                    relay.handle(file, events)
                else:
                    unread = _feed(file, unread)
                    if not unread:
                        poller.unregister(file)
                        child.close_stdin()
            now = time.monotonic()
            if dead:
                continue
            if status is not None:
                if now >= deadline:
                    raise SandboxError(
                        f"a killed program did not die within {KILL_SECONDS:.0f} s; look at the machine's log (dmesg)"
                    )
                if now >= next_check:
                    kill()
                    next_check = time.monotonic() + CHECK_EVERY
                continue
            if out.truncated or err.truncated:
                status = Status.OUTPUT
            elif now >= deadline:
                status = Status.WALL_TIME
            elif now >= next_check:
                status = monitor.check() if monitor else None
                next_check = time.monotonic() + CHECK_EVERY
            if status is not None:
                kill()
                deadline = time.monotonic() + KILL_SECONDS
        seconds = time.monotonic() - start
        for file, stream in streams.items():
            had = len(stream.kept)
            while _take(file, stream, wait=False):
                pass
            if relay and file == child.stdout and len(stream.kept) > had:
                relay.forward(bytes(stream.kept[had:]))
        if relay:
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


def _feed(file: int, unread: memoryview) -> memoryview:
    try:
        return unread[os.write(file, unread[:65536]) :]
    except BlockingIOError:
        return unread
    except OSError:  # the program has closed its stdin
        return unread[:0]


def _read_peak_memory(usage: resource.struct_rusage) -> int:
    """Peak memory of the largest process in bytes; 0 if unknown. The kernel's value starts with the memory of *this*
    process when it starts a program, so smaller values say nothing."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0


def _classify_exit(exit_code: int, limits: Limits, peak: int, errors: bytes) -> Status:
    """The status of a program for which no exceeded limit was observed; its last errors may name one."""
    if exit_code == 0:
        return Status.OK
    signal_ = exit_code - 128 if 128 < exit_code <= 192 else 0
    if signal_ == signal.SIGXCPU:
        return Status.CPU_TIME
    if signal_ == signal.SIGXFSZ:
        return Status.DISK
    if peak >= limits.memory * 0.95 or any(message in errors for message in OUT_OF_MEMORY):
        return Status.MEMORY
    return Status.SIGNAL if signal_ else Status.EXIT
