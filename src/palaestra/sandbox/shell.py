"""A persistent shell. No process that runs in it can forge the result of a command.

`bash_protocol` describes how bash runs commands and reports their exit codes. A command can end, kill, stop or break its
shell. Then a new shell is started in the same workspace, and the result says so. If a signal killed or stopped the shell,
all other processes are killed first: one of them may have sent it, and would send it to the next shell too.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from palaestra.core.errors import SandboxError
from palaestra.core.tables import load_table
from palaestra.sandbox.bash_protocol import StatusLine
from palaestra.sandbox.records import KIB, Files, Limits, SandboxCommand, SandboxResult, ShellResult, Status

GRACE = 1.0
"""Seconds in which a shell must respond after its command was killed."""
START, _RESTART = 20.0, 5.0
"""Seconds in which a shell must start; and seconds for its successor, before all other processes are killed."""
_CHECK_EVERY = 0.03
_MIN_OPEN_FILES = 96
_TIMED_OUT = 124
_FLOOD = 64
"""A command that prints this many times the kept output is killed."""
_MAX_STATUS_BYTES = 64 * KIB
"""Maximum bytes on the status descriptor during a command. A shell writes less than a hundred."""
BURST = 64
"""How often that descriptor is read before the other ones."""
_MAX_LISTED = 10_000
"""Maximum number of files that `Shell.list_files` returns by default."""

_LIMIT_NOTES: dict[str, str] = load_table(__file__, "limits")
_NEW_SHELL = "a new shell was started in the same workspace; variables, functions and the current folder are lost"
_STOPPED = "the command stopped the shell"
_BROKEN = "the command broke the shell: it wrote to the descriptor for exit codes"


class RunningSandbox(ABC):
    """A sandbox that has started and waits for its files, its program or a shell."""

    place: str
    """The path of the workspace for the programs."""

    @abstractmethod
    def run(self, command: SandboxCommand) -> SandboxResult:
        """Run the program until it ends or exceeds a limit."""

    @abstractmethod
    def make_shell_host(self, limits: Limits) -> ShellHost:
        """Return the host of a persistent shell in this sandbox."""

    @abstractmethod
    def kill(self) -> None:
        """Kill all processes of programs."""

    @abstractmethod
    def write_files(self, files: Files) -> None:
        """See `Shell.write_files`."""

    @abstractmethod
    def read_files(self, names: Iterable[str], longest: int, total: int | None = None) -> dict[str, bytes]:
        """See `Shell.read_files`."""

    @abstractmethod
    def list_files(self, most: int) -> list[str]:
        """See `Shell.list_files`."""

    @abstractmethod
    def close(self) -> None:
        """Kill all processes and remove everything that belongs to the sandbox."""


class ShellHost(ABC):
    """What a persistent shell needs from its kind of sandbox. By default, processes cannot be seen from outside."""

    running: RunningSandbox
    stdin: int
    output: int
    status: int
    """Descriptor on which the shell reports exit codes."""
    control: int
    """Descriptor on which the end of the shell is reported; may be the same."""
    status_bytes: int
    """Bytes received on `status`, from any process; counted by `read_status`."""

    @abstractmethod
    def start(self, sweep: bool, seconds: float = START) -> None:
        """Start a shell after the last one ended; `sweep` kills all other processes first.

        Raises:
            SandboxError: it did not start in time.
        """

    @abstractmethod
    def read_status(self) -> list[StatusLine]:
        """Return the status lines of the shell since the last call, or a part of them. Does not block."""

    @abstractmethod
    def read_exit_code(self) -> int | None:
        """Return the exit code of the shell if it has ended since the last call. Does not block."""

    def pids(self) -> set[int]:
        """Return the processes other than the shell."""
        return set()

    def kill(self, pids: Collection[int]) -> None:  # noqa: B027
        """Kill some of `pids`."""

    def raise_priority(self) -> None:  # noqa: B027
        """Raise the priority of the shell and its supervisor until the next start."""

    def interrupt(self, pids: Collection[int]) -> None:  # noqa: B027
        """Interrupt the shell and the processes of its command."""

    @abstractmethod
    def end_shell(self) -> None:
        """Kill the shell."""

    def is_stopped(self) -> bool:
        """Whether the shell is stopped, so that it will not answer."""
        return False

    def begin_command(self) -> None:  # noqa: B027
        """Start to count the CPU time of a command."""

    def check(self) -> Status | None:
        """Return the limit that is exceeded now, if any; None if something else enforces the limits."""
        return None

    def was_killed(self) -> bool:
        """Whether the kernel killed a process for lack of memory since the last call of this method or `check`."""
        return False

    def close(self) -> None:
        self.running.close()


class Output:
    """The output of a command up to its end mark. Of a long output only the beginning and the end are kept."""

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
        else:  # the mark may have arrived in part
            cut = len(data) - (len(self.mark) - 1)
            self._held = data[max(cut, 0) :]
            self._keep(data[: max(cut, 0)])

    def finish(self) -> bytes:
        """Return the kept output, with a note in place of what is missing."""
        self._keep(self._held)
        self._held = b""
        missing = self.total - len(self.head) - len(self.tail)
        note = f"\n... {missing} bytes are left out here ...\n".encode() if missing else b""
        return bytes(self.head + note + self.tail)

    def _keep(self, data: bytes) -> None:
        self.total += len(data)
        space = self.head_limit - len(self.head)
        self.head += data[:space]
        self.tail += data[space:]
        if len(self.tail) > self.tail_limit:
            del self.tail[: len(self.tail) - self.tail_limit]


class _CommandReply(NamedTuple):
    """How a command ended. Without a code it has not ended: a limit is exceeded, or the shell is stopped or broken."""

    code: int | None = None
    """The exit code of the command, or of the shell."""
    shell_ended: bool = False
    limit: Status | None = None
    broken: bool = False
    """The status descriptor received too much, or no valid status: another process writes there."""
    swept: bool = False
    """All other processes were killed too."""


class Shell:
    """A persistent shell (bash), created by `Sandbox.shell`; `workspace` is the path of its workspace in the sandbox.

    It runs one command at a time; other threads wait. The current folder, variables, functions and background processes
    are kept from one command to the next. Commands read from /dev/null, so an editor or `cat` ends at once. The output
    of a background process is returned with the next command; the process blocks when the pipe is full.
    """

    def __init__(self, start_host: Callable[[], ShellHost], limits: Limits) -> None:
        if limits.open_files < _MIN_OPEN_FILES:
            raise SandboxError(
                f"a shell needs the limit open_files to be {_MIN_OPEN_FILES} or more; got {limits.open_files}"
            )
        self.limits = limits
        self._lock, self._closing, self._ready = threading.RLock(), threading.Event(), threading.Event()
        self._rest = self._news = b""
        self._silent = 0
        """Shells in a row that did not respond after a command and were killed."""
        self._host: ShellHost | None = None
        self._failure: BaseException | None = None
        # The sandbox dies with the thread that started it, so this thread starts it and keeps running.
        self._monitor = threading.Thread(
            target=self._monitor_limits, args=(start_host,), name="palaestra-shell", daemon=True
        )
        self._monitor.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        self.workspace = self._open().running.place

    def execute(self, command: str | bytes, timeout: float | None = None) -> ShellResult:
        """Run a command, which may have several lines, and wait for its end.

        Arguments:
            timeout: seconds; by default `limits.wall_seconds`.

        Raises:
            SandboxError: the shell is closed, or its sandbox failed. A failing command does not raise.
        """
        data = command if isinstance(command, bytes) else command.encode("utf-8", "replace")
        if b"\0" in data:
            return ShellResult(Status.EXIT, 2, b"bash: a command cannot hold a NUL byte\n", 0.0)
        with self._lock:
            host = self._open()
            before, word = host.pids(), secrets.token_hex(16).encode()
            output = Output(self.limits.output, word, self._rest + self._news)
            self._rest = self._news = b""
            host.status_bytes = 0
            host.begin_command()
            start = time.monotonic()
            deadline = start + (self.limits.wall_seconds if timeout is None else timeout)
            reply = self._exchange(host, data + b"\0" + word + b"\0", word, output, deadline)
            limit, code, note = reply.limit, reply.code, ""
            if reply.code is None:
                note = _BROKEN if reply.broken else _STOPPED
                if limit:
                    note = f"ended after {time.monotonic() - start:.1f} s: {_LIMIT_NOTES[limit.value]}"
                reply = self._recover(host, before, word, output, limit in (None, Status.PROCESSES))
                code = _TIMED_OUT if limit else reply.code
            elif reply.shell_ended:
                note = f"the shell ended with exit code {code}"
                self._drain(host, output)
                reply = reply._replace(swept=self._restart(host, _is_killed(code)))
            else:
                self._silent = 0
            if limit is None and host.was_killed():
                limit = Status.MEMORY
                note = "; ".join(filter(None, (f"a process was ended: {_LIMIT_NOTES[limit.value]}", note)))
            assert code is not None
            if reply.shell_ended:
                note += f"; {_NEW_SHELL}" + ("; the background processes were ended" if reply.swept else "")
            text = output.finish()
            self._rest = output.rest
            status = limit or (Status.OK if code == 0 else Status.EXIT if code <= 128 or code > 192 else Status.SIGNAL)
            return ShellResult(
                status, code, text, time.monotonic() - start, output.total > self.limits.output, reply.shell_ended, note
            )

    def write_files(self, files: Files) -> None:
        """Write files into the workspace, by relative path."""
        with self._lock:
            self._open().running.write_files(files)

    def read_files(
        self, names: Sequence[str], longest: int | None = None, total: int | None = None
    ) -> dict[str, bytes]:
        """Read files of the workspace, by relative path. Missing files are left out; links are not followed.

        Arguments:
            longest: bytes to read of each file; by default the largest size that a file may have.
            total: bytes to read of all files together. Files are read in the order of `names`; the first one that does
                not fit is left out, with all files after it. Holes in sparse files count.
        """
        with self._lock:
            longest = self.limits.file_size if longest is None else longest
            return self._open().running.read_files(names, longest, total)

    def list_files(self, most: int = _MAX_LISTED) -> list[str]:
        """Return the relative paths of at most `most` regular files in the workspace. Links are not followed."""
        with self._lock:
            return self._open().running.list_files(most)

    def close(self) -> None:
        """Kill the shell and its processes, and delete its workspace if it is private."""
        self._closing.set()
        if self._monitor is not threading.current_thread():
            self._monitor.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> ShellHost:
        if self._host is None or self._closing.is_set():
            raise SandboxError("the shell is closed; open another with Sandbox.shell()")
        return self._host

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise SandboxError("the shell was closed while its command ran; open another with Sandbox.shell()")

    def _exchange(self, host: ShellHost, data: bytes, word: bytes, output: Output, deadline: float) -> _CommandReply:
        """Send a command and read until it ends, its shell ends, or a limit is exceeded."""
        poller = select.poll()
        for file in (host.output, host.status, host.control):
            poller.register(file, select.POLLIN)
        code: int | None = None
        next_check = time.monotonic() + _CHECK_EVERY
        unsent = _send(host.stdin, memoryview(data))
        if unsent:
            poller.register(host.stdin, select.POLLOUT)
        while True:
            self._check_open()
            now = time.monotonic()
            if now >= deadline:
                # With a status but without the end mark there is no more output: the command closed the pipe.
                return _CommandReply(code) if code is not None else _CommandReply(limit=Status.WALL_TIME)
            for file, _ in poller.poll(max(0.0, min(deadline, next_check) - now) * 1000 + 0.5):
                if file == host.output:
                    _take(file, output)
                elif file == host.stdin:
                    unsent = _send(file, unsent)
                    if not unsent:
                        poller.unregister(file)
                if file == host.status:
                    for line in host.read_status():
                        if line.word == word:
                            if line.code is None:
                                return _CommandReply(broken=True)
                            code = line.code
                            deadline = min(deadline, time.monotonic() + GRACE)
                    if host.status_bytes > _MAX_STATUS_BYTES:
                        return _CommandReply(broken=True)
                if file == host.control and (exit_code := host.read_exit_code()) is not None:
                    return _CommandReply(exit_code, shell_ended=True)
            if code is not None and output.ended:
                return _CommandReply(code)
            if output.total + len(output.rest) > _FLOOD * max(self.limits.output, 2**16):
                return _CommandReply(limit=Status.OUTPUT)
            if time.monotonic() >= next_check:
                limit = host.check() if code is None else None
                if limit is not None or (code is None and host.is_stopped()):
                    return _CommandReply(limit=limit)
                next_check = time.monotonic() + _CHECK_EVERY

    def _recover(self, host: ShellHost, before: set[int], word: bytes, output: Output, sweep: bool) -> _CommandReply:
        """Kill the processes of a command. Its shell goes on, or is replaced.

        Arguments:
            sweep: kill all processes at once, because there may be too many to kill one by one, or some of them have the
                shell's descriptors or stop every shell.
        """
        end = time.monotonic() + GRACE
        reply, left = _CommandReply(), set[int]()
        if not sweep:
            while reply.code is None and not reply.broken and time.monotonic() < end and not host.is_stopped():
                # Bash stops only if the process that it waits for dies of the interrupt too, so one that ignores it is killed.
                host.interrupt(host.pids() - before)
                reply = self._exchange(host, b"", word, output, time.monotonic() + 0.01)
                if reply.code is not None:
                    break
                host.kill(host.pids() - before)
                reply = self._exchange(host, b"", word, output, time.monotonic() + 0.01)
            left = end_all(host, before, end)
            if reply.code is not None and not reply.shell_ended and not left:
                return reply
        sweep = sweep or bool(left) or reply.broken or host.is_stopped() or _is_killed(reply.code)
        if not reply.shell_ended:
            # A background process may read the commands of every new shell, so the second time it is killed too.
            self._silent += 1
            sweep = sweep or self._silent > 1
            reply = _CommandReply(self._end_shell(host, output), shell_ended=True)
        self._drain(host, output)
        return reply._replace(swept=self._restart(host, sweep))

    def _end_shell(self, host: ShellHost, output: Output) -> int:
        """Kill the shell and wait for the report of its supervisor. Returns its exit code."""
        end = time.monotonic() + START
        while time.monotonic() < end:
            host.raise_priority()
            host.end_shell()
            is_readable(host.control, 0.02)
            self._drain(host, output)
            host.read_status()
            if (code := host.read_exit_code()) is not None:
                return code
            self._check_open()
        self._closing.set()  # better to lose the workspace than to leave processes behind
        raise SandboxError("what runs in the shell could not be ended, so its sandbox was, with the workspace")

    def _end_background(self, host: ShellHost, limit: Status) -> None:
        self._news += f"[the background processes were ended: {_LIMIT_NOTES[limit.value]}]\n".encode()
        if limit is Status.PROCESSES or end_all(host, set(), time.monotonic() + GRACE):
            lost = Output(0, b"")
            self._end_shell(host, lost)
            self._restart(host, sweep=True)
            self._news += f"[{_NEW_SHELL}]\n".encode()

    def _restart(self, host: ShellHost, sweep: bool) -> bool:
        """Start the next shell. Returns whether all other processes were killed for it."""
        if not sweep:
            with suppress(SandboxError):
                host.start(False, _RESTART)
                return False
        host.start(True)
        self._silent = 0
        return True

    def _drain(self, host: ShellHost, output: Output) -> None:
        """Read what is in the pipe now. A background process may print without end, so the number of reads is bounded."""
        for _ in range(32):
            if not is_readable(host.output, 0) or not _take(host.output, output):
                return

    def _monitor_limits(self, start_host: Callable[[], ShellHost]) -> None:
        try:
            host = start_host()
        except BaseException as error:
            self._failure = error
            self._ready.set()
            return
        self._host = host
        try:
            host.start(False)
        except BaseException as error:
            self._failure = error
            self._closing.set()
        self._ready.set()
        while not self._closing.wait(0.1):
            # During a command `_exchange` checks the limits; between commands this thread does.
            if self._lock.acquire(blocking=False):
                try:
                    limit = host.check() if host.pids() else None
                    if limit is not None:
                        self._end_background(host, limit)
                except SandboxError as error:  # reported with the next command
                    self._news += f"[{error}]\n".encode()
                finally:
                    self._lock.release()
        with self._lock:
            self._host = None
            host.close()


def end_all(host: ShellHost, keep: set[int], end: float) -> set[int]:
    """Kill all processes except `keep`, and those that they start meanwhile. Returns those that survive."""
    while (left := host.pids() - keep) and time.monotonic() < end:
        host.kill(left)
        time.sleep(0.002)
    return left


def _is_killed(code: int | None) -> bool:
    """Whether a signal ended the shell. An interrupt does not count, because this module sends it."""
    return code is not None and 128 < code <= 192 and code != 128 + signal.SIGINT


def _send(file: int, unsent: memoryview) -> memoryview:
    while unsent:
        try:
            unsent = unsent[os.write(file, unsent[:65536]) :]
        except BlockingIOError:
            break
        except OSError:  # the shell is gone, which is reported on another descriptor
            return unsent[:0]
    return unsent


def _take(file: int, output: Output) -> bool:
    try:
        data = os.read(file, 65536)
    except BlockingIOError:
        return False
    output.add(data)
    return bool(data)


def is_readable(file: int, seconds: float) -> bool:
    """Whether data can be read within `seconds`."""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
