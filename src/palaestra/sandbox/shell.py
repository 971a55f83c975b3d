"""A shell that stays, and that nothing which runs in it can talk for.

How bash runs the commands and tells of their end is in `loop`.

What a command can do is to end, stop or break its shell. Then a new one is started in the same workspace, and the
result says so.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import KIB, MOST_LISTED, Files, Limits, ShellResult, Status
from palaestra.sandbox.bash_protocol import StatusLine

GRACE = 1.0
"""Seconds in which a shell must come back after its command was killed."""
START, RESTART = 20.0, 5.0
"""Seconds in which a shell must start; and in which the next one must, before everything else is ended for it."""
CHECK_EVERY = 0.03
FEWEST_FILES = 96
TIMED_OUT = 124
FLOOD = 64
"""A command that prints this many times what is kept is ended."""
NOISE = 64 * KIB
"""Bytes that may come by the way for the status while a command runs; a shell says less than a hundred."""
BURST = 64
"""How often that way is read before anything else gets its turn."""


class ShellHost(Protocol):
    """Where a shell lives: what differs between the kinds of sandbox."""

    workspace: str
    stdin: int
    output: int
    status: int
    """Where the shell says what became of a command."""
    control: int
    """Where we are told that it has ended; may be the same."""
    heard: int
    """Bytes that came by `status`, from whomever; counted on by `said`."""

    def start(self, sweep: bool, seconds: float = START) -> None:
        """Start a shell after the last one ended; `sweep` ends everything else before.

        Raises:
            SandboxError: there is none after so many seconds.
        """
        ...

    def said(self) -> list[StatusLine]:
        """What the shell itself said since the last time, or a part of it if it was much. Does not wait."""
        ...

    def ended(self) -> int | None:
        """The exit code of the shell where it has ended since the last time. Does not wait."""
        ...

    def pids(self) -> set[int]:
        """What runs beside the shell."""
        ...

    def kill(self, pids: Collection[int]) -> None: ...

    def hurry(self) -> None:
        """Let the shell and its keeper go first, before a crowd of processes; until the next start."""
        ...

    def interrupt(self, pids: Collection[int]) -> None:
        """Have the shell give up its command, whose processes these are, as soon as what it waits for has ended."""
        ...

    def end_shell(self) -> None:
        """Kill the shell, whatever it does."""
        ...

    def stopped(self) -> bool:
        """Whether the shell has been stopped, so that it will never answer."""
        ...

    def begin(self) -> None:
        """A command begins: its CPU time is counted from now on."""
        ...

    def check(self) -> Status | None:
        """The limit that is broken now, if one is."""
        ...

    def was_killed(self) -> bool:
        """Whether the kernel killed a process for want of memory since this or `check` was asked last."""
        ...

    def write_files(self, files: Files) -> None: ...

    def read_files(self, names: Sequence[str], longest: int, total: int | None) -> dict[str, bytes]: ...

    def list_files(self, most: int) -> list[str]: ...

    def close(self) -> None: ...


class Output:
    """What a command printed: the beginning and the end where it is too much, up to the word that ends it."""

    def __init__(self, limit: int, word: bytes, before: bytes = b"") -> None:
        self.head_limit, self.tail_limit = limit - limit // 2, limit // 2
        self.mark = b"\0" + word + b"\0"
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.ended, self.rest, self._held = False, b"", b""
        if before:
            self._keep(before)

    def add(self, data: bytes) -> None:
        if self.ended:
            self.rest += data
            return
        data = self._held + data
        at = data.find(self.mark)
        if at >= 0:
            self.ended, self.rest, self._held = True, data[at + len(self.mark) :], b""
            self._keep(data[:at])
        else:  # the mark may have come in part
            cut = len(data) - (len(self.mark) - 1)
            self._held = data[max(cut, 0) :]
            self._keep(data[: max(cut, 0)])

    def finish(self) -> bytes:
        """All that is kept, with a note where something is missing."""
        self._keep(self._held)
        self._held = b""
        missing = self.total - len(self.head) - len(self.tail)
        note = f"\n... {missing} bytes are left out here ...\n".encode() if missing else b""
        return bytes(self.head + note + self.tail)

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_limit - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.tail_limit:
            del self.tail[: len(self.tail) - self.tail_limit]


class CommandReply(NamedTuple):
    """What became of a command; without a code, nothing yet: a limit was broken, or the shell has stopped or broken."""

    code: int | None = None
    """Its exit code, or that of the shell."""
    shell_ended: bool = False
    limit: Status | None = None
    broken: bool = False
    """What came by the way for the status was too much, or made no sense: somebody else writes there."""
    swept: bool = False
    """Everything else in the room was ended too."""


class BashShell:
    """A persistent shell in a room. Made by `Sandbox.shell`.

    One command at a time; other threads wait. Folder, variables, functions and background processes stay from one
    command to the next. Commands read nothing (/dev/null), so an editor or `cat` ends at once. What a background
    process prints comes with the output of the next command; it waits while nobody asks and the pipe is full.
    """

    def __init__(self, make_room: Callable[[], ShellHost], limits: Limits) -> None:
        if limits.open_files < FEWEST_FILES:
            raise SandboxError(
                f"a shell needs the limit open_files to be {FEWEST_FILES} or more; got {limits.open_files}"
            )
        self.limits = limits
        self._lock, self._closing, self._ready = threading.RLock(), threading.Event(), threading.Event()
        self._rest = self._news = b""
        self._silent = 0
        """How many shells did not come back from a command and had to be ended, since one did."""
        self._room: ShellHost | None = None
        self._failure: BaseException | None = None
        # The sandbox dies with the thread that started it, so this one starts it, and stays.
        self._guard = threading.Thread(target=self._keep_guard, args=(make_room,), name="palaestra-shell", daemon=True)
        self._guard.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        self.workspace = self._open().workspace

    def execute(self, command: str | bytes, timeout: float | None = None) -> ShellResult:
        """See `Shell.execute`; without `timeout`, `limits.wall_seconds` holds."""
        data = command if isinstance(command, bytes) else command.encode("utf-8", "replace")
        if b"\0" in data:
            return ShellResult(Status.EXIT, 2, b"bash: a command cannot hold a NUL byte\n", 0.0)
        with self._lock:
            room = self._open()
            before, word = room.pids(), secrets.token_hex(16).encode()
            output = Output(self.limits.output, word, self._rest + self._news)
            self._rest = self._news = b""
            room.heard = 0
            room.begin()
            start = time.monotonic()
            deadline = start + (self.limits.wall_seconds if timeout is None else timeout)
            reply = self._converse(room, data + b"\0" + word + b"\0", word, output, deadline)
            limit, code, note = reply.limit, reply.code, ""
            if reply.code is None:
                note = BROKEN if reply.broken else STOPPED
                if limit:
                    note = f"ended after {time.monotonic() - start:.1f} s: {LIMITS[limit]}"
                reply = self._recover(room, before, word, output, reply.broken or limit is Status.PROCESSES)
                code = TIMED_OUT if limit else reply.code
            elif reply.shell_ended:
                note = f"the shell ended with exit code {code}"
                self._drain(room, output)
                reply = reply._replace(swept=self._restart(room, sweep=False))
            else:
                self._silent = 0
            if limit is None and room.was_killed():
                limit = Status.MEMORY
                note = "; ".join(filter(None, (f"a process was ended: {LIMITS[limit]}", note)))
            assert code is not None
            if reply.shell_ended:
                note += f"; {NEW_SHELL}" + ("; the background processes were ended" if reply.swept else "")
            text = output.finish()
            self._rest = output.rest
            status = limit or (Status.OK if code == 0 else Status.EXIT if code <= 128 or code > 192 else Status.SIGNAL)
            return ShellResult(
                status, code, text, time.monotonic() - start, output.total > self.limits.output, reply.shell_ended, note
            )

    def write_files(self, files: Files) -> None:
        with self._lock:
            self._open().write_files(files)

    def read_files(
        self, names: Sequence[str], longest: int | None = None, total: int | None = None
    ) -> dict[str, bytes]:
        with self._lock:
            return self._open().read_files(names, self.limits.file_size if longest is None else longest, total)

    def list_files(self, most: int = MOST_LISTED) -> list[str]:
        with self._lock:
            return self._open().list_files(most)

    def close(self) -> None:
        self._closing.set()
        if self._guard is not threading.current_thread():
            self._guard.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> ShellHost:
        if self._room is None or self._closing.is_set():
            raise SandboxError("the shell is closed; open another with Sandbox.shell()")
        return self._room

    def _must_be_open(self) -> None:
        if self._closing.is_set():
            raise SandboxError("the shell was closed while its command ran; open another with Sandbox.shell()")

    def _converse(self, room: ShellHost, data: bytes, word: bytes, output: Output, deadline: float) -> CommandReply:
        """Send a command and take what comes, until it ends, its shell ends, or a limit is broken."""
        poller = select.poll()
        poller.register(room.output, select.POLLIN)
        poller.register(room.status, select.POLLIN)
        poller.register(room.control, select.POLLIN)
        unsent = memoryview(data)
        code: int | None = None
        next_check = time.monotonic() + CHECK_EVERY
        unsent = _send(room.stdin, unsent)
        if unsent:
            poller.register(room.stdin, select.POLLOUT)
        while True:
            self._must_be_open()
            now = time.monotonic()
            if now >= deadline:
                # Where the status came and the mark did not, nobody can read on: the command had closed our pipe.
                return CommandReply(code) if code is not None else CommandReply(limit=Status.WALL_TIME)
            for file, _ in poller.poll(max(0.0, min(deadline, next_check) - now) * 1000 + 0.5):
                if file == room.output:
                    _take(file, output)
                elif file == room.stdin:
                    unsent = _send(file, unsent)
                    if not unsent:
                        poller.unregister(file)
                if file == room.status:
                    for said in room.said():
                        if said.word == word:
                            if said.code is None:
                                return CommandReply(broken=True)
                            code = said.code
                            deadline = min(deadline, time.monotonic() + GRACE)
                    if room.heard > NOISE:
                        return CommandReply(broken=True)
                if file == room.control and (ended := room.ended()) is not None:
                    return CommandReply(ended, shell_ended=True)
            if code is not None and output.ended:
                return CommandReply(code)
            if output.total + len(output.rest) > FLOOD * max(self.limits.output, 2**16):
                return CommandReply(limit=Status.OUTPUT)
            if time.monotonic() >= next_check:
                limit = room.check() if code is None else None
                if limit is not None or (code is None and room.stopped()):
                    return CommandReply(limit=limit)
                next_check = time.monotonic() + CHECK_EVERY

    def _recover(self, room: ShellHost, before: set[int], word: bytes, output: Output, sweep: bool) -> CommandReply:
        """End what a command started: its shell goes on, or was ended too and replaced.

        Arguments:
            sweep: end everything, at once: there may be more processes than can be ended one by one, or some that have
                the shell's files.
        """
        end = time.monotonic() + GRACE
        reply, left = CommandReply(), set[int]()
        if not sweep:
            while reply.code is None and not reply.broken and time.monotonic() < end and not room.stopped():
                # Bash gives up only if what it waits for dies of the interrupt as well; whoever ignores that is killed.
                room.interrupt(room.pids() - before)
                reply = self._converse(room, b"", word, output, time.monotonic() + 0.01)
                if reply.code is not None:
                    break
                room.kill(room.pids() - before)
                reply = self._converse(room, b"", word, output, time.monotonic() + 0.01)
            left = end_all(room, before, end)
            if reply.code is not None and not reply.shell_ended and not left:
                return reply
        sweep = sweep or bool(left) or reply.broken
        if not reply.shell_ended:
            # What runs in the background may take away the commands of any shell: the second time it goes too.
            self._silent += 1
            sweep = sweep or self._silent > 1
            reply = CommandReply(self._end_shell(room, output), shell_ended=True)
        self._drain(room, output)
        return reply._replace(swept=self._restart(room, sweep))

    def _end_shell(self, room: ShellHost, output: Output) -> int:
        """Kill the shell and wait for its keeper to say so; gives its exit code."""
        end = time.monotonic() + START
        while time.monotonic() < end:
            room.hurry()
            room.end_shell()
            readable(room.control, 0.02)
            self._drain(room, output)
            room.said()
            if (code := room.ended()) is not None:
                return code
            self._must_be_open()
        self._closing.set()  # the machine is worth more than the workspace
        raise SandboxError("what runs in the shell could not be ended, so its sandbox was, with the workspace")

    def _end_background(self, room: ShellHost, limit: Status) -> None:
        self._news += f"[the background processes were ended: {LIMITS[limit]}]\n".encode()
        if limit is Status.PROCESSES or end_all(room, set(), time.monotonic() + GRACE):
            lost = Output(0, b"")
            self._end_shell(room, lost)
            self._restart(room, sweep=True)
            self._news += f"[{NEW_SHELL}]\n".encode()

    def _restart(self, room: ShellHost, sweep: bool) -> bool:
        """Start the next shell; gives whether everything else was ended for it."""
        if not sweep:
            with suppress(SandboxError):
                room.start(False, RESTART)
                return False
        room.start(True)
        self._silent = 0
        return True

    def _drain(self, room: ShellHost, output: Output) -> None:
        """What is in the pipe now, and no more: a background process may print for ever."""
        for _ in range(32):
            if not readable(room.output, 0) or not _take(room.output, output):
                return

    def _keep_guard(self, make_room: Callable[[], ShellHost]) -> None:
        try:
            room = make_room()
        except BaseException as error:
            self._failure = error
            self._ready.set()
            return
        self._room = room
        try:
            room.start(False)
        except BaseException as error:
            self._failure = error
            self._closing.set()
        self._ready.set()
        while not self._closing.wait(0.1):
            # While a command runs its own loop looks after the limits; between commands this does.
            if self._lock.acquire(blocking=False):
                try:
                    limit = room.check() if room.pids() else None
                    if limit is not None:
                        self._end_background(room, limit)
                except SandboxError as error:  # the next command tells
                    self._news += f"[{error}]\n".encode()
                finally:
                    self._lock.release()
        with self._lock:
            self._room = None
            room.close()


LIMITS = {
    Status.WALL_TIME: "the command ran out of time",
    Status.CPU_TIME: "the command used too much CPU time",
    Status.MEMORY: "more memory than allowed",
    Status.PROCESSES: "more processes than allowed",
    Status.DISK: "more files than allowed",
    Status.OUTPUT: "far more output than is kept",
}
NEW_SHELL = "a new shell was started in the same workspace; variables, functions and the current folder are lost"
STOPPED = "the shell was stopped by its command"
BROKEN = "the shell was broken by its command, which wrote where the shell tells its exit codes"


def end_all(room: ShellHost, keep: set[int], end: float) -> set[int]:
    """Kill all but some, and what they start meanwhile; gives those that were faster."""
    while (left := room.pids() - keep) and time.monotonic() < end:
        room.kill(left)
        time.sleep(0.002)
    return left


def _send(file: int, unsent: memoryview) -> memoryview:
    while unsent:
        try:
            unsent = unsent[os.write(file, unsent[:65536]) :]
        except BlockingIOError:
            break
        except OSError:  # the shell is gone; that is told by another way
            return unsent[:0]
    return unsent


def _take(file: int, output: Output) -> bool:
    try:
        data = os.read(file, 65536)
    except BlockingIOError:
        return False
    output.add(data)
    return bool(data)


def readable(file: int, seconds: float) -> bool:
    """Whether there is something to read, within so long."""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
