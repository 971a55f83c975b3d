"""One program from its start to its end: its input, its output, its limits, and the verdict."""

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
from palaestra.sandbox.spawn import PATIENCE, Child

CHECK_EVERY = 0.02

OUT_OF_MEMORY = (b"MemoryError", b"std::bad_alloc", b"Cannot allocate memory", b"OutOfMemoryError", b"out of memory")
"""How programs say that the kernel refused them memory, which is not seen from outside."""


@dataclass(slots=True)
class _CapturedStream:
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    truncated: bool = False

    def add(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room]
        self.truncated |= len(data) > room


class _Talk:
    """A program's stdin and stdout on a socket: what comes in is fed to it, what it prints goes out."""

    def __init__(self, channel: socket.socket, child: Child, poller: select.poll) -> None:
        self.channel, self.child, self.poller = channel, child, poller
        self._in, self._out, self._over = bytearray(), bytearray(), False
        channel.setblocking(False)
        os.set_blocking(child.stdin, False)
        poller.register(channel.fileno(), select.POLLIN)

    def say(self, data: bytes) -> None:
        """Send what the program printed, as soon as it is taken."""
        if not self._out:
            self.poller.register(self.channel.fileno(), select.POLLOUT | (0 if self._over else select.POLLIN))
        self._out += data

    def handle(self, file: int, events: int) -> None:
        """Go on with whatever the poller found."""
        if file == self.channel.fileno():
            if events & select.POLLOUT and self._out:
                with suppress(BlockingIOError, OSError):
                    del self._out[: self.channel.send(self._out)]
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._over:
                self._listen()
            wanted = (select.POLLOUT if self._out else 0) | (0 if self._over else select.POLLIN)
            if wanted and not events & select.POLLERR:
                self.poller.modify(file, wanted)
            else:
                self.poller.unregister(file)
        else:
            left = _feed(file, memoryview(bytes(self._in)))
            self._in = bytearray(left)
            if not self._in:
                self.poller.unregister(file)
                if self._over:
                    self.child.close_stdin()

    def _listen(self) -> None:
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
            self._over = True
            if not self._in:
                self.child.close_stdin()

    def finish(self) -> None:
        """Send what is left."""
        self.channel.settimeout(PATIENCE)
        with suppress(OSError):
            self.channel.sendall(self._out)


def supervise(
    child: Child, stdin: bytes | socket.socket, limits: Limits, watch: LimitMonitor | None, kill: Callable[[], None]
) -> SandboxResult:
    """Feed a started program, take its output, hold it to its limits, and wait until it is dead.

    Arguments:
        child: that it is dead means that its whole tree is.
        stdin: what it reads; or a socket, from which it reads and to which it prints.
        watch: looked at fifty times a second.
        kill: ends the whole tree; called again until it is dead.

    Raises:
        SandboxError: what was killed does not die.
    """
    streams = {child.stdout: _CapturedStream(limits.output), child.stderr: _CapturedStream(limits.output)}
    out, err = streams.values()
    poller, unread = select.poll(), memoryview(stdin if isinstance(stdin, bytes) else b"")
    talk: _Talk | None = None
    handle = os.pidfd_open(child.pid)
    verdict: Status | None = None
    start = time.monotonic()
    deadline, next_check = start + limits.wall_seconds, start + CHECK_EVERY / 2
    try:
        poller.register(handle, select.POLLIN)
        for file in streams:
            os.set_blocking(file, False)
            poller.register(file, select.POLLIN)
        if isinstance(stdin, socket.socket):
            talk = _Talk(stdin, child, poller)
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
                    if talk and file == child.stdout and len(streams[file].kept) > had:
                        talk.say(bytes(streams[file].kept[had:]))
                elif talk:
                    talk.handle(file, events)
                else:
                    unread = _feed(file, unread)
                    if not unread:
                        poller.unregister(file)
                        child.close_stdin()
            now = time.monotonic()
            if dead:
                continue
            if verdict is not None:
                if now >= deadline:
                    raise SandboxError(
                        f"a killed program did not die within {PATIENCE:.0f} s; look at the machine's log (dmesg)"
                    )
                if now >= next_check:
                    kill()
                    next_check = time.monotonic() + CHECK_EVERY
                continue
            if out.truncated or err.truncated:
                verdict = Status.OUTPUT
            elif now >= deadline:
                verdict = Status.WALL_TIME
            elif now >= next_check:
                verdict = watch.check() if watch else None
                next_check = time.monotonic() + CHECK_EVERY
            if verdict is not None:
                kill()
                deadline = time.monotonic() + PATIENCE
        seconds = time.monotonic() - start
        for file, stream in streams.items():
            had = len(stream.kept)
            while _take(file, stream, wait=False):
                pass
            if talk and file == child.stdout and len(stream.kept) > had:
                talk.say(bytes(stream.kept[had:]))
        if talk:
            talk.finish()
    finally:
        os.close(handle)
    exit_code, usage = child.wait_for_usage()
    largest = _peak_of(usage)
    if verdict is not None:
        exit_code = 128 + signal.SIGKILL
    elif out.truncated or err.truncated:
        verdict = Status.OUTPUT
    else:
        verdict = watch.finish(usage.ru_utime + usage.ru_stime, largest) if watch else None
        verdict = verdict or _verdict(exit_code, limits, largest, bytes(err.kept[-4096:]))
    peak = max(watch.peak if watch else 0, largest)
    return SandboxResult(
        verdict, exit_code, bytes(out.kept), bytes(err.kept), seconds, out.truncated, err.truncated, peak or None
    )


def _take(file: int, stream: _CapturedStream, wait: bool = True) -> bool:
    """Read what is there; False at the end, and, if not to wait, where nothing is."""
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
    except OSError:  # the program does not want to read
        return unread[:0]


def _peak_of(usage: resource.struct_rusage) -> int:
    """Bytes of the largest process. The kernel's figure starts at what *we* use when we start a program, so below
    that it says nothing."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > own else 0


def _verdict(exit_code: int, limits: Limits, peak: int, last_words: bytes) -> Status:
    """What became of a program that broke no limit which was seen: its own words may tell of one."""
    if exit_code == 0:
        return Status.OK
    signal_ = exit_code - 128 if 128 < exit_code <= 192 else 0
    if signal_ == signal.SIGXCPU:
        return Status.CPU_TIME
    if signal_ == signal.SIGXFSZ:
        return Status.DISK
    if peak >= limits.memory * 0.95 or any(words in last_words for words in OUT_OF_MEMORY):
        return Status.MEMORY
    return Status.SIGNAL if signal_ else Status.EXIT
